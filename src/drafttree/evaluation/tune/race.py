"""A race by successive halving: many ways over few texts, the better half of them over twice as many, and so on.

Each way is judged by its decoding speed over plain decoding's on the same texts. Time is the sum of what the runs took,
not a clock: runs that were kept of an earlier process count as they did then, and the same results give the same
choice.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from drafttree.engine.metrics import Metrics
from drafttree.measure.driver import by_turns
from drafttree.measure.interval import Interval, Run
from drafttree.measure.law import Speedup
from drafttree.measure.method import PLAIN

FIRST_TEXTS = 2
"""Texts of every way in the first rung, unless it is told otherwise."""
LEAST_PROMPTS = 3
"""With fewer, nothing can be said about other prompts."""


@dataclass(frozen=True)
class Timed:
    """What a text took: its decoding, and the seconds with what had to be done before it."""

    metrics: Metrics
    seconds: float


@dataclass(frozen=True)
class Rung:
    """A step of a race.

    Attributes:
        ways: the number of ways still in the race, plain decoding not counted.
        texts: the number of texts of each, those of earlier rungs included.
        complete: whether all of them were run before the time was up.
    """

    ways: int
    texts: int
    complete: bool


class Race:
    """Runs texts of several ways by turns.

    Args:
        measure: runs a text, by number, in one way, by name.
        prompts: the number of prompts; texts whose numbers differ by it are of the same prompt.
        spent: seconds that are spent already.

    Attributes:
        spent: these seconds and those of all runs.
        runs: the runs, by way and number of the text.
    """

    def __init__(self, measure: Callable[[str, int], Timed], prompts: int, spent: float = 0.0) -> None:
        self.measure, self.prompts, self.spent = measure, prompts, spent
        self.runs: dict[str, dict[int, Timed]] = {}

    def run(self, ways: Sequence[str], texts: int, until: float) -> bool:
        """Run the first texts in all ways, those that have run left out; whether the time was enough.

        No run begins when so many seconds are spent.
        """
        for text, way in by_turns(ways, texts):
            own = self.runs.setdefault(way, {})
            if text in own:
                continue
            if self.spent >= until:
                return False
            own[text] = self.measure(way, text)
            self.spent += own[text].seconds
        return True

    def speedup(self, way: str) -> Speedup:
        """A way beside plain decoding, over the texts that both have run."""
        own, plain = self.runs.get(way, {}), self.runs.get(PLAIN, {})
        both = [text for text in own if text in plain]
        return Speedup(*(Metrics.total(runs[text].metrics for text in both) for runs in (own, plain)))

    def ranked(self, ways: Iterable[str]) -> list[str]:
        """The ways that have run, those of the highest decoding speed first."""
        speeds = {way: each.law.decoding for way in ways if (each := self.speedup(way)).drafted.rounds}
        return sorted(speeds, key=speeds.__getitem__, reverse=True)

    def gain(self, way: str) -> Interval | None:
        """The gain in decoding speed over plain decoding, with its interval over prompts; None without a text."""
        ratio = self.ratio_to(way, PLAIN)
        if ratio is None:
            return None
        low, high = (None if end is None else end - 1 for end in (ratio.low, ratio.high))
        return Interval(ratio.mean - 1, low, high)

    def ratio_to(self, way: str, rival: str) -> Interval | None:
        """The decoding speed of a way over another's, with its interval; None without a text.

        A sample is a prompt, or a text where there are too few prompts: then the interval holds for these prompts only.
        """
        own, other = self.runs.get(way, {}), self.runs.get(rival, {})
        both = [text for text in own if text in other]
        samples = dict.fromkeys(self._sample(text) for text in both)
        ours, theirs = (
            [_decoding(runs[text].metrics for text in both if self._sample(text) == sample) for sample in samples]
            for runs in (own, other)
        )
        return Interval.of_speeds_by_jackknife(ours, theirs) if both else None

    def _sample(self, text: int) -> int:
        return text % self.prompts if self.prompts >= LEAST_PROMPTS else text

    def halve(self, ways: Sequence[str], until: float, texts: int = FIRST_TEXTS) -> tuple[list[str], list[Rung]]:
        """The ways that ran, those of the last rung first and the best of them first, and the rungs.

        Args:
            ways: names, without plain decoding, which runs in every rung; the first of them if the time is too short
                for all. What has run is not run again.
            until: no run begins when so many seconds are spent.
            texts: texts of every way in the first rung.
        """
        self.run([PLAIN], 1, math.inf)
        kept = sum(min(len(self.runs.get(way, {})), texts) for way in ways)
        affordable = (until - self.spent) / self.runs[PLAIN][0].metrics.seconds + kept
        ways = ways[: next((most for most in range(len(ways), 1, -1) if planned_runs(most, texts) <= affordable), 1)]
        rungs, dropped = list[Rung](), list[str]()
        while True:
            complete = self.run([PLAIN, *ways], texts, until)
            rungs.append(Rung(len(ways), texts, complete))
            ranked = self.ranked(ways)
            if not complete or len(ranked) <= 2:
                return ranked + dropped, rungs
            half = (len(ranked) + 1) // 2
            ways, dropped, texts = ranked[:half], ranked[half:] + dropped, 2 * texts


def planned_runs(ways: int, texts: int = FIRST_TEXTS) -> int:
    """The runs of a race that has the time for all rungs, plain decoding's included; arguments as for `Race.halve`."""
    runs, before = 0, 0
    while True:
        runs += (ways + 1) * (texts - before)
        if ways <= 2:
            return runs
        ways, before, texts = (ways + 1) // 2, texts, 2 * texts


def _decoding(texts: Iterable[Metrics]) -> Run:
    """Tokens and seconds of decoding of some texts together."""
    whole = Metrics.total(texts)
    return whole.tokens, whole.decoding_seconds
