"""The drafter's logits as a tree policy sees them: constrained, divided by a temperature, guided by the verifier."""

from collections.abc import Callable, Sequence
from functools import reduce

import torch
from torch import Tensor
from torch.nn.functional import pad

from drafttree.core.randomness import RoundRandomness
from drafttree.drafters.base import DraftLogits, PackedDraft
from drafttree.verifiers.base import Verifier

Path = tuple[int, ...]
Constrain = Callable[[list[Path], Tensor], Tensor]
"""Changes the logits `[1, frontier, vocab]` behind these paths of drafted tokens."""


class LogitsAdjustment:
    """What is done to a drafter's logits in one round, a level at a time.

    Args:
        verifier: may show its randomness to the drafter.
        randomness: of this round, one per sequence.
        temperature: divides the drafter's logits.
        constrain: keeps drafted tokens to what the text may be; None for a text without constraints. It needs the
            frontier's tokens on the host.
    """

    def __init__(
        self,
        verifier: Verifier,
        randomness: Sequence[RoundRandomness],
        temperature: float = 1.0,
        constrain: Constrain | None = None,
    ) -> None:
        self._verifier, self._randomness = verifier, randomness
        self._temperature, self._constrain = temperature, constrain
        self._depth, self._paths = 0, [()]

    def begin(self) -> None:
        """Go to the root, where the next logits are from."""
        self._depth, self._paths = 0, [()]

    def descend(self, tokens: Tensor, origins: Tensor) -> None:
        """Go to a new frontier, given as for `DraftLogits.expand`."""
        if self._constrain:
            nodes = zip(tokens[0].tolist(), origins[0].tolist(), strict=True)
            self._paths = [(*self._paths[origin], token) for token, origin in nodes]

    def apply(self, logits: Tensor) -> Tensor:
        """The adjusted logits of the frontier; the same tensor if there is nothing to adjust."""
        self._depth += 1
        if self._constrain:
            logits = self._constrain(self._paths, logits)
        if self._temperature != 1:
            logits = logits / self._temperature
        return self._verifier.guide(logits, self._depth, self._randomness)


class AdjustedDraft:
    """A drafter's logits for one round, adjusted in one place.

    Args:
        draft: the drafter's logits, a level at a time.
        verifier: as for `LogitsAdjustment`.
        randomness: likewise.
        temperature: likewise.
        constrain: likewise.
    """

    def __init__(
        self,
        draft: DraftLogits,
        verifier: Verifier,
        randomness: Sequence[RoundRandomness],
        temperature: float = 1.0,
        constrain: Constrain | None = None,
    ) -> None:
        self._draft = draft
        self._adjustment = LogitsAdjustment(verifier, randomness, temperature, constrain)

    @property
    def source(self) -> int:
        """Which of the drafter's models has given the logits of this round."""
        return getattr(self._draft, "source", 0)

    def root(self) -> Tensor:
        self._adjustment.begin()
        return self._adjustment.apply(self._draft.root())

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        self._adjustment.descend(tokens, origins)
        return self._adjustment.apply(self._draft.expand(tokens, origins))


class AdjustedPackedDraft:
    """The drafter's logits for a round of several requests, each adjusted in its own way. See `PackedDraft`.

    Args:
        draft: of the requests.
        adjustments: of each, for a batch of one.
    """

    def __init__(self, draft: PackedDraft, adjustments: Sequence[LogitsAdjustment]) -> None:
        self._draft, self._adjustments = draft, adjustments

    def root(self) -> Tensor:
        for adjustment in self._adjustments:
            adjustment.begin()
        return self._adjust(self._draft.root(), [1] * len(self._adjustments))

    def expand(self, tokens: Tensor, origins: Tensor, widths: Sequence[int]) -> Tensor:
        for place, (adjustment, width) in enumerate(zip(self._adjustments, widths, strict=True)):
            own = slice(place, place + 1), slice(width)
            adjustment.descend(tokens[own], origins[own])
        return self._adjust(self._draft.expand(tokens, origins, widths), widths)

    def _adjust(self, logits: Tensor, widths: Sequence[int]) -> Tensor:
        """The logits with each request's nodes adjusted; requests that need no adjustment cost nothing."""
        changed: dict[int, Tensor] = {}
        for place, (adjustment, width) in enumerate(zip(self._adjustments, widths, strict=True)):
            own = logits[place : place + 1, :width]
            if width and (adjusted := adjustment.apply(own)) is not own:
                changed[place] = adjusted
        return _replaced(logits, changed) if changed else logits


def _replaced(logits: Tensor, changed: dict[int, Tensor]) -> Tensor:
    """Logits `[batch, frontier, vocab]` with other ones for some sequences, which may know more tokens."""
    columns = max(own.shape[-1] for own in changed.values())
    dtype = reduce(torch.promote_types, [own.dtype for own in changed.values()], logits.dtype)
    known = pad(logits, (0, max(columns - logits.shape[-1], 0)), value=-torch.inf)
    replaced = known.to(dtype, copy=True)
    for place, own in changed.items():
        replaced[place, : own.shape[1], : own.shape[2]] = own[0]
    return replaced
