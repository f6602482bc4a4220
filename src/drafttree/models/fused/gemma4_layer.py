"""Decoder layers of Gemma 4, which read more of a token than the residual stream and may have experts beside an MLP."""

from typing import Any

from torch import Tensor
from transformers import PreTrainedConfig

from drafttree.models.fused.fused_layers import LlamaLayer, PassContext, rms_norm
from drafttree.models.fused.fused_linear import fuse


class Gemma4Layer(LlamaLayer):
    """A layer of Gemma 4.

    Values are normed. Some layers have wider heads than others, keys that are values too, or those of another layer.
    What the layer gives is multiplied by a number.
    """

    def __init__(self, block: Any, config: PreTrainedConfig) -> None:
        super().__init__(block, config)
        self._index: int = block.layer_idx
        self._scalar = float(block.layer_scalar)
        self._has_experts_beside: bool = block.enable_moe_block
        if self._has_experts_beside:
            self._router, self._experts_beside = block.router, block.experts
            self._before_experts = rms_norm(block.pre_feedforward_layernorm_2)
            self._after_inner = rms_norm(block.post_feedforward_layernorm_1)
            self._after_experts = rms_norm(block.post_feedforward_layernorm_2)
        if block.hidden_size_per_layer_input:
            self._input_gate, self._input_projection = (
                fuse(block.per_layer_input_gate),
                fuse(block.per_layer_projection),
            )
            self._after_inputs = rms_norm(block.post_per_layer_input_norm)

    def forward(self, x: Tensor, context: PassContext, rows: Any) -> Tensor:
        x = super().forward(x, context, rows)
        if context.layer_inputs is not None:
            gated = self._activation(self._input_gate(x)) * context.layer_inputs[:, self._index]
            x = x + self._after_inputs(self._input_projection(gated))
        return x if self._scalar == 1 else x * self._scalar

    def _feed(self, x: Tensor) -> Tensor:
        if not self._has_experts_beside:
            return super()._feed(x)
        inner = self._after_inner(self._down(self._inner(self._norms.before_mlp(x))))
        _, shares, chosen = self._router(x)  # as the module routes them
        mixed = self._after_experts(self._experts_beside(self._before_experts(x), chosen, shares))
        norm = self._norms.after_mlp
        return x + (norm(inner + mixed) if norm else inner + mixed)
