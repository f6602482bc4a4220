"""A race by successive halving: all ways write few texts, the better half writes twice as many, and so on.

Each way is judged by its decoding speed over plain decoding's on the same texts. Time is not a clock's, but the sum of
the runs' own times: runs that were stored by an earlier process count as they did then, and the same results give the
same choice.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from drafttree.engine.metrics import Metrics
from drafttree.measure.driver import by_turns
from drafttree.measure.interval import Interval, Run
from drafttree.measure.law import Speedup
from drafttree.measure.method import PLAIN

FIRST_TEXTS = 2
"""Texts of every way in the first rung by default."""
LEAST_PROMPTS = 3
"""The fewest prompts for an interval over prompts; fewer say nothing about other prompts."""


@dataclass(frozen=True)
class Timed:
    """The cost of a text.

    Attributes:
        metrics: the metrics of the text.
        seconds: seconds of the text and of what had to be done before it, such as a warm-up.
    """

    metrics: Metrics
    seconds: float


@dataclass(frozen=True)
class Rung:
    """A step of a race.

    Attributes:
        ways: the number of ways still in the race, without plain decoding.
        texts: texts per way, those of earlier rungs included.
        complete: whether all texts were written before the time was up.
    """

    ways: int
    texts: int
    complete: bool


class Race:
    """Writes the texts of several ways alternately.

    Args:
        measure: writes a text, given the name of the way and the number of the text.
        prompts: the number of prompts; text n continues prompt n modulo this.
        spent: seconds spent before the race.

    Attributes:
        spent: seconds spent before the race and by all runs.
        runs: all runs, by way and number of the text.
    """

    def __init__(self, measure: Callable[[str, int], Timed], prompts: int, spent: float = 0.0) -> None:
        self.measure = measure
        self.prompts = prompts
        self.spent = spent
        self.runs: dict[str, dict[int, Timed]] = {}

    def run(self, ways: Sequence[str], texts: int, time_limit: float) -> bool:
        """Run the first texts in all ways, except runs that are done.

        Args:
            ways: names of the ways.
            texts: texts per way.
            time_limit: seconds; once they are spent, no run begins.

        Returns:
            Whether the time was enough.
        """
        for text, way in by_turns(ways, texts):
            way_runs = self.runs.setdefault(way, {})
            if text in way_runs:
                continue
            if self.spent >= time_limit:
                return False
            way_runs[text] = self.measure(way, text)
            self.spent += way_runs[text].seconds
        return True

    def speedup(self, way: str) -> Speedup:
        """A way compared with plain decoding, over the texts that both have run."""
        way_runs, plain_runs = self.runs.get(way, {}), self.runs.get(PLAIN, {})
        texts = [text for text in way_runs if text in plain_runs]
        return Speedup(_total(way_runs, texts), _total(plain_runs, texts))

    def ranked(self, ways: Iterable[str]) -> list[str]:
        """The ways that have run, the fastest at decoding first."""
        speeds = {way: speedup.law.decoding for way in ways if (speedup := self.speedup(way)).drafted.rounds}
        return sorted(speeds, key=speeds.__getitem__, reverse=True)

    def gain(self, way: str) -> Interval | None:
        """The gain in decoding speed over plain decoding, with its interval; None if they share no text."""
        ratio = self.ratio_to(way, PLAIN)
        if ratio is None:
            return None
        low = None if ratio.low is None else ratio.low - 1
        high = None if ratio.high is None else ratio.high - 1
        return Interval(ratio.mean - 1, low, high)

    def ratio_to(self, way: str, rival: str) -> Interval | None:
        """The ratio of two ways' decoding speeds, with its interval; None if they share no text.

        A sample is a prompt. With too few prompts it is a text, and the interval holds for these prompts only.
        """
        way_runs, rival_runs = self.runs.get(way, {}), self.runs.get(rival, {})
        texts_by_sample: dict[int, list[int]] = {}
        for text in way_runs:
            if text in rival_runs:
                texts_by_sample.setdefault(self._sample(text), []).append(text)
        if not texts_by_sample:
            return None
        way_decodings = [_decoding(way_runs, texts) for texts in texts_by_sample.values()]
        rival_decodings = [_decoding(rival_runs, texts) for texts in texts_by_sample.values()]
        return Interval.of_speeds_by_jackknife(way_decodings, rival_decodings)

    def _sample(self, text: int) -> int:
        return text % self.prompts if self.prompts >= LEAST_PROMPTS else text

    def halve(self, ways: Sequence[str], time_limit: float, texts: int = FIRST_TEXTS) -> tuple[list[str], list[Rung]]:
        """Run rung after rung, each with the better half of the ways and twice as many texts.

        Args:
            ways: names of the ways, without plain decoding, which runs in every rung. If the time is too short for all,
                the first ones race. Runs that are done are not repeated.
            time_limit: seconds; once they are spent, no run begins.
            texts: texts per way in the first rung.

        Returns:
            The ways that ran, those of the last rung first and the fastest of a rung first, and the rungs.
        """
        self.run([PLAIN], 1, math.inf)
        finished_count = sum(min(len(self.runs.get(way, {})), texts) for way in ways)
        affordable_runs = (time_limit - self.spent) / self.runs[PLAIN][0].metrics.seconds + finished_count
        way_count = len(ways)
        while way_count > 1 and planned_runs(way_count, texts) > affordable_runs:
            way_count -= 1
        ways = ways[:way_count]
        rungs = list[Rung]()
        dropped_ways = list[str]()
        while True:
            complete = self.run([PLAIN, *ways], texts, time_limit)
            rungs.append(Rung(len(ways), texts, complete))
            ranked = self.ranked(ways)
            if not complete or len(ranked) <= 2:
                return ranked + dropped_ways, rungs
            half_count = (len(ranked) + 1) // 2
            ways = ranked[:half_count]
            dropped_ways = ranked[half_count:] + dropped_ways
            texts *= 2


def planned_runs(ways: int, texts: int = FIRST_TEXTS) -> int:
    """The number of runs of a race that has time for all rungs, plain decoding's included.

    Args:
        ways: number of ways, without plain decoding.
        texts: texts per way in the first rung.
    """
    runs = 0
    previous_texts = 0
    while True:
        runs += (ways + 1) * (texts - previous_texts)
        if ways <= 2:
            return runs
        ways = (ways + 1) // 2
        previous_texts = texts
        texts *= 2


def _total(runs: Mapping[int, Timed], texts: Iterable[int]) -> Metrics:
    """The metrics of some texts together."""
    return Metrics.total(runs[text].metrics for text in texts)


def _decoding(runs: Mapping[int, Timed], texts: Iterable[int]) -> Run:
    """Tokens and decoding seconds of some texts together."""
    total = _total(runs, texts)
    return total.tokens, total.decoding_seconds
