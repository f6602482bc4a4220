"""The Muon optimizer (Jordan et al. 2024) in float32, with one batched orthogonalisation per matrix shape.

`torch.optim.Muon` does the same update in bfloat16, one matrix at a time: several times slower on a CPU without
bfloat16 units.
"""

import torch
from torch import Tensor

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Move all singular values of matrices `[count, rows, columns]` towards 1 by Newton-Schulz iteration."""
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=1e-7)
    a, b, c = COEFFICIENTS
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Orthogonalises the momentum of each weight matrix, so that the update is equally large in every direction."""

    def __init__(self, parameters, lr: float, momentum: float = 0.95, weight_decay: float = 0.05):
        super().__init__(parameters, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self) -> None:
        for group in self.param_groups:
            by_shape: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                by_shape.setdefault(parameter.shape, []).append(parameter)
            for parameters in by_shape.values():
                self._move(parameters, group)

    def _move(self, parameters: list[Tensor], group: dict) -> None:
        updates = torch.stack([self._nesterov(parameter, group["momentum"]) for parameter in parameters])
        rows, columns = updates.shape[-2:]
        distance = group["lr"] * max(1.0, rows / columns) ** 0.5
        for parameter, update in zip(parameters, orthogonalise(updates), strict=True):
            parameter.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=distance)

    def _nesterov(self, parameter: Tensor, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        return parameter.grad.lerp(state["momentum"].lerp_(parameter.grad, 1 - momentum), momentum)
