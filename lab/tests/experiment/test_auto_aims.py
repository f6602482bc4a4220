"""What is said of rows that were made by hand."""

import math
from dataclasses import replace

import pytest

from drafttree import SpeedupLaw
from drafttree.evaluation.estimate import Estimate, RatioEstimate
from drafttree_lab.experiment.auto import AutoRow, CountedPolicy
from drafttree_lab.experiment.auto_aims import aims, shortfalls
from drafttree_lab.experiment.methods import MethodRow
from drafttree_lab.experiment.round_counts import RoundTerms
from drafttree_lab.experiment.timed_row import TimedRow


def counted(tau, cost):
    terms = RoundTerms(tau, cost, 0.0, 0.0)
    return CountedPolicy(tau, 1.0, 4.0, 2.0, terms, terms.speedup)


def timed_row(tau, v):
    law = SpeedupLaw(tau=tau, v=v, c=0.1, delta=1.0, h=0.1, h0=0.0, measured=1.0, decoding=1.0)
    return MethodRow("", "all", 2, law, law.predicted, 1.0, 0.5, 0.5, 4.0, RatioEstimate(1.0))


def row(auto, chain, talon, dynatree, timed=None):
    figures = {"auto": auto, "chain": chain, "talon": talon, "dynatree": dynatree}
    return AutoRow("own", "lookup", "books", 0.0, 2, {name: counted(*each) for name, each in figures.items()}, timed)


TIMED = TimedRow(
    best="chain",
    rows={"auto": timed_row(2.0, 2.0), "chain": timed_row(2.0, 1.5)},
    over_plain={"auto": Estimate(-0.1, 0.04), "chain": Estimate(-0.25, 0.1), "dynatree": Estimate(0.0, 0.1)},
    over_best=Estimate(-0.05, 0.02),
    limit="verification",
)
ROWS = [row((3.0, 1.0), (2.0, 1.0), (2.0, 2.0), (2.0, 1.0)), row((2.0, 2.0), (2.0, 1.0), (1.0, 2.0), (1.0, 1.0), TIMED)]


def test_the_aims_over_all_rows():
    found = aims(ROWS)
    assert [(pytest.approx(aim.value), aim.least, aim.reached) for aim in found] == [
        (0.5, 1.0, False),
        (0.0, 1.0, False),
        (1.0, 1.05, False),
        (2.0 / 0.75, 1.10, True),
        (2.0 / 1.5, 1.10, True),
        (0.9, 1.10, False),
        (0.9, 0.95, False),
        (0.94, 0.98, False),
    ]
    assert found[0].sentence.endswith("counted: 1 of 2")
    assert found[2].sentence == "mean of auto over that of the best single setting, chain, counted: 1.000 (2.00 / 2.00)"


def test_an_interval_of_one_text_reaches_no_aim():
    single = replace(TIMED, over_plain=TIMED.over_plain | {"auto": Estimate(-0.1, math.inf)})
    found = aims([replace(ROWS[0], timed=single)])
    assert not [aim for aim in found if aim.least == 0.98]


def test_rows_below_their_aims_are_listed_with_their_cause():
    name = "lookup, books, T = 0, own"
    assert list(shortfalls(ROWS)) == [
        f"{name}: 0.500 of chain, counted; verification",
        f"{name}: 0.950 ±0.020 of chain, timed; verification",
        f"{name}: below plain decoding, 0.940 at most; verification",
    ]


def test_counted_rows_alone_have_counted_aims_only():
    assert len(aims(ROWS[:1])) == 4
    assert list(shortfalls(ROWS[:1])) == []
