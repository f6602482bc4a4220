"""The backend that runs a whole pass in one call of drafttree-native, on a CPU.

A token's logits do not depend on the rest of the pass, in any dtype. Every output of a product is summed in one order,
and attention runs by absolute positions. So a text equals that of plain decoding however it is drafted, alone and in a
batch. `drafttree.models.backend_choice.choose_backend` compares it with the module before it prefers it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from drafttree.core.machine_memory import machine_memory
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.families import Stacked, StackedExperts
from drafttree.models.fused.fused_backend import why_not_fused
from drafttree.models.module.mtp_embedding import mtp_embedding_of
from drafttree.models.module.released import ReleasedWeight, can_release
from drafttree.models.native.kernels import draft_chains, run_pass, why_not_packed
from drafttree.models.native.packed_model import PackedModel, packed_models
from drafttree.models.native.packing_plan import PackingPlan
from drafttree.models.native.products import weight_place
from drafttree.models.quantization.quantized_linear import QuantizedLinear
from drafttree.models.segment import Output, Segment, split, split_layers

LEFT_FREE = 0.1
"""Fraction of the machine's memory that packing must leave free."""


def why_not_native(module: Any) -> str | None:
    """Why passes of a module cannot run on drafttree-native, None if they can."""
    return why_not_fused(module) or why_not_packable(module)


def why_not_packable(module: Any) -> str | None:
    """Why the weights of a module cannot be packed, None if they can.

    Args:
        module: one of the known families, or a draft head that describes itself.
    """
    if reason := why_not_packed(module.dtype, module.device):
        return reason
    try:
        plan = PackingPlan(module)
    except AttributeError as error:
        return f"a layer is not as those of its family ({error})"
    layers = plan.linear_layers
    for layer in layers:
        owner, name = weight_place(layer)
        if not isinstance(layer, nn.Linear | QuantizedLinear | Stacked) or name not in owner._parameters:
            return f"{type(layer).__name__} is not a linear layer that can be packed"
    weight_formats = {layer.blocks or layer.quantized.dtype for layer in layers if isinstance(layer, QuantizedLinear)}
    if reason := why_not_packed(module.dtype, module.device, weight_formats):
        return reason
    memory = machine_memory()
    holders = {id(plan.architecture.head): 1 + plan.is_tied}
    copied_bytes = 0
    for layer in layers:
        if not _is_released_by(layer, holders.get(id(layer), 1)):
            copied_bytes += _weight(layer).nbytes
    if (
        not copied_bytes
        or module in packed_models
        or memory is None
        or memory.free - copied_bytes > LEFT_FREE * memory.total
    ):
        return None
    return f"a packed copy of its weights needs {copied_bytes / 1e9:.1f} GB, and {memory.free / 1e9:.1f} GB are free"


def reads_packed_weights(module: Any) -> bool:
    """Whether a module itself multiplies by packed weights that are in no linear layer: those of stacked experts."""
    for block in PackingPlan(module).architecture.blocks:
        if block.experts and isinstance(block.experts.weights, StackedExperts):
            return True
    return False


class NativeBackend:
    """Runs a pass in one call of drafttree-native. See `drafttree.models.base.Backend` for the protocol.

    Args:
        module: a model for which `why_not_native` returns None, or a draft head for which `why_not_packable` does.

    Attributes:
        packed: the packed model.

    Raises:
        AttributeError: a layer is not like those of its family.
        ValueError: the sizes of layers do not match.
        WrongProductError: a packed product is not its layer's.
    """

    name = "NativeBackend"
    exact_text = True
    lossy_window = None
    shares_passes = True
    fallback_reason: str | None = None

    def __init__(self, module: Any) -> None:
        self.device = module.device
        self._empty = torch.empty(0, dtype=module.dtype, device="cpu")
        self._mtp_embedding = mtp_embedding_of(module)
        packed = packed_models.get(module)
        if packed is None or not packed.holds(module):
            packed = None
            packed_models.pop(module, None)  # first, since two packed copies would take too much memory
            packed = packed_models[module] = PackedModel(module)
        packed.take_back()
        self.packed = packed
        plan = PackingPlan(module)
        architecture = plan.architecture
        self._linear_layers = plan.linear_layers
        self._model = packed.model
        self._layout = packed.layout
        self._vocab: int = architecture.head.out_features
        self._layers = len(architecture.blocks)
        # the next pass of a draft head reads these states, so they are not rounded in between
        self._states = self._empty.dtype if architecture.entry is None else torch.float32

    @property
    def packed_nbytes(self) -> int:
        weights = map(_weight, self._linear_layers)
        return sum(weight.nbytes for weight in weights if not isinstance(weight, ReleasedWeight))

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(self._layout, capacity)

    def forward(
        self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = (), states: Tensor | None = None
    ) -> list[Output]:
        """A pass; see `drafttree.models.fused.fused_backend.FusedBackend.forward`."""
        if not segments:
            return []
        if states is None and self._mtp_embedding:
            states = self._mtp_embedding.read_states(segments)
        logits, hidden_states = run_pass(self._model, segments, self._empty, hidden_layers, states)
        wanted_counts = [len(segment.wanted_nodes) for segment in segments]
        segment_logits = split(logits[None, :, : self._vocab], wanted_counts)
        layer_states = [state.to(self._states) for state in hidden_states]
        return [*map(Output, segment_logits, split_layers(segments, layer_states))]

    def draft_chains(
        self,
        segments: Sequence[Segment],
        count: int,
        allowed: int,
        states: Tensor | None = None,
        output: int | None = None,
        ids: Tensor | None = None,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draft chains behind a node of each text; see `drafttree.models.native.kernels.draft_chains`.

        Args:
            segments: the texts.
            count: tokens of a chain.
            allowed: number of leading columns of logits whose tokens may be drafted.
            states: `[1, texts, hidden]` that a draft head reads.
            output: the layer whose states its next pass reads, None for those after the last norm.
            ids: token ids by column of the logits, None if column i is token i.
        """
        allowed = min(allowed, self._vocab)
        output = self._layers if output is None else output
        arguments = self._model, segments, self._empty, count, allowed
        return draft_chains(*arguments, output=output, input_states=states, ids=ids)


def _weight(layer: Any) -> Any:
    return getattr(*weight_place(layer))


def _is_released_by(layer: Any, holders: int) -> bool:
    """Whether a layer has released its weight, or could; `holders` modules have the weight."""
    return isinstance(_weight(layer), ReleasedWeight) or can_release(*weight_place(layer), holders)
