"""The last check before a model is trusted: small trees, scored by a backend and by the untouched module."""

from collections import defaultdict
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.core.openmp import a_single_thread, limit_of_threads
from drafttree.core.stages import stage
from drafttree.models.attention.tree_attention import NoTreeError
from drafttree.models.attention.varlen_attention import find_varlen_attention
from drafttree.models.base import Backend
from drafttree.models.exact_text import ExactTextBackend, has_uniform_rows
from drafttree.models.fused.fused_backend import FusedBackend, why_not_fused
from drafttree.models.fused.int8_linear import Int8Linear, quantization, unrounded_activations
from drafttree.models.module.experts import routed_experts, unknown_experts
from drafttree.models.module.fingerprint import SelectedBackend
from drafttree.models.module.long_rope import context_limit
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.module.module_checks import (
    check_module,
    input_device,
    logits_width,
    recurrent_layers,
    takes_mask,
)
from drafttree.models.module.probe import (
    Probe,
    decodes_otherwise,
    make_late_probes,
    make_probes,
    own_logits,
    relative_gap,
    tolerance,
    tree_logits,
)
from drafttree.models.native.native_backend import NativeBackend, reads_packed_weights, why_not_native
from drafttree.models.native.packed_model import PackedModel
from drafttree.models.native.packed_products import WrongProductError
from drafttree.models.recorded.cuda_graphs import CudaGraphs
from drafttree.models.recorded.recorded_passes import RecordedBackend
from drafttree.models.tensor_parallel import ShardedBackend, tensor_parallel_size
from drafttree.models.windows import EVERYTHING, LossyWindow
from drafttree.models.wrapped_backends import WindowedBackend

FUSED_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
INT8_ROWS = 2.0**-6
"""What rounds a row about as much as eight bits, of which the largest number of a chunk has the unit."""
FUSED_NOISES = 3
"""Fused layers may differ from a module of such a dtype by this many times what `_extra_rounding` changes.

Measured on models of all families, random and trained: right layers differ by 0.2 to 1.9 times that, layers without an
adapter of a tenth of the norm of the attention's weights by 4.5 times and more.
"""

ROWS = ((1, None), (1, 32), (16, None), (16, 16))
"""Bounds of the rows of a pass that are tried, the cheapest first, until a token's logits do not depend on its pass."""

Reference = list[tuple[Probe, Tensor]]
"""A module's own logits of every probe."""

FusedOrModule = TypeVar("FusedOrModule", FusedBackend, ModuleBackend)

KEPT = "_verified_by_drafttree"
"""Name of the attribute under which a module holds its `_Kept`."""


