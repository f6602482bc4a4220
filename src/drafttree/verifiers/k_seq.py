from typing import ClassVar

from drafttree.core.lazy import Tensor, torch
from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView, normalise, ratio

STEPS = 24
NEAR = 1e-8


class KSeq(SamplingVerifier):
    """Judge the independent children of a node one after the other against a scaled target: SpecTr.

    The scale of every node on the path is found by iteration. Each step reads a number from the device.
    """

    source: ClassVar[str] = "SpecTr (Sun et al. 2023), Algorithm 3 (K-SEQ)"
    proposal: ClassVar[Proposal] = Proposal.WITH_REPLACEMENT

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        path = [0]
        while children := view.children[path[-1]]:
            p, q = view.target(path[-1]), view.draft(path[-1])
            scale = scale_of(p, q, len(children))
            chances = view.read([ratio(p, q, view.tokens[child]) / scale for child in children])
            child_chances = zip(children, chances, strict=True)
            accepted = next((child for child, chance in child_chances if view.randomness.accept(chance)), None)
            if accepted is None:
                common = torch.minimum(q, p / scale)
                beta = float(common.sum())
                share = (1 - (1 - beta) ** len(children)) / beta if beta > 0 else 0.0
                return path, view.draw(normalise((p - common * share).clamp_min_(0), p))
            path.append(accepted)
        return path, view.draw(view.target(path[-1]))


def scale_of(p: Tensor, q: Tensor, count: int) -> float:
    """The rho in [1, count] at which 1 - (1 - beta)^count = rho * beta, beta(rho) = sum min(q, p / rho).

    False position (the Illinois variant) approaches it from above, since the text has the target's law for any rho that
    is not below the solution.
    """
    common = torch.empty_like(p)

    def excess(scale: float) -> float:
        beta = float(torch.minimum(q, torch.div(p, scale, out=common), out=common).sum())
        return 1 - (1 - beta) ** count - scale * beta

    low = 1.0
    high = float(count)
    low_excess = excess(1.0) if count > 1 else 0.0
    if low_excess <= 0:
        return 1.0
    high_excess = excess(high)
    rose = None
    for _ in range(STEPS):
        middle = (high * low_excess - low * high_excess) / (low_excess - high_excess)
        middle_excess = excess(middle)
        if middle_excess > 0:
            low = middle
            low_excess = middle_excess
            high_excess = high_excess / 2 if rose is True else high_excess
            rose = True
        else:
            high = middle
            high_excess = middle_excess
            low_excess = low_excess / 2 if rose is False else low_excess
            rose = False
        if high - low < NEAR or -NEAR < middle_excess <= 0:
            break
    return high
