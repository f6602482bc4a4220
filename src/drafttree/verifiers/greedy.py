from typing import ClassVar

from drafttree.core.lazy import Tensor
from drafttree.core.randomness import Randomness
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Verdict
from drafttree.core.vocab_ops import best_tokens
from drafttree.verifiers.base import Verifier, walk


class Greedy(Verifier):
    """Temperature 0: a drafted token is accepted if it is the target's most probable one; ties go to the lowest id."""

    source: ClassVar[str] = "greedy decoding"

    @classmethod
    def refuses(cls, sampling: Sampling) -> str | None:
        if not sampling.greedy:
            return f"serves temperature 0, not {sampling.temperature:g}; use 'coupled'"
        return None

    def verify(self, tree: DraftTree, logits: Tensor, randomness: Randomness) -> Verdict:
        return walk(tree, best_tokens(logits))
