from typing import ClassVar

from drafttree.core.lazy import Tensor, torch
from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView, normalise, ratio

STEPS, NEAR = 24, 1e-8


class KSeq(SamplingVerifier):
    """Judge the independent children of a node one after the other against a scaled target: SpecTr.

    The scale of every node on the path is found by iteration, whose every step reads a number from the device.
    """

    source: ClassVar[str] = "SpecTr (Sun et al. 2023), Algorithm 3 (K-SEQ)"
    proposal: ClassVar[Proposal] = Proposal.WITH_REPLACEMENT

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        path = [0]
        while children := view.children[path[-1]]:
            p, q = view.target(path[-1]), view.draft(path[-1])
            scale = scale_of(p, q, len(children))
            chances = view.read([ratio(p, q, view.tokens[child]) / scale for child in children])
            pairs = zip(children, chances, strict=True)
            accepted = next((child for child, chance in pairs if view.randomness.accept(chance)), None)
            if accepted is None:
                common = torch.minimum(q, p / scale)
                beta = float(common.sum())
                share = (1 - (1 - beta) ** len(children)) / beta if beta > 0 else 0.0
                return path, view.draw(normalise((p - common * share).clamp_min_(0), p))
            path.append(accepted)
        return path, view.draw(view.target(path[-1]))


def scale_of(p: Tensor, q: Tensor, count: int) -> float:
    """The rho in [1, count] at which 1 - (1 - beta)^count = rho * beta, beta(rho) = sum min(q, p / rho).

    Approached by false position (the Illinois variant) from above: the text has the target's law for any rho
    that is not below it.
    """
    common = torch.empty_like(p)

    def excess(scale: float) -> float:
        beta = float(torch.minimum(q, torch.div(p, scale, out=common), out=common).sum())
        return 1 - (1 - beta) ** count - scale * beta

    low, high, above = 1.0, float(count), excess(1.0) if count > 1 else 0.0
    if above <= 0:
        return 1.0
    below, rose = excess(high), None
    for _ in range(STEPS):
        middle = (high * above - low * below) / (above - below)
        value = excess(middle)
        if value > 0:
            low, above, below, rose = middle, value, below / 2 if rose is True else below, True
        else:
            high, below, above, rose = middle, value, above / 2 if rose is False else above, False
        if high - low < NEAR or -NEAR < value <= 0:
            break
    return high