class OwnLogits:
    """A module's own logits of probes, each computed once, when a check first needs it.

    Args:
        module: the untouched module.
        packed: what is packed of it and multiplies for its linear layers, None where they multiply themselves.

    Attributes:
        module: as given.
    """

    def __init__(self, module: PreTrainedModel, packed: PackedModel | None = None) -> None:
        self.module = module
        self._packed = packed
        self._by_token = decodes_otherwise(module)  # seen before anything is replaced for a check

    @cached_property
    def behind_prefix(self) -> Reference:
        """Of a tree behind a short text.

        Raises:
            ModelError: the module cannot be verified in a tree, computes no finite logits, or computes wrong ones here.
        """
        check_module(self.module)
        kind = type(self.module).__name__
        try:
            with self._multiplied():
                ModuleBackend(self.module)  # refuses what no tree can be verified in
            reference = self._of(make_probes(self.module)[:1])
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            reason = str(error).partition("\n")[0]
            raise ModelError(f"{kind} cannot compute its own logits ({reason}); load it anew") from error
        if setting := self._limits_products(reference[0][0].shifted(logits_width(self.module))):
            dtype, threads = str(self.module.dtype).removeprefix("torch."), torch.get_num_threads()
            raise ModelError(
                f"{kind} computes wrong logits in {dtype} here: torch counts on {threads} threads, and "
                f"OpenMP may give it fewer by {setting}; unset that, or call torch.set_num_threads(1)"
            )
        if not all(logits.isfinite().all() for _, logits in reference):
            raise ModelError(f"{kind} computes no finite logits; its weights may be damaged")
        return reference

    @cached_property
    def in_trees(self) -> Reference:
        """Of a tree behind a short text, and of one at late positions without a text before."""
        return [*self.behind_prefix, *self._of(make_probes(self.module)[1:])]

    @cached_property
    def late(self) -> Reference:
        """Of trees behind rows at the end of the context; for modules that fused layers know."""
        with self._multiplied():
            probes = make_late_probes(self.module)
        return self._of(probes)

    @cached_property
    def for_native(self) -> tuple[Reference, float]:
        """What passes in one call are compared with, and the gap that is allowed."""
        with _told_of_training(self.module):
            reference = [*self.behind_prefix, *self.late]
        return reference, self.allowed(INT8_ROWS if quantization(self.module) == "int8" else 0.0)

    def allowed(self, unit: float = 0.0) -> float:
        """The largest gap that rounding explains between another way to compute the module and the module.

        Args:
            unit: how coarsely the other way rounds the inputs of linear layers, if that is coarser than the dtype.
        """
        dtype = self.module.dtype
        if dtype in FUSED_TOLERANCE and not unit:
            return FUSED_TOLERANCE[dtype]
        if why_not_fused(self.module):
            return 0.0
        ((probe, logits),) = self.behind_prefix
        with unrounded_activations(), _extra_rounding(self.module, max(unit, torch.finfo(dtype).eps)):
            return FUSED_NOISES * relative_gap(self._logits(probe), logits)

    @unrounded_activations()
    def _of(self, probes: list[Probe]) -> Reference:
        return [(probe, self._logits(probe)) for probe in probes]

    def _logits(self, probe: Probe) -> Tensor:
        with self._multiplied():
            return own_logits(self.module, probe, self._by_token)

    def _limits_products(self, probe: Probe) -> str | None:
        """The setting of OpenMP by which torch's own products are wrong, None if they are right.

        Some leave out what the threads were to compute that torch does not get, and what their memory held before
        remains. Which do depends on processor and dtype, so logits are compared with those of one thread.

        Args:
            probe: what has not been computed before, or what remains might be right.
        """
        threads = torch.get_num_threads()
        if input_device(self.module).type != "cpu" or not (setting := limit_of_threads(threads)):
            return None
        with a_single_thread():
            limited = self._logits(probe)
        torch.set_num_threads(1)
        try:
            right = self._logits(probe)
        finally:
            torch.set_num_threads(threads)
        is_right = relative_gap(limited, right) <= tolerance(self.module.dtype)
        return None if is_right or not right.isfinite().all() else setting

    def _multiplied(self) -> AbstractContextManager[None]:
        return self._packed.multiplies_for(self.module) if self._packed else nullcontext()


def select_backend(module: PreTrainedModel) -> Backend:
    """Select the fastest backend whose tree pass gives the module's own logits along both of a small tree's paths.

    Passes in one call are preferred, then fused layers, where they support the module; on CUDA the passes of these are
    recorded. Only what is to serve is checked. A module that is sharded over processes is run as it is: fused layers
    would leave out the sums over its shares.

    Raises:
        ModelError: the model has layers that cannot be verified in a tree, or its tree pass gives other logits.
    """
    own = OwnLogits(module)
    if tensor_parallel_size(module) > 1:
        return ShardedBackend(_verify(own))
    fast = _fastest(own)
    if module.device.type != "cuda" or not isinstance(fast, FusedBackend):
        return fast
    if fast.spans != (EVERYTHING,):
        return _instead(fast, RecordedBackend="its layers have windows")
    if not fast.is_uniform:
        return _instead(fast, RecordedBackend="its layers have heads of several shapes, or share keys")
    if fast.has_long_rope:
        return _instead(fast, RecordedBackend="its rotary embeddings change with the length of a text")
    varlen = find_varlen_attention(fast.empty, fast.layers[0].key_heads, fast.layers[0].width)
    recorded = RecordedBackend(fast, CudaGraphs(module.device), varlen)
    if _repeats(recorded, own.in_trees, own.allowed()):
        return recorded
    return _instead(fast, RecordedBackend="its passes give other logits when they are replayed")


