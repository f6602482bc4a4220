"""The last check before a model is trusted: small trees, scored by a backend and by the untouched module."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.core.openmp import a_single_thread, limit_of_threads
from drafttree.models.attention.tree_attention import NoTreeError
from drafttree.models.base import Backend
from drafttree.models.fused.fused_backend import why_not_fused
from drafttree.models.module.fingerprint import SelectedBackend
from drafttree.models.module.module_backend import ModuleBackend
from drafttree.models.module.module_checks import check_module, input_device, logits_width
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
from drafttree.models.native.packed_model import PackedModel
from drafttree.models.quantization.quantized_linear import QuantizedLinear, quantized_layers, unrounded_activations

FUSED_TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-6}
INT8_ROWS = 2.0**-6
"""Relative rounding of a row, about that of eight bits with one scale per chunk."""
FUSED_NOISES = 3
"""In dtypes without a `FUSED_TOLERANCE`, fused layers may differ by this many times the effect of `_extra_rounding`.

Measured on models of all families, random and trained: right layers differ by 0.2 to 1.9 times that effect. Layers that
leave out an adapter with a tenth of the norm of the attention's weights differ by 4.5 times and more.
"""

Reference = list[tuple[Probe, Tensor]]
"""Probes, each with the module's own logits."""

KEPT = "_verified_by_drafttree"
"""Name of the attribute by which a module keeps its `_Kept`."""


