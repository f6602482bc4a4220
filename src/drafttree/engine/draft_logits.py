"""The drafter's logits as a tree policy sees them: divided by a temperature and guided by the verifier."""

from collections.abc import Sequence

from torch import Tensor

from drafttree.core.randomness import RoundRandomness
from drafttree.drafters.base import DraftLogits
from drafttree.verifiers.base import Verifier


class AdjustedDraft:
    """A draft whose logits are adjusted, for one round.

    Args:
        draft: the drafter's logits, a level at a time.
        verifier: may show its randomness to the drafter.
        randomness: of this round, one per sequence.
        temperature: divides the drafter's logits.
    """

    def __init__(
        self, draft: DraftLogits, verifier: Verifier, randomness: Sequence[RoundRandomness], temperature: float = 1.0
    ) -> None:
        self._draft, self._verifier, self._randomness, self._temperature = draft, verifier, randomness, temperature
        self._depth = 0

    def root(self) -> Tensor:
        self._depth = 0
        return self._adjust(self._draft.root())

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        return self._adjust(self._draft.expand(tokens, origins))

    def _adjust(self, logits: Tensor) -> Tensor:
        self._depth += 1
        if self._temperature != 1:
            logits = logits / self._temperature
        return self._verifier.guide(logits, self._depth, self._randomness)