def select_unrecorded(module: PreTrainedModel, native: bool = True) -> Backend:
    """Select as `select_backend` does, without recorded passes, for modules whose layers read more than is recorded.

    Args:
        module: the module.
        native: whether passes in one call will do.

    Raises:
        ModelError: as of `select_backend`.
    """
    return _fastest(OwnLogits(module), native=native)


def select_exact_text(module: PreTrainedModel) -> Backend:
    """Select a backend for `exact_text`: one that computes a row the same whatever stands beside it, which is tried.

    Raises:
        ModelError: the module cannot be verified in a tree, or no backend of it computes rows alike on its device.
    """
    own, kind = OwnLogits(module), type(module).__name__
    if has := _own_sums(module):
        _verify(own)  # what cannot be verified at all is told so
        raise ModelError(f"exact_text cannot hold for {kind}, which has {has}; leave it out")
    inner = _fastest(own)
    if inner.exact_text:
        return inner
    experts = routed_experts(module)
    for least, most in ROWS:
        found = ExactTextBackend(inner, least, most, experts)
        if has_uniform_rows(found, module.dtype, logits_width(module), context_limit(module)):
            return found
    where = f"{str(module.dtype).removeprefix('torch.')} on this {module.device.type}"
    raise ModelError(
        f"exact_text cannot hold for {kind} in {where}: a token's logits depend on the others in its pass; "
        "leave it out, or try another dtype"
    )


def select_windowed(module: PreTrainedModel, window: LossyWindow) -> WindowedBackend:
    """Select a backend for `lossy_window`: the one that `select_backend` selects, on KV caches with a window.

    Raises:
        ModelError: the module cannot be verified in a tree, or its layers remember what a window would hide.
    """
    if recurrent_layers(module):
        kind = type(module).__name__
        raise ModelError(f"lossy_window cannot hold for {kind}, whose recurrent layers remember the whole text")
    is_native = why_not_native(module) is None
    inner = select_unrecorded(module, native=False) if is_native else select_backend(module)
    return WindowedBackend(inner, window)


def _own_sums(module: PreTrainedModel) -> str | None:
    """The part of a module whose sums drafttree cannot rearrange, None if there is no such part."""
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
def _fastest(own: OwnLogits, native: bool = True) -> NativeBackend | FusedBackend | ModuleBackend:
    """The fastest backend that gives a module's own logits, but for recorded passes; it knows why it is no faster one.

    Args:
        own: the module's own logits.
        native: whether passes in one call will do.

    Raises:
        ModelError: as of `select_backend`.
    """
    refused: dict[str, str] = {}
    if native and own.module.device.type == "cpu":
        packed = _trusted_native(own)
        if not isinstance(packed, str):
            return packed
        refused["NativeBackend"] = packed
    backend = _verify(own)
    fused = _trusted_fused(own)
    if not isinstance(fused, str):
        return _instead(fused, **refused)
    return _instead(backend, **refused, FusedBackend=fused)


def _instead(backend: FusedOrModule, **refused: str) -> FusedOrModule:
    """A backend that is to say why faster ones, given by name, do not run the module."""
    by_reason = defaultdict[str, list[str]](list)
    for name, reason in refused.items():
        by_reason[reason].append(name)
    reasons = [f"no {' or '.join(names)}: {reason}" for reason, names in by_reason.items()]
    backend.fallback_reason = "; ".join(reasons) or None
    return backend


def _trusted_native(own: OwnLogits) -> NativeBackend | str:
    """A module's passes in one call if that supports it and gives its own logits, else why not."""
    module = own.module
    if reason := why_not_native(module):
        return reason
    # before weights are packed that the module itself reads, since it would take them back
    computed = own.for_native if reads_packed_weights(module) else None
    try:
        native = NativeBackend(module)
    except WrongProductError as error:
        return str(error)
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        return _other_layer(error)
    reference, allowed = computed or OwnLogits(module, native.packed).for_native
    return native if (gap := _gap(native, reference)) <= allowed else _other_logits(gap)


@unrounded_activations()
def _trusted_fused(own: OwnLogits) -> FusedBackend | str:
    """The fused layers of a module if they support it and give its own logits, else why not."""
    if reason := why_not_fused(own.module):
        return reason
    try:
        fused = FusedBackend(own.module)
        gap = _gap(fused, [*own.in_trees, *own.late])
    except (AttributeError, RuntimeError) as error:
        return _other_layer(error)
    return fused if gap <= own.allowed() else _other_logits(gap)


