from typing import ClassVar

from torch import Tensor
from torch.nn.functional import pad

from drafttree.distributions import Sampling
from drafttree.noise import Noise
from drafttree.rows import argmax
from drafttree.tree import DraftTree, Verdict
from drafttree.verifiers.base import Verifier, walk


class Coupled(Verifier):
    """The token at position i is argmax(target logits + Gumbel noise of (seed, i)); a node is accepted iff it is that.

    The text is a function of prompt and seed alone, the same with any drafter, any tree, or none, so it has the
    target's law whatever the policy does. The drafter's logits get the same noise: a drafter close to the target then
    proposes the very token that will be drawn.
    """

    source: ClassVar[str] = "Gumbel-max coupling (Maddison et al. 2014; Daliri et al. 2025)"

    @classmethod
    def refuses(cls, sampling: Sampling) -> str | None:
        if sampling.greedy:
            return "draws at random; at temperature 0 use 'greedy'"
        return None

    def guide(self, logits: Tensor, position: int, noise: Noise) -> Tensor:
        width = logits.shape[-1]
        row = noise.gumbel(position)[..., :width]
        return self.sampling.process(logits) + pad(row, (0, width - row.shape[-1]))

    def verify(self, tree: DraftTree, logits: Tensor, position: int, noise: Noise) -> Verdict:
        noise.begin(position)
        return walk(tree, logits, lambda rows, depth: argmax(self.guide(rows, position + 1 + depth, noise)))
