"""Medusa's heads on kernels in Triton: a launch or two for each residual block, and as many for each projection."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from drafttree.models.triton.launching import launching
from drafttree.models.triton.products import activate_linear
from drafttree.models.triton.triton_layer import TritonProduct, joined_weight


class TritonHeads:
    """Heads that each are residual blocks `x + SiLU(W x + b)` and a projection, all of one input.

    Args:
        module: the heads, to which a kernel that does not compile is ascribed.
        blocks: by head, the linear layers of its blocks.
        projections: the projection of every head, or one that they share.

    Raises:
        ValueError: a weight is not one that the kernels know.
    """

    def __init__(self, module: Any, blocks: Sequence[Sequence[Any]], projections: Sequence[Any]) -> None:
        self._module = module
        self._blocks = [[joined_weight(layer) for layer in head_blocks] for head_blocks in blocks]
        self._projections = [TritonProduct(layer) for layer in projections]

    def __call__(self, contexts: Tensor) -> Tensor:
        """Map `[rows, hidden]` to `[rows, heads, outputs]`.

        Raises:
            KernelError: a kernel does not compile for so many rows.
        """
        with launching(self._module, contexts):
            outputs = list[Tensor]()
            for head_blocks in self._blocks:
                x = contexts
                for weight in head_blocks:
                    x = activate_linear(x, weight, "silu", residual=x)
                outputs.append(x)
            if len(self._projections) < len(outputs):
                (projection,) = self._projections
                rows = torch.stack(outputs, 1)
                return projection(rows.flatten(0, 1)).unflatten(0, rows.shape[:2])
            projected = [project(x) for project, x in zip(self._projections, outputs, strict=True)]
            return torch.stack(projected, 1)
