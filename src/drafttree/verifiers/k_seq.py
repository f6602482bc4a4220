from typing import ClassVar

import torch
from torch import Tensor

from drafttree.tree import Proposal
from drafttree.verifiers.base import Outlook, SamplingVerifier, normalise, ratio


class KSeq(SamplingVerifier):
    """Judge the independent children of a node one after the other against a scaled target: SpecTr."""

    source: ClassVar[str] = "SpecTr (Sun et al. 2023), Algorithm 3 (K-SEQ)"
    proposal: ClassVar[Proposal] = Proposal.INDEPENDENT

    def judge(self, outlook: Outlook) -> tuple[list[int], int]:
        path = [0]
        while children := outlook.children[path[-1]]:
            p, q = outlook.target(path[-1]), outlook.draft(path[-1])
            scale = scale_of(p, q, len(children))
            for child in children:
                token = outlook.tokens[child]
                if outlook.noise.accept(ratio(p, q, token) / scale):
                    path.append(child)
                    break
            else:
                return path, outlook.noise.draw(_left(p, q, scale, len(children)))
        return path, outlook.noise.draw(outlook.target(path[-1]))


def scale_of(p: Tensor, q: Tensor, count: int) -> float:
    """The rho in [1, count] at which 1 - (1 - beta)^count = rho * beta, beta(rho) = sum min(q, p / rho).

    Approached from above by bisection: the text has the target's law for any rho that is not below it.
    """
    if count == 1:
        return 1.0
    low, high, common = 1.0, float(count), torch.empty_like(p)
    for _ in range(24):
        middle = (low + high) / 2
        beta = float(torch.minimum(q, torch.div(p, middle, out=common), out=common).sum())
        if 1 - (1 - beta) ** count > middle * beta:
            low = middle
        else:
            high = middle
    return high


def _left(p: Tensor, q: Tensor, scale: float, count: int) -> Tensor:
    """The law of the next token once all children have been rejected."""
    common = torch.minimum(q, p / scale)
    beta = float(common.sum())
    accepted = 1 - (1 - beta) ** count
    return normalise((p - common.mul_(accepted / beta)).clamp_min_(0), p) if beta > 0 else p
