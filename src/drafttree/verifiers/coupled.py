from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from drafttree.core.randomness import Randomness
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Verdict
from drafttree.core.vocab_ops import argmax
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

    def guide(self, logits: Tensor, position: int, randomness: Randomness) -> Tensor:
        return self._disturbed(logits, randomness.gumbel(position))

    def verify(self, tree: DraftTree, logits: Tensor, position: int, randomness: Randomness) -> Verdict:
        randomness.begin(position)

        def choose(rows: Tensor, depth: int | Tensor) -> Tensor:
            if isinstance(depth, int):
                return argmax(self._disturbed(rows, randomness.gumbel(position + 1 + depth)))
            ahead = [randomness.gumbel(position + 1 + level) for level in range(tree.levels + 1)]
            return argmax(self._disturbed(rows, torch.stack(ahead)[depth]))

        return walk(tree, logits, choose)

    def _disturbed(self, logits: Tensor, row: Tensor) -> Tensor:
        """Logits `[..., width]` and noise `[..., vocab]`, which is cut or filled to their width, added."""
        width = logits.shape[-1]
        row = row[..., :width]
        return self.sampling.process(logits) + pad(row, (0, width - row.shape[-1]))
