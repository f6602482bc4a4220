"""The drafter's logits as a tree policy sees them: constrained, divided by a temperature, guided by the verifier."""

from collections.abc import Callable, Sequence

from torch import Tensor

from drafttree.core.randomness import RoundRandomness
from drafttree.drafters.base import DraftLogits
from drafttree.verifiers.base import Verifier

Path = tuple[int, ...]
Constrain = Callable[[list[Path], Tensor], Tensor]
"""Changes the logits `[1, frontier, vocab]` behind these paths of drafted tokens."""


class AdjustedDraft:
    """A drafter's logits for one round, adjusted in one place.

    Args:
        draft: the drafter's logits, a level at a time.
        verifier: may show its randomness to the drafter.
        randomness: of this round, one per sequence.
        temperature: divides the drafter's logits.
        constrain: keeps drafted tokens to what the text may be; None for a text without constraints. It needs the
            frontier's tokens on the host.
    """

    def __init__(
        self,
        draft: DraftLogits,
        verifier: Verifier,
        randomness: Sequence[RoundRandomness],
        temperature: float = 1.0,
        constrain: Constrain | None = None,
    ) -> None:
        self._draft, self._verifier, self._randomness = draft, verifier, randomness
        self._temperature, self._constrain = temperature, constrain
        self._depth, self._paths = 0, [()]

    @property
    def source(self) -> int:
        """Which of the drafter's models has given the logits of this round."""
        return getattr(self._draft, "source", 0)

    def root(self) -> Tensor:
        self._depth, self._paths = 0, [()]
        return self._adjust(self._draft.root())

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        if self._constrain:
            nodes = zip(tokens[0].tolist(), origins[0].tolist(), strict=True)
            self._paths = [(*self._paths[origin], token) for token, origin in nodes]
        return self._adjust(self._draft.expand(tokens, origins))

    def _adjust(self, logits: Tensor) -> Tensor:
        self._depth += 1
        if self._constrain:
            logits = self._constrain(self._paths, logits)
        if self._temperature != 1:
            logits = logits / self._temperature
        return self._verifier.guide(logits, self._depth, self._randomness)
