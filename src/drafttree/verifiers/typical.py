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
        logprob, threshold = self._look(view)
        best: tuple[list[int], float] = ([0], 0.0)
        below = [best]
        while below:
            path, likelihood = below.pop()
            best = max(best, (path, likelihood), key=lambda found: (len(found[0]), found[1]))
            accepted = (child for child in reversed(view.children[path[-1]]) if logprob[child] > threshold[path[-1]])
            below += [([*path, child], likelihood + logprob[child]) for child in accepted]
        return best[0], int(view.target(best[0][-1]).argmax())

    def _look(self, view: TreeView) -> tuple[dict[int, float], dict[int, float]]:
        """The log-probability of every drafted node, and per inner node the one its children must exceed."""
        inner = [node for node, children in enumerate(view.children) if children]
        rows = {node: view.target(node) for node in inner}
        drafted = [(node, child) for node in inner for child in view.children[node]]
        entropies = [-(row * (row + 1e-5).log()).sum() for row in rows.values()]
        numbers = view.read([*entropies, *(rows[node][view.tokens[child]] for node, child in drafted)])
        entropies, chances = numbers[: len(inner)], numbers[len(inner) :]
        logprobs = {
            child: math.log(chance) if chance else -math.inf
            for (_, child), chance in zip(drafted, chances, strict=True)
        }
        lowest = [math.log(min(self.epsilon, self.alpha * math.exp(-entropy))) for entropy in entropies]
        return logprobs, dict(zip(inner, lowest, strict=True))