def _other_logits(gap: float) -> str:
    return f"its logits differ by {gap:.3g} from the module's own"


def _other_layer(error: Exception) -> str:
    """Why a layer cannot be run that was replaced by one of another kind or size."""
    return f"a layer is not as those of its family ({str(error).partition(chr(10))[0]})"


def verify_once(module: PreTrainedModel) -> ModuleBackend:
    """The backend that runs the module, verified unless that was done before and the module has not changed since.

    Raises:
        ModelError: the module cannot be verified in a tree.
    """
    kept: _Kept | None = vars(module).get(KEPT)
    if kept is None:
        kept = _Kept(SelectedBackend(module, lambda module: _verify(OwnLogits(module))))
        setattr(module, KEPT, kept)
    else:
        kept.selected.refresh()
    return kept.selected.backend


class _Kept:
    """Holds what was verified on the module itself, so it goes with it; copies of the module begin without."""

    def __init__(self, selected: SelectedBackend[PreTrainedModel, ModuleBackend]) -> None:
        self.selected = selected

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


@unrounded_activations()
def _verify(own: OwnLogits) -> ModuleBackend:
    """The module's backend, whose tree pass has given the module's own logits.

    Raises:
        ModelError: it gives others, or the module cannot be verified in a tree.
    """
    module = own.module
    with _told_of_training(module):
        reference = own.in_trees
        backend = ModuleBackend(module)
        if reason := _incompatibility(backend, reference, tolerance(module.dtype)):
            raise ModelError(f"{type(module).__name__} cannot be verified in a tree: {reason}")
    return backend


@contextmanager
def _told_of_training(module: PreTrainedModel) -> Iterator[None]:
    """Say of an error that the module is in training mode, if it is."""
    try:
        yield
    except ModelError as error:
        if not any(part.training for part in module.modules()):
            raise
        kind = type(module).__name__
        raise ModelError(f"{kind} cannot be verified in a tree: it is in training mode; call its eval()") from error


def _incompatibility(backend: ModuleBackend, own: Reference, allowed: float) -> str | None:
    """The reason why a module's tree pass is wrong, None if it is right."""
    try:
        gap = _gap(backend, own)
    except NoTreeError:
        return "its attention layers do not pass the tree on"
    except ModelError as error:
        return str(error)
    except Exception as error:  # whatever a module raises that was made for other passes
        first_line = str(error).partition("\n")[0]
        return f"a pass over one fails ({type(error).__name__}: {first_line})"
    return None if gap <= allowed else f"its logits there differ by {gap:.3g} from its own"


def _gap(backend: Backend, own: Reference) -> float:
    """The largest gap between the logits of probes and the module's own."""
    return max(relative_gap(tree_logits(backend, probe), logits) for probe, logits in own)


def _repeats(recorded: RecordedBackend, own: Reference, allowed: float) -> bool:
    """Whether passes that were recorded on other tokens give the module's logits when they are replayed."""
    for probe, logits in own:
        tree_logits(recorded, probe.shifted(logits.shape[-1]))
    return _gap(recorded, own) <= allowed


@contextmanager
def _extra_rounding(module: PreTrainedModel, unit: float) -> Iterator[None]:
    """Change the inputs of all linear layers at random, by one unit in the last place at most.

    It shows how far the logits of this very model move when equal sums are rounded elsewhere. No constant does: that
    grows with the depth, and a wrong layer may move the logits less in one model than rounding does in another.
    """
    generator = torch.Generator(module.device).manual_seed(0)  # the user's own draws stay as they are

    def change(_: nn.Module, given: tuple[Tensor]) -> Tensor:
        noise = torch.rand(given[0].shape, generator=generator, device=given[0].device) - 0.5
        return (given[0] * (1 + 2 * unit * noise)).to(given[0].dtype)

    with ExitStack() as undo:
        for layer in module.modules():
            if isinstance(layer, nn.Linear | Int8Linear):
                undo.callback(layer.register_forward_pre_hook(change).remove)
        yield
