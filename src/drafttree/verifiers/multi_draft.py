from typing import ClassVar

from drafttree.core.tree import Proposal
from drafttree.verifiers.base import Outlook, SamplingVerifier, ratio, residual


class GreedyMultiDraft(SamplingVerifier):
    """The drafter's best tokens and one drawn from the rest: the optimal use of such children. SpecHub is k = 2.

    The drawn child is judged first; what is left of the target then falls on one of the best tokens or is the bonus.
    """

    source: ClassVar[str] = "Greedy multi-draft (arXiv 2502.18779); SpecHub (Sun et al. 2024) for two children"
    proposal: ClassVar[Proposal] = Proposal.HUB

    def judge(self, outlook: Outlook) -> tuple[list[int], int]:
        path = [0]
        while children := outlook.children[path[-1]]:
            p, q = outlook.target(path[-1]), outlook.draft(path[-1])
            token = outlook.tokens[children[-1]]
            if outlook.noise.accept(ratio(p, q, token)):
                path.append(children[-1])
                continue
            bonus = outlook.noise.draw(residual(p, q))
            best = [child for child in children[:-1] if outlook.tokens[child] == bonus]
            if not best:
                return path, bonus
            path += best
        return path, outlook.noise.draw(outlook.target(path[-1]))
