"""Runs of an engine: which rounds are of the steady state, and what they amount to."""

import pytest

from drafttree.engine.batching import EngineRound
from drafttree.evaluation.bench.batch_run import BatchRun, SteadyRounds


def turn(batch, committed, *, prefill_rows=0, drafted=0, expected=None):
    return EngineRound(
        batch=batch,
        waiting=0,
        drafted=drafted,
        rows=batch + drafted + prefill_rows,
        prefill_rows=prefill_rows,
        committed=committed,
        draft_passes=2 if drafted else 0,
        draft_seconds=0.25 if drafted else 0.0,
        target_seconds=0.5,
        seconds=1.0,
        expected=expected,
    )


def test_the_steady_state_is_a_full_batch_without_prompts():
    rounds = [
        turn(2, 9, prefill_rows=5, drafted=3, expected=4.0),
        turn(2, 5, drafted=6, expected=4.5),
        turn(2, 2),
        turn(1, 3, drafted=2, expected=2.0),
    ]
    found = SteadyRounds.of(rounds, 2)
    assert found == SteadyRounds(
        requests=4,
        rounds=2,
        committed=7,
        expected=6.5,
        seconds=2.0,
        drafted=6,
        drafting=1,
        draft_passes=2,
        draft_seconds=0.25,
        target_seconds=1.0,
    )
    assert found.tokens_per_second == 3.5


def test_rounds_of_several_runs_are_added():
    parts = [SteadyRounds.of([turn(size, size)], size) for size in (1, 3)]
    found = SteadyRounds.total(parts)
    assert (found.rounds, found.requests, found.committed, found.seconds) == (2, 4, 4, 2.0)


def test_without_a_steady_state_there_is_no_speed():
    assert SteadyRounds.of([turn(1, 1)], 2).tokens_per_second == 0


def test_the_speed_end_to_end_counts_every_text():
    assert BatchRun([[1, 2, 3], [4]], 2.0, SteadyRounds()).tokens_per_second == pytest.approx(2.0)
