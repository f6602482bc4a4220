"""Whether drafting pays at a batch size, from the tokens and the time of rounds with and without it."""

import math
from dataclasses import dataclass

MEMORY = 16.0
"""Rounds after which a round counts 1/e."""
SHORTEST_PAUSE, LONGEST_PAUSE = 8, 128
"""Rounds without drafts before they are tried again; each pause doubles the one before."""
ENOUGH = 3
"""Rounds with drafts, in weight, that are needed to judge them."""
PROBE = 128
"""Rounds with drafts after which a plain one shows what it costs by now."""


@dataclass
class RoundRate:
    """Tokens and time of rounds of one kind, of which the latest count most."""

    tokens: float = 0.0
    cost: float = 0.0
    weight: float = 0.0

    @property
    def value(self) -> float | None:
        """Tokens by time, None before any round."""
        return self.tokens / self.cost if self.cost else None

    def add(self, tokens: float, cost: float) -> None:
        """Count a round."""
        kept = 1 - 1 / MEMORY
        self.tokens, self.cost, self.weight = (
            kept * self.tokens + tokens,
            kept * self.cost + cost,
            kept * self.weight + 1,
        )

    def fade(self) -> None:
        """Let what was counted weigh half as much."""
        self.tokens, self.cost, self.weight = self.tokens / 2, self.cost / 2, self.weight / 2


class _Size:
    """What is known of batches of about one size."""

    def __init__(self) -> None:
        self.drafted, self.plain = RoundRate(), RoundRate()
        self.waiting = self.since_plain = 0
        self.pause = SHORTEST_PAUSE


class DraftSwitch:
    """Turns drafting off where rounds with it commit fewer tokens by time than plain ones, and tries it again later."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}

    def decide(self, batch: int) -> str | None:
        """Why not to draft in the next round of so many requests; None to draft."""
        size = self._of(batch)
        if size.waiting:
            size.waiting -= 1
            return f"drafting was {self.gain(batch) or 0:.2f} times plain decoding at this batch"
        if size.since_plain >= PROBE or not size.plain.weight:
            return "a plain round, to know what it costs"
        return None

    def observe(self, batch: int, tokens: float, cost: float, *, drafted: bool) -> None:
        """Count a round: the tokens it committed and its cost."""
        size = self._of(batch)
        if not drafted:
            size.plain.add(tokens, cost)
            size.since_plain = 0
            return
        size.drafted.add(tokens, cost)
        size.since_plain += 1
        gain = self.gain(batch)
        if gain is None or size.drafted.weight < ENOUGH:
            return
        if gain < 1:
            size.waiting, size.pause = size.pause, min(2 * size.pause, LONGEST_PAUSE)
            size.drafted.fade()
        else:
            size.pause = SHORTEST_PAUSE

    def gain(self, batch: int) -> float | None:
        """Tokens by time of drafted rounds over plain ones at about this size; None before both were seen."""
        size = self._of(batch)
        drafted, plain = size.drafted.value, size.plain.value
        return drafted / plain if drafted and plain else None

    def rate(self, batch: int) -> float | None:
        """The tokens by time of the better kind of rounds at about this size; None before any was seen."""
        size = self._of(batch)
        return max((rate for rate in (size.drafted.value, size.plain.value) if rate), default=None)

    def _of(self, batch: int) -> _Size:
        return self._sizes.setdefault(round(2 * math.log2(max(batch, 1))), _Size())
