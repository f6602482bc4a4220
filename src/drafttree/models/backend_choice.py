"""Chooses the backend that runs a module: the fastest with the module's own logits and the wanted properties."""

from collections import defaultdict
from dataclasses import dataclass
from typing import TypeVar

from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.core.stages import stage
from drafttree.models.attention.varlen_attention import find_varlen_attention
from drafttree.models.base import Backend
from drafttree.models.exact_text import ExactTextBackend, has_uniform_rows
from drafttree.models.fused.decoder_backend import DecoderBackend
from drafttree.models.fused.fused_backend import FusedBackend, why_not_fused
from drafttree.models.module.experts import routed_experts, unknown_experts
from drafttree.models.module.long_rope import context_limit
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.module.module_checks import logits_width, recurrent_layers, takes_mask
from drafttree.models.module.probe import tree_logits
from drafttree.models.native.native_backend import NativeBackend, reads_packed_weights, why_not_native
from drafttree.models.native.packed_products import WrongProductError
from drafttree.models.quantization.block_linear import BlockLinear
from drafttree.models.quantization.quantized_linear import unrounded_activations
from drafttree.models.recorded.cuda_graphs import CudaGraphs
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.models.tensor_parallel import ShardedBackend, tensor_parallel_size
from drafttree.models.triton.kernel_failures import KernelError, why_it_does_not_run
from drafttree.models.triton.triton_support import (
    prefers_triton,
    triton_backend_of,
    why_not_triton,
)
from drafttree.models.validation import OwnLogits, Reference, largest_gap, told_of_training, verify
from drafttree.models.windows import EVERYTHING, LossyWindow
from drafttree.models.wrapped_backends import WindowedBackend

ROWS = ((1, None), (1, 32), (16, None), (16, 16))
"""Limits of a pass, its fewest and most rows, that `exact_text` tries, the cheapest first; None for no limit."""

NOT_RUN = (AttributeError, RuntimeError, TypeError, ValueError)
"""Errors raised where a layer was replaced by one of another kind or size."""

DecoderOrModule = TypeVar("DecoderOrModule", bound=NativeBackend | DecoderBackend | ModuleBackend)


@dataclass(frozen=True)
class Wants:
    """Properties wanted of a backend beside the module's own logits.

    Attributes:
        exact_text: whether a token's logits must be the same in every pass; a trial shows whether they are.
        lossy_window: window of its KV caches, None for none.
    """

    exact_text: bool = False
    lossy_window: LossyWindow | None = None


EVERY_TEXT = Wants()
"""The wants of texts that are neither `exact_text` nor windowed."""


def choose_backend(module: PreTrainedModel, wants: Wants = EVERY_TEXT) -> Backend:
    """The fastest backend whose tree pass gives a module's own logits along both paths of a small tree.

    `NativeBackend` is preferred, then `FusedBackend`, if they support the module. On CUDA the passes of `FusedBackend`
    are recorded. Only backends that may be returned are checked. A module that is sharded over processes runs as it is,
    since fused layers would leave out the sums over its shares.

    With `DRAFTTREE_TRITON=1`, `TritonBackend` is preferred to both on CUDA, and its passes are recorded. On a CPU that
    takes `TRITON_INTERPRET=1` too, and serves tests.

    Raises:
        ModelError: the module's layers cannot be verified in a tree, its tree pass gives other logits, or no backend
            has the wanted properties.
    """
    module_logits = OwnLogits(module)
    window = wants.lossy_window
    if wants.exact_text:
        return _exact_text(module_logits)
    if window and recurrent_layers(module):
        class_name = type(module).__name__
        raise ModelError(f"lossy_window cannot hold for {class_name}, whose recurrent layers remember the whole text")
    if tensor_parallel_size(module) > 1:
        backend = ShardedBackend(verify(module_logits))
    else:
        backend = _fastest_recorded(module_logits, native=window is None)
    return WindowedBackend(backend, window) if window else backend


