"""Runs of an engine: which rounds are of the steady state, and what they amount to."""

import pytest

import drafttree
from drafttree.engine.metrics import Round
from drafttree_lab.load.batch_run import BatchRun, EngineWay, SteadyRounds, TimedRound


def turn(batch, committed, *, prefill_rows=0, drafted=0, expected=None, gain=None):
    """A round of a second, and as much again until the next one."""
    done = Round(
        batch=batch,
        nodes=batch + drafted,
        prefill_rows=prefill_rows,
        committed=committed,
        accepted=committed - batch,
        levels=2 if drafted else 0,
        draft_passes=2 if drafted else 0,
        draft_seconds=0.25 if drafted else 0.0,
        target_seconds=0.5,
        seconds=1.0,
        expected=expected,
    )
    return TimedRound(done, 2.0, gain)


def test_the_steady_state_is_a_full_batch_without_prompts():
    rounds = [
        turn(2, 9, prefill_rows=5, drafted=3, expected=4.0),
        turn(2, 5, drafted=6, expected=4.5, gain=1.5),
        turn(2, 2, gain=1.25),
        turn(1, 3, drafted=2, expected=2.0),
    ]
    found = SteadyRounds.of(rounds, 2)
    assert found == SteadyRounds(
        requests=4,
        rounds=2,
        committed=7,
        expected=6.5,
        seconds=4.0,
        drafted=6,
        drafting=1,
        draft_passes=2,
        draft_seconds=0.25,
        target_seconds=1.0,
        predictions=1,
        predicted_gains=1.5,
    )
    assert found.tokens_per_second == 1.75
    assert found.predicted_gain == 1.5


def test_rounds_of_several_runs_are_added():
    parts = [SteadyRounds.of([turn(size, size)], size) for size in (1, 3)]
    found = SteadyRounds.total(parts)
    assert (found.rounds, found.requests, found.committed, found.seconds) == (2, 4, 4, 4.0)


def test_without_a_steady_state_there_is_no_speed():
    found = SteadyRounds.of([turn(1, 1)], 2)
    assert (found.tokens_per_second, found.predicted_gain) == (0, None)


def test_the_speed_end_to_end_counts_every_text():
    assert BatchRun([[1, 2, 3], [4]], 2.0, SteadyRounds()).tokens_per_second == pytest.approx(2.0)


def test_an_engine_is_told_all_prompts_before_it_begins_and_kept_for_later_turns():
    decoder = drafttree.load(drafter="none", dtype="float32")
    prompts = [decoder.new_request(text).tokens for text in ("one two three four", "The old man")]
    options = {"max_new_tokens": 5, "temperature": 0.0, "ignore_eos": True}
    alone = [decoder.generate(ids, **options).tokens for ids in prompts]
    engine = EngineWay(decoder)
    for turn in (prompts, prompts[::-1]):
        run = engine.run(2, turn, **options)
        assert run.texts == (alone if turn is prompts else alone[::-1])
        assert (run.steady.rounds, run.steady.committed, run.steady.drafted) == (5, 10, 0)
        assert run.steady.seconds < run.seconds


def test_an_error_of_a_request_is_raised():
    decoder = drafttree.load(drafter="none", dtype="float32")

    def broken(*_):
        raise ValueError("no criterion")

    with pytest.raises(ValueError, match="no criterion"):
        EngineWay(decoder).run(1, [[1, 2]], max_new_tokens=3, stopping_criteria=[broken])
