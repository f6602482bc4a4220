from typing import ClassVar

from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView, ratio, residual


class GreedyMultiDraft(SamplingVerifier):
    """Judge the drafter's best tokens and one drawn from the rest: optimal for such children. SpecHub is k = 2.

    The drawn child is judged first. If it is rejected, a token is drawn from the residual: a best token or the bonus.
    """

    source: ClassVar[str] = "Greedy multi-draft (arXiv 2502.18779); SpecHub (Sun et al. 2024) for two children"
    proposal: ClassVar[Proposal] = Proposal.TOP_K_PLUS_SAMPLE

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        drawn_child = {node: children[-1] for node, children in enumerate(view.children) if children}
        chances = [
            ratio(view.target(node), view.draft(node), view.tokens[child]) for node, child in drawn_child.items()
        ]
        chance = dict(zip(drawn_child, view.read(chances), strict=True))
        path = [0]
        while children := view.children[path[-1]]:
            if view.randomness.accept(chance[path[-1]]):
                path.append(children[-1])
                continue
            bonus = view.draw(residual(view.target(path[-1]), view.draft(path[-1])))
            matches = [child for child in children[:-1] if view.tokens[child] == bonus]
            if not matches:
                return path, bonus
            path += matches
        return path, view.draw(view.target(path[-1]))
