"""The backend that runs passes on kernels in Triton, over one text or many, on CUDA.

A token's logits do not depend on the rest of the pass, in any dtype: every kernel adds up a row's numbers in an order
that the row alone decides. So a text equals that of plain decoding however it is drafted, alone and in a batch.
`drafttree.models.backend_choice.choose_backend` compares it with the module before it prefers it.
"""

from collections.abc import Callable, Hashable, Sequence
from typing import Any

from torch import Tensor

from drafttree.models.cache.buffer_pool import PooledCache, RangePool, allocation_of
from drafttree.models.families import Architecture
from drafttree.models.fused.decoder_backend import DecoderBackend
from drafttree.models.fused.fused_layer import NormCall
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.segment import Segment
from drafttree.models.triton.launching import launching
from drafttree.models.triton.tree_inputs import TreeInputs
from drafttree.models.triton.triton_layer import TritonLayer, TritonLayerInputs, TritonProduct, row_norm


class TritonBackend(DecoderBackend):
    """Runs layers of kernels in Triton. See `DecoderBackend`.

    Args:
        module: a model for which `why_not_triton` returns None, or a draft head that describes itself.

    Attributes:
        inputs: makes the inputs of all passes. KV caches are of its pool.

    A pass raises `KernelError` if one of its kernels does not compile.

    Raises:
        AttributeError: a layer is not like those of its family.
        ValueError: a weight or a norm is not one that the kernels know.
    """

    name = "TritonBackend"
    exact_text = True

    def __init__(self, module: Any) -> None:
        super().__init__(module)
        self._module = module
        query_shapes = {layer.query_shape for layer in self._triton_layers}
        self.inputs = TreeInputs(RangePool(self.layout), self.layout, query_shapes)

    def make_layers(self, architecture: Architecture) -> Sequence[TritonLayer]:
        blocks = architecture.blocks
        next_norms = [*(block.before_attention for block in blocks[1:]), architecture.norm]
        layers = []
        for index, (block, next_norm) in enumerate(zip(blocks, next_norms, strict=True)):
            layers.append(TritonLayer(block, index, next_norm))
        self._triton_layers = layers
        return layers

    def make_layer_inputs(self, architecture: Architecture) -> Callable[[Tensor, Tensor], Tensor | None]:
        if architecture.layer_inputs is None:
            return lambda tokens, x: None
        return TritonLayerInputs(architecture.layer_inputs, len(architecture.blocks))

    def make_norm(self, norm: Any) -> NormCall:
        return row_norm(norm)

    def make_product(self, layer: Any) -> TritonProduct:
        return TritonProduct(layer)

    def group_of(self, segment: Segment) -> Hashable:
        """See `DecoderBackend`; a text that began on another backend has rows elsewhere, and passes of its own."""
        return segment.cache.long_rope, id(allocation_of(segment.cache))

    def make_inputs(self, segments: Sequence[Segment], states: Tensor) -> PassInputs:
        self.inputs.make_room(segments, self.empty)
        return self.inputs.unrecorded(segments, states)

    def new_cache(self, capacity: int) -> PooledCache:
        return PooledCache(self.layout, capacity, self.inputs.pool)

    def run_layers(
        self, inputs: PassInputs, hidden_layers: tuple[int, ...], long_rope: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        with launching(self._module, self.empty):
            return super().run_layers(inputs, hidden_layers, long_rope)

    def logits(self, x: Tensor) -> Tensor:
        with launching(self._module, self.empty):
            return super().logits(x)
