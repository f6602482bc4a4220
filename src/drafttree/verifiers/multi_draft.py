from typing import ClassVar

from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView, ratio, residual


class GreedyMultiDraft(SamplingVerifier):
    """The drafter's best tokens and one drawn from the rest: the optimal use of such children. SpecHub is k = 2.

    The drawn child is judged first; what is left of the target then falls on one of the best tokens or is the bonus.
    """

    source: ClassVar[str] = "Greedy multi-draft (arXiv 2502.18779); SpecHub (Sun et al. 2024) for two children"
    proposal: ClassVar[Proposal] = Proposal.TOP_K_PLUS_SAMPLE

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        path = [0]
        while children := view.children[path[-1]]:
            p, q = view.target(path[-1]), view.draft(path[-1])
            token = view.tokens[children[-1]]
            if view.randomness.accept(ratio(p, q, token)):
                path.append(children[-1])
                continue
            bonus = view.randomness.draw(residual(p, q))
            best = [child for child in children[:-1] if view.tokens[child] == bonus]
            if not best:
                return path, bonus
            path += best
        return path, view.randomness.draw(view.target(path[-1]))
