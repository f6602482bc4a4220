"""Successive halving, over texts whose times are given."""

import math

import pytest

from drafttree.evaluation.tune.race import FIRST_TEXTS, Race, Timed, planned_runs
from helpers.timed_metrics import timed

MANY = 100
"""Prompts, more than texts."""
WAYS = ["a", "b", "c", "d", "e", "f", "g", "h"]


class Speeds:
    """Measures texts by a table of seconds, and counts them.

    Attributes:
        runs: the way and the text of every run, in order.
    """

    def __init__(self, **seconds: float) -> None:
        self.seconds, self.runs = {"plain": 1.0, **seconds}, []

    def __call__(self, way: str, text: int) -> Timed:
        self.runs.append((way, text))
        metrics = timed(self.seconds.get(way, 1.0) * (1 + 0.1 * text))
        return Timed(metrics, metrics.seconds)


def test_the_fastest_way_wins_and_each_rung_halves_the_ways_and_doubles_the_texts():
    speeds = Speeds(a=0.9, b=0.8, c=0.7, d=1.2, e=0.5, f=2.0, g=0.6, h=1.1)
    race = Race(speeds, MANY)
    ranked, rungs = race.halve(WAYS, math.inf)
    assert ranked[:2] == ["e", "g"]
    assert set(ranked) == set(WAYS)
    assert [(rung.ways, rung.texts, rung.complete) for rung in rungs] == [(8, 2, True), (4, 4, True), (2, 8, True)]
    assert race.speedup("e").law.decoding == pytest.approx(2.0)
    assert {way for way, text in speeds.runs if text >= 4} == {"plain", "e", "g"}
    assert len(speeds.runs) == len(set(speeds.runs)) == planned_runs(len(WAYS))


def test_a_second_race_begins_with_as_many_texts_as_it_is_told_and_runs_nothing_again():
    speeds = Speeds(a=0.9, b=0.8, c=0.7, d=0.6)
    race = Race(speeds, MANY)
    race.halve(["a", "b"], math.inf)
    ranked, rungs = race.halve(["a", "b", "c", "d"], math.inf, 3)
    assert ranked[0] == "d"
    assert [(rung.ways, rung.texts) for rung in rungs] == [(4, 3), (2, 6)]
    assert len(speeds.runs) == len(set(speeds.runs)) == planned_runs(4, 3)
    assert race.ratio_to("d", "a").mean == pytest.approx(1.5)
    assert race.ratio_to("d", "e") is None


def test_plain_decoding_is_run_in_every_rung_and_the_order_rotates():
    speeds = Speeds()
    Race(speeds, MANY).halve(WAYS[:2], math.inf)
    assert speeds.runs == [("plain", 0), ("a", 0), ("b", 0), ("a", 1), ("b", 1), ("plain", 1)]


def test_a_way_is_judged_on_the_texts_that_plain_decoding_has_run_too():
    race = Race(Speeds(a=0.5), MANY)
    race.run(["a"], 3, math.inf)
    assert race.speedup("a").law.decoding == 0
    assert race.ranked(["a"]) == []
    assert race.gain("a") is None
    race.run(["plain"], 2, math.inf)
    assert race.speedup("a").law.decoding == pytest.approx(2.0)
    assert race.speedup("a").drafted.tokens == 20


def test_the_gain_has_an_interval_over_texts():
    race = Race(Speeds(a=0.5), MANY)
    race.run(["plain", "a"], 1, math.inf)
    assert race.gain("a").margin == math.inf
    race.run(["plain", "a"], 4, math.inf)
    assert race.gain("a").mean == pytest.approx(1.0)
    assert race.gain("a").margin == pytest.approx(0.0, abs=1e-9)


def test_texts_of_one_prompt_are_one_sample_of_the_interval():
    seconds = {0: 0.5, 1: 0.6, 2: 0.4}

    def measure(way: str, text: int) -> Timed:
        metrics = timed(1.0 if way == "plain" else seconds[text % 3])
        return Timed(metrics, metrics.seconds)

    race = Race(measure, 3)
    race.run(["plain", "a"], 3, math.inf)
    once = race.gain("a")
    race.run(["plain", "a"], 30, math.inf)
    assert race.gain("a").mean == pytest.approx(once.mean)
    assert race.gain("a").margin == pytest.approx(once.margin)


def test_with_one_prompt_the_interval_is_that_of_its_repeats():
    race = Race(Speeds(a=0.5), 1)
    race.run(["plain", "a"], 4, math.inf)
    assert race.gain("a").margin == pytest.approx(0.0, abs=1e-9)


def test_short_time_leaves_out_the_last_ways_and_not_the_later_rungs():
    speeds = Speeds()
    affordable = planned_runs(3) * 2.2
    ranked, rungs = Race(speeds, MANY).halve(WAYS, affordable)
    assert set(ranked) == {"a", "b", "c"}
    assert rungs[-1].ways == 2
    assert rungs[-1].complete


def test_no_run_begins_when_the_time_is_up_but_one_of_plain_decoding():
    speeds = Speeds()
    ranked, rungs = Race(speeds, MANY, spent=100.0).halve(WAYS, 10.0)
    assert speeds.runs == [("plain", 0)]
    assert ranked == []
    assert not rungs[-1].complete


def test_time_that_ends_in_a_rung_ends_the_race():
    speeds = Speeds(a=30.0)
    ranked, rungs = Race(speeds, MANY).halve(["a", "b"], 20.0)
    assert [(rung.texts, rung.complete) for rung in rungs] == [(FIRST_TEXTS, False)]
    assert ranked == ["a"]
