import math
from typing import ClassVar

from drafttree.core.tree import Proposal
from drafttree.verifiers.base import SamplingVerifier, TreeView


class LossyTypical(SamplingVerifier):
    """Accept what is not too improbable: Medusa's typical acceptance. LOSSY: the text does not follow the target.

    A node is accepted if its probability exceeds min(epsilon, alpha * exp(-entropy)); of the longest accepted paths
    the likeliest is taken, and the bonus is the target's most probable token.
    """

    source: ClassVar[str] = "Medusa (Cai et al. 2024), typical acceptance"
    proposal: ClassVar[Proposal] = Proposal.TOP_K
    lossless: ClassVar[bool] = False

    epsilon: ClassVar[float] = 0.09
    alpha: ClassVar[float] = 0.3

    def judge(self, view: TreeView) -> tuple[list[int], int]:
        inner_nodes = [node for node, children in enumerate(view.children) if children]
        rows = {node: view.target(node) for node in inner_nodes}
        entropies = [-(row * (row + 1e-5).log()).sum() for row in rows.values()]
        drafted_probs = {child: rows[node][view.tokens[child]] for node in inner_nodes for child in view.children[node]}
        numbers = view.read([*entropies, *drafted_probs.values()])
        threshold = {
            node: math.log(min(self.epsilon, self.alpha * math.exp(-entropy)))
            for node, entropy in zip(inner_nodes, numbers, strict=False)
        }
        chances = zip(drafted_probs, numbers[len(inner_nodes) :], strict=True)
        logprob = {child: math.log(chance) if chance else -math.inf for child, chance in chances}
        best_candidate: tuple[list[int], float] = ([0], 0.0)
        stack = [best_candidate]
        while stack:
            path, likelihood = stack.pop()
            best_candidate = max(best_candidate, (path, likelihood), key=lambda found: (len(found[0]), found[1]))
            accepted = (child for child in reversed(view.children[path[-1]]) if logprob[child] > threshold[path[-1]])
            stack += [([*path, child], likelihood + logprob[child]) for child in accepted]
        return best_candidate[0], int(view.target(best_candidate[0][-1]).argmax())
