import math
from typing import ClassVar

from torch import Tensor

from drafttree.tree import Proposal
from drafttree.verifiers.base import Outlook, SamplingVerifier


class LossyTypical(SamplingVerifier):
    """Accept what is not too improbable: Medusa's typical acceptance. LOSSY: the text does not follow the target.

    A node is accepted if its probability exceeds min(epsilon, alpha * exp(-entropy)); of the longest accepted paths
    the likeliest is taken, and the bonus is the target's most probable token.
    """

    source: ClassVar[str] = "Medusa (Cai et al. 2024), typical acceptance"
    proposal: ClassVar[Proposal] = Proposal.SELECTED
    lossless: ClassVar[bool] = False

    epsilon: ClassVar[float] = 0.09
    alpha: ClassVar[float] = 0.3

    def judge(self, outlook: Outlook) -> tuple[list[int], int]:
        path, _ = self._best(outlook, 0)
        return path, int(outlook.target(path[-1]).argmax())

    def _best(self, outlook: Outlook, node: int) -> tuple[list[int], float]:
        """The longest accepted path from a node on, and its log-likelihood."""
        row = outlook.target(node)
        threshold = self._threshold(row)
        best: tuple[list[int], float] = ([], 0.0)
        for child in outlook.children[node]:
            probability = float(row[outlook.tokens[child]])
            if probability > threshold:
                path, likelihood = self._best(outlook, child)
                likelihood += math.log(probability)
                best = max(best, (path, likelihood), key=lambda found: (len(found[0]), found[1]))
        return [node, *best[0]], best[1]

    def _threshold(self, row: Tensor) -> float:
        entropy = -float((row * (row + 1e-5).log()).sum())
        return min(self.epsilon, self.alpha * math.exp(-entropy))