def _fastest_recorded(module_logits: OwnLogits, native: bool) -> Backend:
    """The fastest backend, recorded if it can be; arguments and errors are those of `_fastest`."""
    try:
        return _recorded(_fastest(module_logits, native), module_logits)
    except KernelError:  # a kernel did not compile for the sizes of recorded passes, so the module is refused now
        return _recorded(_fastest(module_logits, native), module_logits)


def _recorded(backend: Backend, module_logits: OwnLogits) -> Backend:
    """Record the passes of a backend if it can be on CUDA; else return it with the reason noted."""
    if module_logits.module.device.type != "cuda" or not isinstance(backend, DecoderBackend):
        return backend
    varlen_attention = None
    if backend.inputs is None:
        if backend.spans != (EVERYTHING,):
            return _instead(backend, RecordedBackend="its layers have windows")
        if not backend.is_uniform:
            return _instead(backend, RecordedBackend="its layers have heads of several shapes, or share keys")
        if backend.has_long_rope:
            return _instead(backend, RecordedBackend="its rotary embeddings change with the length of a text")
        key_heads, width, _ = backend.layout.buffers[0]
        varlen_attention = find_varlen_attention(backend.empty, key_heads, width)
    recorded_backend = RecordedBackend(backend, CudaGraphs(module_logits.module.device), varlen_attention)
    if _repeats(recorded_backend, module_logits.in_trees, module_logits.allowed_gap()):
        return recorded_backend
    return _instead(backend, RecordedBackend="its passes give other logits when they are replayed")


def _exact_text(module_logits: OwnLogits) -> Backend:
    """A backend that gives a token the same logits in every pass.

    Args:
        module_logits: the module's own logits.

    Raises:
        ModelError: the module cannot be verified in a tree, or none of its backends does this on its device.
    """
    module = module_logits.module
    class_name = type(module).__name__
    if obstacle := _own_sums(module):
        verify(module_logits)  # a module that cannot be verified at all gets that error
        raise ModelError(f"exact_text cannot hold for {class_name}, which has {obstacle}; leave it out")
    fastest_backend = _fastest(module_logits)
    if fastest_backend.exact_text:
        try:
            return _recorded(fastest_backend, module_logits)
        except KernelError:
            fastest_backend = _fastest(module_logits)
    experts = routed_experts(module)
    for min_rows, max_rows in ROWS:
        exact_backend = ExactTextBackend(fastest_backend, min_rows, max_rows, experts)
        if has_uniform_rows(exact_backend, module.dtype, logits_width(module), context_limit(module)):
            return exact_backend
    setting = f"{str(module.dtype).removeprefix('torch.')} on this {module.device.type}"
    raise ModelError(
        f"exact_text cannot hold for {class_name} in {setting}: a token's logits depend on the others in its pass; "
        "leave it out, or try another dtype"
    )


def _own_sums(module: PreTrainedModel) -> str | None:
    """The part of a module whose sums `exact_text` cannot make independent of other rows, None if there is none."""
    if tensor_parallel_size(module) > 1:
        return "weights that are sharded over processes"
    if takes_mask(module):
        return "attention of its own"
    if recurrent_layers(module):
        return "recurrent layers, which read a prompt by other sums than they decode with"
    if (experts := unknown_experts(module)) is not None:
        return f"experts ({experts}) that it routes tokens to in a way of its own"
    return None


