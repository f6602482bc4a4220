"""The backend that runs a whole pass in one call of drafttree-native, on a CPU.

A token's logits do not depend on what else is in the pass, in any dtype: every output of a product is summed in one
order, and attention runs by absolute positions. So a text is that of plain decoding however it is drafted, alone and
in a batch. `drafttree.models.validation.select_backend` compares it with the module before it prefers it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from drafttree.core.machine_memory import machine_memory
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.fused.fused_backend import why_not_fused
from drafttree.models.fused.int8_linear import Int8Linear
from drafttree.models.module.mtp_embedding import MtpEmbedding
from drafttree.models.module.released import ReleasedWeight, can_release
from drafttree.models.native.kernels import draft_chains, run_pass, why_not_packed
from drafttree.models.native.native_layers import Stacked, weight_place
from drafttree.models.native.packed_model import PackedModel, are_tied, packed_models
from drafttree.models.segment import Output, Segment, split, split_layers

LEFT_FREE = 0.1
"""The share of the machine's memory that packing leaves free."""


def why_not_native(module: PreTrainedModel) -> str | None:
    """Why passes of a module cannot be run in one call, None if they can be."""
    if reason := why_not_fused(module):
        return reason
    products = _products(module)
    for part in products:
        owner, name = weight_place(part)
        if not isinstance(part, nn.Linear | Int8Linear | Stacked) or name not in owner._parameters:
            return f"{type(part).__name__} is no linear layer that can be packed"
    if reason := why_not_packed(module.dtype, module.device, any(isinstance(part, Int8Linear) for part in products)):
        return reason
    memory = machine_memory()
    holders = {id(module.get_output_embeddings()): 1 + _is_tied(module)}
    copied = sum(_weight(part).nbytes for part in products if not _is_released_by(part, holders.get(id(part), 1)))
    if not copied or module in packed_models or memory is None or memory.free - copied > LEFT_FREE * memory.total:
        return None
    return f"a packed copy of its weights needs {copied / 1e9:.1f} GB, and {memory.free / 1e9:.1f} GB are free"


def reads_packed_weights(module: PreTrainedModel) -> bool:
    """Whether a module multiplies by packed weights in other places than linear layers: those of experts, say."""
    return any(isinstance(part, Stacked) for part in _products(module))


class NativeBackend:
    """Runs passes in one call. See `drafttree.models.base.Backend` for the protocol.

    Args:
        module: a model of which `why_not_native` says nothing.

    Attributes:
        packed: its packed weights.

    Raises:
        AttributeError: a layer is not as those of its family.
        ValueError: sizes of layers do not fit together.
        WrongProductError: a packed product is not its layer's.
    """

    exact_text = True
    lossy_window = None
    shares_passes = True
    fallback_reason = None

    def __init__(self, module: PreTrainedModel) -> None:
        self.device = module.device
        self._embedding: Any = module.get_input_embeddings()
        self._empty = torch.empty(0, dtype=module.dtype, device="cpu")
        self._module = module
        decoder: Any = module.get_decoder()
        head: Any = module.get_output_embeddings()
        self._vocab: int = head.out_features
        packed = packed_models.get(module)
        if packed is None or not packed.holds(module):
            packed = None
            packed_models.pop(module, None)  # two copies at once would take too much memory
            packed = packed_models[module] = PackedModel(module)
        packed.take_back()
        self.packed = packed
        self._model, self._layout = packed.model, packed.layout
        self._layers = len(decoder.layers)

    @property
    def packed_nbytes(self) -> int:
        weights = map(_weight, _products(self._module))
        return sum(weight.nbytes for weight in weights if not isinstance(weight, ReleasedWeight))

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(self._layout, capacity)

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        if not segments:
            return []
        read = self._embedding.read_states(segments) if isinstance(self._embedding, MtpEmbedding) else None
        logits, states = run_pass(self._model, segments, self._empty, hidden_layers, read)
        scored = [len(range(segment.nodes)[segment.wanted]) for segment in segments]
        own = split(logits[None, :, : self._vocab], scored)
        kept = [state.to(self._empty.dtype) for state in states]
        return [Output(*each) for each in zip(own, split_layers(segments, kept), strict=True)]

    def draft_chains(
        self, segments: Sequence[Segment], count: int, allowed: int, states: Tensor | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Draft chains behind a node of each text; states `[1, texts, hidden]` are what an MTP layer reads.

        See `draft_chains`.
        """
        allowed, output = min(allowed, self._vocab), self._layers
        return draft_chains(self._model, segments, self._empty, count, allowed, output=output, read=states)


def _products(module: PreTrainedModel) -> list[Any]:
    """All linear layers that are packed, and what else is packed as if it were one."""
    decoder: Any = module.get_decoder()
    parts = [*decoder.layers.modules()]
    linear = [part for part in parts if hasattr(part, "in_features")]
    inputs = getattr(decoder, "per_layer_model_projection", None)
    stacked = [Stacked.of(part, name) for part in parts for name, each in part._parameters.items() if _is_stacked(each)]
    return [*linear, *stacked, *([] if inputs is None else [inputs]), module.get_output_embeddings()]


def _is_stacked(weight: Any) -> bool:
    return weight is not None and len(weight.shape) == 3


def _weight(layer: Any) -> Any:
    return getattr(*weight_place(layer))


def _is_tied(module: PreTrainedModel) -> bool:
    """Whether the head has the weight of the embedding."""
    embedding = module.get_input_embeddings()
    return not isinstance(embedding, MtpEmbedding) and are_tied(embedding, module.get_output_embeddings())


def _is_released_by(layer: Any, holders: int) -> bool:
    """Whether a layer has released its weight, which so many modules have, or could."""
    return isinstance(_weight(layer), ReleasedWeight) or can_release(*weight_place(layer), holders)
