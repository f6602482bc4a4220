"""Whether drafting pays at a batch size, from the tokens and the time of rounds with and without it."""

import math
from collections.abc import Callable
from dataclasses import dataclass

MEMORY = 16.0
"""Rounds after which a round counts 1/e."""
SHORTEST_PAUSE, LONGEST_PAUSE = 8, 512
"""Rounds without drafts before they are tried again."""
ENOUGH, FEWEST = 6.0, 1.9
"""Rounds with drafts, in weight, that are needed to judge them: of one text, and at least. A round of many texts shows
as much as many rounds of one."""
LOSS = 0.01
"""The share of all time that trying drafts may lose: the more they lost, the longer the pause."""
PLAIN_ROUNDS = 3
"""Plain rounds before the first with drafts: a single slow or quick one must not decide what they are compared with."""
FIRST_PROBE, PROBE = 16, 128
"""Rounds with drafts after which a plain one shows what it costs by now, at first and in the end."""


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
        self.drafted = RoundRate()
        self.plain = self.waiting = self.since_plain = 0
        self.probe = FIRST_PROBE
        self.lost = 0.0  # plain rounds' worth of time since the last pause


class DraftSwitch:
    """Turns drafting off where rounds with it commit fewer tokens by time than plain ones, and tries it again later.

    Args:
        plain_cost: what a plain round of so many requests costs.
        plain_rounds: plain rounds before the first with drafts, by which that becomes known.
    """

    def __init__(self, plain_cost: Callable[[int], float], plain_rounds: int = PLAIN_ROUNDS) -> None:
        self._plain_cost, self._plain_rounds = plain_cost, plain_rounds
        self._sizes: dict[int, _Size] = {}

    def decide(self, batch: int) -> str | None:
        """Why not to draft in the next round of so many requests; None to draft."""
        size = self._of(batch)
        if size.waiting:
            size.waiting -= 1
            return f"drafting was {self.gain(batch) or 0:.2f} times plain decoding at this batch"
        if size.since_plain >= size.probe or size.plain < self._plain_rounds:
            return "a plain round, to know what it costs"
        return None

    def rests(self, batch: int) -> bool:
        """Whether rounds of so many requests draft nothing at present."""
        return self._of(batch).waiting > 0

    def observe(self, batch: int, tokens: float, cost: float, *, drafted: bool, spent: float | None = None) -> None:
        """Count a round.

        Args:
            batch: requests that it has advanced.
            tokens: tokens that it has committed.
            cost: its cost without what it took once, such as reading what drafters have missed.
            drafted: whether it drafted.
            spent: its cost with all that, which decides how soon drafts are tried again.
        """
        size = self._of(batch)
        if not drafted:
            size.plain += 1
            if size.since_plain >= size.probe:
                size.probe = min(2 * size.probe, PROBE)
            size.since_plain = 0
            return
        size.drafted.add(tokens, cost)
        size.since_plain += 1
        size.lost = max(size.lost + ((spent or cost) * self._plain_rate(batch) - tokens) / batch, 0.0)
        gain = self.gain(batch) or 1.0
        if size.drafted.weight >= max(ENOUGH / batch, FEWEST) and gain < 1:
            size.waiting = round(min(max(size.lost / LOSS, SHORTEST_PAUSE), LONGEST_PAUSE))
            size.lost = 0.0
            size.drafted.fade()

    def gain(self, batch: int) -> float | None:
        """Tokens by time of drafted rounds over plain ones at about this size; None before any of the first."""
        drafted = self._of(batch).drafted.value
        return drafted and drafted / self._plain_rate(batch)

    def rate(self, batch: int) -> float:
        """The tokens by time of the better kind of rounds at about this size."""
        return max(self._of(batch).drafted.value or 0.0, self._plain_rate(batch))

    def _plain_rate(self, batch: int) -> float:
        """Tokens by time of plain rounds."""
        return batch / self._plain_cost(batch)

    def _of(self, batch: int) -> _Size:
        return self._sizes.setdefault(round(2 * math.log2(max(batch, 1))), _Size())
