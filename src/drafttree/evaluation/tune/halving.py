"""Successive halving: many ways over few texts, the better half of them over twice as many, and so on.

Ways run by turns, and each is judged by its decoding speed over plain decoding's on the same texts. Time is the sum of
what the runs took, not a clock: runs that were kept of an earlier process count as they did then, and the same results
give the same choice.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from drafttree.engine.metrics import Metrics
from drafttree.measure.driver import by_turns
from drafttree.measure.interval import Interval
from drafttree.measure.law import SpeedupLaw
from drafttree.measure.method import PLAIN

FIRST_TEXTS = 2
"""Texts of every way in the first rung, unless it is told otherwise."""
LEAST_PROMPTS = 3
"""With fewer, nothing can be said about other prompts."""


@dataclass(frozen=True)
class Timed:
    """One text.

    Attributes:
        metrics: metrics of its decoding.
        seconds: seconds that the text took, with what had to be done before it.
    """

    metrics: Metrics
    seconds: float


@dataclass(frozen=True)
class Rung:
    """A step of successive halving.

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
        """Run the first texts in all ways, as far as they have not been; return whether the time was enough.

        Args:
            ways: the names of the ways; each text begins with another one.
            texts: the number of texts.
            until: no run begins when so many seconds are spent.
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

    def totals(self, way: str) -> tuple[Metrics, Metrics]:
        """The metrics of a way and of plain decoding, over the texts that both have run."""
        pairs = self._pairs(way)
        return Metrics.total(own for _, own, _ in pairs), Metrics.total(plain for _, _, plain in pairs)

    def ratio(self, way: str) -> float:
        """Decoding speed over plain decoding's; 0 for a way without a text."""
        return SpeedupLaw.of(*self.totals(way)).decoding

    def ranked(self, ways: Iterable[str]) -> list[str]:
        """The ways that have run, the fastest first."""
        return sorted((way for way in ways if self._pairs(way)), key=self.ratio, reverse=True)

    def gain(self, way: str) -> Interval | None:
        """The gain in decoding speed over plain decoding, with its interval over prompts; None without a text.

        With fewer than `LEAST_PROMPTS` it is the interval over texts, which holds for these prompts only.
        """
        samples = self._samples(way, PLAIN)
        return Interval.of_gain_by_student(*zip(*samples, strict=True)) if samples else None

    def ratio_to(self, way: str, rival: str) -> Interval | None:
        """The decoding speed of a way over another's, with the interval that `gain` has; None without a text."""
        samples = self._samples(way, rival)
        return Interval.of_ratio_by_student(*zip(*samples, strict=True)) if samples else None

    def _samples(self, way: str, rival: str) -> list[tuple[float, float]]:
        """Seconds per token of a rival and of a way, for every sample of the interval."""
        texts: dict[int, list[tuple[float, float]]] = {}
        for text, own, other in self._pairs(way, rival):
            sample = text % self.prompts if self.prompts >= LEAST_PROMPTS else text
            texts.setdefault(sample, []).append((_seconds_per_token(other), _seconds_per_token(own)))
        return [(fmean(other for other, _ in each), fmean(own for _, own in each)) for each in texts.values()]

    def _pairs(self, way: str, rival: str = PLAIN) -> list[tuple[int, Metrics, Metrics]]:
        """The number of every text that a way and a rival have both run, with the metrics of the two."""
        other, own = self.runs.get(rival, {}), self.runs.get(way, {})
        return [(text, run.metrics, other[text].metrics) for text, run in own.items() if text in other]


def halve(race: Race, ways: Sequence[str], until: float, texts: int = FIRST_TEXTS) -> tuple[list[str], list[Rung]]:
    """The ways that ran, those of the last rung first and the best of them first, and the rungs.

    Args:
        race: runs the texts, plain decoding's in every rung.
        ways: names, without plain decoding; the first of them if the time is too short for all. What they have run in
            an earlier race is not run again.
        until: no run begins when so many seconds are spent.
        texts: texts of every way in the first rung.
    """
    race.run([PLAIN], 1, math.inf)
    kept = sum(min(len(race.runs.get(way, {})), texts) for way in ways)
    affordable = (until - race.spent) / race.runs[PLAIN][0].metrics.seconds + kept
    ways = ways[: next((most for most in range(len(ways), 1, -1) if planned_runs(most, texts) <= affordable), 1)]
    rungs, dropped = [], []
    while True:
        complete = race.run([PLAIN, *ways], texts, until)
        rungs.append(Rung(len(ways), texts, complete))
        ranked = race.ranked(ways)
        if not complete or len(ranked) <= 2:
            return ranked + dropped, rungs
        half = (len(ranked) + 1) // 2
        ways, dropped, texts = ranked[:half], ranked[half:] + dropped, 2 * texts


def planned_runs(ways: int, texts: int = FIRST_TEXTS) -> int:
    """The runs of a race that has the time for all rungs, plain decoding's included; arguments as for `halve`."""
    runs, before = 0, 0
    while True:
        runs += (ways + 1) * (texts - before)
        if ways <= 2:
            return runs
        ways, before, texts = (ways + 1) // 2, texts, 2 * texts


def _seconds_per_token(metrics: Metrics) -> float:
    return 1 / metrics.decoding_tokens_per_second