class OwnLogits:
    """A module's own logits of probes, each computed once, when a check first needs them.

    Args:
        module: the untouched module.
        packed: its packed weights, if they multiply in place of its linear layers; None if those multiply themselves.

    Attributes:
        module: as given.
    """

    def __init__(self, module: PreTrainedModel, packed: PackedModel | None = None) -> None:
        self.module = module
        self._packed = packed
        self._by_token = decodes_otherwise(module)  # asked before a check replaces anything

    @cached_property
    def behind_prefix(self) -> Reference:
        """Logits of a tree after a short text.

        Raises:
            ModelError: the module cannot be verified in a tree, its logits are not finite, or torch computes wrong ones
                since OpenMP gives it too few threads.
        """
        check_module(self.module)
        class_name = type(self.module).__name__
        try:
            with self._multiplied():
                ModuleBackend(self.module)  # refuses modules that cannot be verified in a tree
            reference = self._of(make_probes(self.module)[:1])
        except (RuntimeError, TypeError, ValueError, AttributeError) as error:
            reason = str(error).partition("\n")[0]
            raise ModelError(f"{class_name} cannot compute its own logits ({reason}); load it anew") from error
        if setting := self._limits_products(reference[0][0].shifted(logits_width(self.module))):
            dtype = str(self.module.dtype).removeprefix("torch.")
            threads = torch.get_num_threads()
            raise ModelError(
                f"{class_name} computes wrong logits in {dtype} here: torch counts on {threads} threads, and "
                f"OpenMP may give it fewer by {setting}; unset that, or call torch.set_num_threads(1)"
            )
        if not all(logits.isfinite().all() for _, logits in reference):
            raise ModelError(f"{class_name} computes no finite logits; its weights may be damaged")
        return reference

    @cached_property
    def in_trees(self) -> Reference:
        """Logits of a tree after a short text and, if the context is long enough, of a tree alone at late positions."""
        return [*self.behind_prefix, *self._of(make_probes(self.module)[1:])]

    @cached_property
    def late(self) -> Reference:
        """Logits of trees after rows near the end of the context; for modules of known families."""
        with self._multiplied():
            probes = make_late_probes(self.module)
        return self._of(probes)

    @cached_property
    def for_native(self) -> tuple[Reference, float]:
        """The reference for a `NativeBackend`, and the largest gap that is allowed."""
        with told_of_training(self.module):
            reference = [*self.behind_prefix, *self.late]
        return reference, self.allowed_gap(INT8_ROWS if quantized_layers(self.module) else 0.0)

    def allowed_gap(self, unit: float = 0.0) -> float:
        """The largest gap to the module's logits that rounding explains if they are computed in another way.

        Args:
            unit: relative rounding of the inputs of linear layers in that other way, 0 for that of the dtype.
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
        """The setting of OpenMP that makes torch's own products wrong, None if they are right.

        If OpenMP gives torch fewer threads than it counts on, some products leave out the missing threads' shares, and
        keep the old contents of that memory. Which products do so depends on processor and dtype. So logits are
        compared with those of one thread.

        Args:
            probe: a probe that was not computed before, since the memory might still have its right results.
        """
        threads = torch.get_num_threads()
        if input_device(self.module).type != "cpu" or not (setting := limit_of_threads(threads)):
            return None
        with a_single_thread():
            limited_logits = self._logits(probe)
        torch.set_num_threads(1)
        try:
            single_thread_logits = self._logits(probe)
        finally:
            torch.set_num_threads(threads)
        is_right = relative_gap(limited_logits, single_thread_logits) <= tolerance(self.module.dtype)
        return None if is_right or not single_thread_logits.isfinite().all() else setting

    def _multiplied(self) -> AbstractContextManager[None]:
        return self._packed.multiplies_for(self.module) if self._packed else nullcontext()


def verify_once(module: PreTrainedModel) -> ModuleBackend:
    """The backend of a module, verified once and again after every change of the module.

    Raises:
        ModelError: the module cannot be verified in a tree.
    """
    holder: _Kept | None = vars(module).get(KEPT)
    if holder is None:
        holder = _Kept(SelectedBackend(module, lambda module: verify(OwnLogits(module))))
        setattr(module, KEPT, holder)
    else:
        holder.selected.refresh()
    return holder.selected.backend


class _Kept:
    """Keeps the verified backend on its module, so that both are freed together. Copies of the module get None."""

    def __init__(self, selected: SelectedBackend[PreTrainedModel, ModuleBackend]) -> None:
        self.selected = selected

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


@unrounded_activations()
def verify(module_logits: OwnLogits) -> ModuleBackend:
    """Make a module's backend and check that its tree pass gives the module's own logits.

    Raises:
        ModelError: the logits differ, or the module cannot be verified in a tree.
    """
    module = module_logits.module
    with told_of_training(module):
        reference = module_logits.in_trees
        backend = ModuleBackend(module)
        if reason := _incompatibility(backend, reference, tolerance(module.dtype)):
            raise ModelError(f"{type(module).__name__} cannot be verified in a tree: {reason}")
    return backend


@contextmanager
def told_of_training(module: PreTrainedModel) -> Iterator[None]:
    """Context manager: if the module is in training mode, a `ModelError` says that instead."""
    try:
        yield
    except ModelError as error:
        if not any(submodule.training for submodule in module.modules()):
            raise
        class_name = type(module).__name__
        raise ModelError(
            f"{class_name} cannot be verified in a tree: it is in training mode; call its eval()"
        ) from error


def _incompatibility(backend: ModuleBackend, reference: Reference, allowed_gap: float) -> str | None:
    """The reason why a module's tree pass is wrong, None if it is right."""
    try:
        gap = largest_gap(backend, reference)
    except NoTreeError:
        return "its attention layers do not pass the tree on"
    except ModelError as error:
        return str(error)
    except Exception as error:  # a module made for other passes may raise anything
        first_line = str(error).partition("\n")[0]
        return f"a pass over one fails ({type(error).__name__}: {first_line})"
    return None if gap <= allowed_gap else f"its logits there differ by {gap:.3g} from its own"


def largest_gap(backend: Backend, reference: Reference) -> float:
    """The largest `relative_gap` between a backend's logits of probes and the module's own."""
    return max(relative_gap(tree_logits(backend, probe), logits) for probe, logits in reference)


@contextmanager
def _extra_rounding(module: PreTrainedModel, unit: float) -> Iterator[None]:
    """Context manager: change the inputs of all linear layers at random, each number by at most `unit` of its size.

    This shows how far the logits of this very model move when sums are rounded in other places. No constant could tell:
    the effect grows with depth, and a wrong layer may move logits less in one model than rounding does in another.
    """
    generator = torch.Generator(module.device).manual_seed(0)  # the user's own draws stay as they are

    def change(_: nn.Module, args: tuple[Tensor]) -> Tensor:
        noise = torch.rand(args[0].shape, generator=generator, device=args[0].device) - 0.5
        return (args[0] * (1 + 2 * unit * noise)).to(args[0].dtype)

    with ExitStack() as undo:
        for layer in module.modules():
            if isinstance(layer, nn.Linear | QuantizedLinear):
                undo.callback(layer.register_forward_pre_hook(change).remove)
        yield
