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
        self.measure = measure
        self.prompts = prompts
        self.spent = spent
        self.runs: dict[str, dict[int, Timed]] = {}

    def run(self, ways: Sequence[str], texts: int, until: float) -> bool:
        """Run the first texts in all ways, those that have run left out; whether the time was enough.

        No run begins when so many seconds are spent.
        """
        for text, way in by_turns(ways, texts):
            way_runs = self.runs.setdefault(way, {})
            if text in way_runs:
                continue
            if self.spent >= until:
                return False
            way_runs[text] = self.measure(way, text)
            self.spent += way_runs[text].seconds
        return True

    def speedup(self, way: str) -> Speedup:
        """A way beside plain decoding, over the texts that both have run."""
        way_runs, plain_runs = self.runs.get(way, {}), self.runs.get(PLAIN, {})
        texts = [text for text in way_runs if text in plain_runs]
        return Speedup(*(Metrics.total(runs[text].metrics for text in texts) for runs in (way_runs, plain_runs)))

    def ranked(self, ways: Iterable[str]) -> list[str]:
        """The ways that have run, those of the highest decoding speed first."""
        speeds = {way: speedup.law.decoding for way in ways if (speedup := self.speedup(way)).drafted.rounds}
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
        way_runs, rival_runs = self.runs.get(way, {}), self.runs.get(rival, {})
        texts = [text for text in way_runs if text in rival_runs]
        samples = dict.fromkeys(self._sample(text) for text in texts)
        way_decodings, rival_decodings = (
            [_decoding(runs[text].metrics for text in texts if self._sample(text) == sample) for sample in samples]
            for runs in (way_runs, rival_runs)
        )
        return Interval.of_speeds_by_jackknife(way_decodings, rival_decodings) if texts else None

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
        finished_count = sum(min(len(self.runs.get(way, {})), texts) for way in ways)
        affordable_runs = (until - self.spent) / self.runs[PLAIN][0].metrics.seconds + finished_count
        ways = ways[
            : next(
                (
                    way_count
                    for way_count in range(len(ways), 1, -1)
                    if planned_runs(way_count, texts) <= affordable_runs
                ),
                1,
            )
        ]
        rungs = list[Rung]()
        dropped_ways = list[str]()
        while True:
            complete = self.run([PLAIN, *ways], texts, until)
            rungs.append(Rung(len(ways), texts, complete))
            ranked = self.ranked(ways)
            if not complete or len(ranked) <= 2:
                return ranked + dropped_ways, rungs
            half_count = (len(ranked) + 1) // 2
            ways = ranked[:half_count]
            dropped_ways = ranked[half_count:] + dropped_ways
            texts *= 2


def planned_runs(ways: int, texts: int = FIRST_TEXTS) -> int:
    """The runs of a race that has the time for all rungs, plain decoding's included; arguments as for `Race.halve`."""
    runs = 0
    previous_texts = 0
    while True:
        runs += (ways + 1) * (texts - previous_texts)
        if ways <= 2:
            return runs
        ways = (ways + 1) // 2
        previous_texts = texts
        texts *= 2


def _decoding(texts: Iterable[Metrics]) -> Run:
    """Tokens and seconds of decoding of some texts together."""
    total = Metrics.total(texts)
    return total.tokens, total.decoding_seconds