@stage("check")
def _fastest(module_logits: OwnLogits, native: bool = True) -> NativeBackend | DecoderBackend | ModuleBackend:
    """The fastest backend that gives a module's own logits; its `fallback_reason` says why faster ones do not run.

    Args:
        module_logits: the module's own logits.
        native: whether a `NativeBackend` may be returned.

    Raises:
        ModelError: the module's layers cannot be verified in a tree, or its tree pass gives other logits.
    """
    refusal_reasons: dict[str, str] = {}
    if prefers_triton():
        triton_backend = _trusted_triton(module_logits)
        if not isinstance(triton_backend, str):
            return triton_backend
        refusal_reasons["TritonBackend"] = triton_backend
    if native and module_logits.module.device.type == "cpu":
        native_backend = _trusted_native(module_logits)
        if not isinstance(native_backend, str):
            return _instead(native_backend, **refusal_reasons)
        refusal_reasons["NativeBackend"] = native_backend
    backend = verify(module_logits)
    fused_backend = _trusted_fused(module_logits)
    if not isinstance(fused_backend, str):
        return _instead(fused_backend, **refusal_reasons)
    return _instead(backend, **refusal_reasons, FusedBackend=fused_backend)


def _instead(backend: DecoderOrModule, **refused: str) -> DecoderOrModule:
    """Note in a backend why faster ones, given by name, do not run the module, after what was noted before."""
    names_by_reason = defaultdict[str, list[str]](list)
    for name, reason in refused.items():
        names_by_reason[reason].append(name)
    reasons = [backend.fallback_reason] if backend.fallback_reason else []
    reasons += [f"no {' or '.join(names)}: {reason}" for reason, names in names_by_reason.items()]
    backend.fallback_reason = "; ".join(reasons) or None
    return backend


def _trusted_native(module_logits: OwnLogits) -> NativeBackend | str:
    """The native backend of a module if it supports the module and gives its own logits, else why not."""
    module = module_logits.module
    if reason := why_not_native(module):
        return reason
    # if the module itself reads packed weights, it would get them back; so its logits are computed before packing
    native_reference = module_logits.for_native if reads_packed_weights(module) else None
    try:
        native = NativeBackend(module)
    except WrongProductError as error:
        return str(error)
    except NOT_RUN as error:
        return _other_layer(error)
    reference, tolerance = native_reference or OwnLogits(module, native.packed).for_native
    native.packed.take_back()  # weights that the module has read itself, such as a router's
    return native if (gap := largest_gap(native, reference)) <= tolerance else _other_logits(gap)


@unrounded_activations()
def _trusted_fused(module_logits: OwnLogits) -> FusedBackend | str:
    """The fused backend of a module if it supports the module and gives its own logits, else why not."""
    if reason := why_not_fused(module_logits.module):
        return reason
    if any(isinstance(submodule, BlockLinear) for submodule in module_logits.module.modules()):
        return "weights in blocks are multiplied by drafttree-native alone"
    try:
        fused = FusedBackend(module_logits.module)
        gap = largest_gap(fused, [*module_logits.in_trees, *module_logits.late])
    except (AttributeError, RuntimeError) as error:
        return _other_layer(error)
    return fused if gap <= module_logits.allowed_gap() else _other_logits(gap)


@unrounded_activations()
def _trusted_triton(module_logits: OwnLogits) -> DecoderBackend | str:
    """The backend on kernels in Triton if it supports the module and gives its own logits, else why not."""
    module = module_logits.module
    if reason := why_not_triton(module):
        return reason
    with told_of_training(module):
        reference = [*module_logits.in_trees, *module_logits.late]
    try:
        backend = triton_backend_of(module)
        gap = largest_gap(backend, reference)
    except Exception as error:  # a compiler may raise anything
        return why_it_does_not_run(error)
    return backend if gap <= module_logits.allowed_gap() else _other_logits(gap)


def _other_logits(gap: float) -> str:
    return f"its logits differ by {gap:.3g} from the module's own"


def _other_layer(error: Exception) -> str:
    """The reason to give if a layer was replaced by one of another kind or size."""
    return f"a layer is not as those of its family ({str(error).partition(chr(10))[0]})"


def _repeats(recorded_backend: RecordedBackend, reference: Reference, allowed_gap: float) -> bool:
    """Whether replayed passes, recorded on other tokens, give the module's own logits."""
    for probe, logits in reference:
        tree_logits(recorded_backend, probe.shifted(logits.shape[-1]))
    return largest_gap(recorded_backend, reference) <= allowed_gap
