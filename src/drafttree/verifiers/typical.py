import math
from typing import ClassVar

from torch import Tensor

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
        best: tuple[list[int], float] = ([0], 0.0)
        below = [best]
        while below:
            path, likelihood = below.pop()
            best = max(best, (path, likelihood), key=lambda found: (len(found[0]), found[1]))
            row = view.target(path[-1])
            threshold = self._threshold(row)
            for child in reversed(view.children[path[-1]]):
                probability = float(row[view.tokens[child]])
                if probability > threshold:
                    below.append(([*path, child], likelihood + math.log(probability)))
        path, _ = best
        return path, int(view.target(path[-1]).argmax())

    def _threshold(self, row: Tensor) -> float:
        entropy = -float((row * (row + 1e-5).log()).sum())
        return min(self.epsilon, self.alpha * math.exp(-entropy))
