"""Mixtures of experts with linear layers for each expert, which can be quantised."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

KNOWN = {"Qwen3MoeExperts", "Gemma4TextExperts"}
"""Classes of transformers' experts that `linear_experts` splits, in the families that drafttree-native knows."""


class LinearExperts(nn.Module):
    """The experts of a layer with separate weights; transformers stacks the weights of all experts.

    Args:
        experts: transformers' experts, which these replace; their weights are not read.
        gates: by expert, the linear layer of its gates, with a weight `[inner, hidden]`.
        ups: by expert, the linear layer of its gated values, with a weight `[inner, hidden]`.
        downs: by expert, the linear layer of its output, with a weight `[hidden, inner]`.

    Attributes:
        act_fn: activation function of the gates.
    """

    def __init__(
        self, experts: Any, gates: Sequence[nn.Module], ups: Sequence[nn.Module], downs: Sequence[nn.Module]
    ) -> None:
        super().__init__()
        self.act_fn = experts.act_fn
        self.gate_proj, self.up_proj, self.down_proj = map(nn.ModuleList, (gates, ups, downs))
        self.train(experts.training)

    def forward(self, hidden_states: Tensor, top_k_index: Tensor, top_k_weights: Tensor) -> Tensor:
        """The weighted sum of the chosen experts' outputs, `[nodes, hidden]`.

        Args:
            hidden_states: `[nodes, hidden]`.
            top_k_index: the experts chosen for each node, `[nodes, chosen]`.
            top_k_weights: their weights in the sum, `[nodes, chosen]`.
        """
        sums = torch.zeros_like(hidden_states)
        for expert in top_k_index.unique().tolist():
            nodes, ranks = (top_k_index == expert).nonzero(as_tuple=True)
            rows = hidden_states[nodes]
            intermediate = self.act_fn(self.gate_proj[expert](rows)) * self.up_proj[expert](rows)
            outputs = self.down_proj[expert](intermediate) * top_k_weights[nodes, ranks, None]
            sums.index_add_(0, nodes, outputs.to(sums.dtype))
        return sums


def linear_experts(experts: Any) -> LinearExperts:
    """Split experts of a class in `KNOWN` into linear layers, whose weights are views of the stacked ones."""

    def layers(weights: Tensor) -> list[nn.Module]:
        return [_linear(weight) for weight in weights]

    gates, ups = experts.gate_up_proj.detach().chunk(2, 1)
    return LinearExperts(experts, layers(gates), layers(ups), layers(experts.down_proj.detach()))


def _linear(weight: Tensor) -> nn.Linear:
    layer = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    layer.weight = nn.Parameter(weight, requires_grad=False)
    return layer
