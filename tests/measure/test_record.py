"""Rounds in columns, and the law by them."""

import math

import pytest

from drafttree import Metrics, SpeedupLaw
from drafttree.engine.metrics import EngineRound, TextRound
from drafttree.measure import columns, describe, loops


def test_columns_hold_every_number_of_a_round_and_none_is_no_number():
    rounds = [
        EngineRound(2, 1, 4, 2, 2, 0.1, 0.5, 1.0),
        EngineRound(5, 3, 9, 2, 2, 0.1, 0.5, 1.0, batch=2, expected=4.5),
    ]
    found = columns(rounds)
    assert [*found.committed] == [2, 5]
    assert (found.batch.sum(), found.expected[1]) == (3, 4.5)
    assert math.isnan(found.expected[0])
    assert len(columns([])) == 0


def test_the_law_of_many_at_once_is_per_request_and_pass():
    plain = columns([EngineRound(4, 0, 4, 0, 0, 0.0, 1.0, 1.25, batch=4)] * 2)
    drafted = columns([EngineRound(10, 6, 12, 2, 2, 0.4, 1.5, 2.4, batch=4)] * 3)
    law = SpeedupLaw.of_rounds(drafted, plain, measured=2.0, decoding=1.9)
    found = (law.tau, law.v, law.c, law.delta, law.h, law.h0)
    assert found == pytest.approx((2.5, 1.5, 0.2, 2.0, 0.5, 0.25))
    assert law.predicted == pytest.approx(2.5 * 1.25 / (1.5 + 0.4 + 0.5))


def test_a_single_text_is_described_with_a_number_per_round():
    metrics = Metrics()
    for turn in (TextRound(2, 1, 3, 1, 1, 0.0, 0.0, 0.5, ranks=(2,)), TextRound(1, 0, 1, 0, 0, 0.0, 0.0, 0.5)):
        metrics.record(turn, 1.0)
    found = describe(metrics)
    assert (found["tokens"], found["seconds"], found["ttft"], found["tpot"]) == (3, 2.0, 1.0, 0.5)
    assert (found["committed"], found["nodes"], found["ranks"], found["mean_path_length"]) == (
        [2, 1],
        [3, 1],
        [(2,), ()],
        0.5,
    )


def test_what_loops():
    assert loops([1, 2, 3] * 16)
    assert loops([9, 8, *[1] * 48])
    assert not loops(list(range(17)) * 4)
    assert not loops([1] * 47)
