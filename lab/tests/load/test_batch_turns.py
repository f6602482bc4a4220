"""Turns of ways of decoding that do nothing but note what they are given."""

from dataclasses import replace
from itertools import count
from types import SimpleNamespace

import pytest

from drafttree.measure import run_store
from drafttree.measure.run_store import NothingFinished, RunStore
from drafttree_lab.load.batch_run import BatchRun, SteadyRounds
from drafttree_lab.load.batch_turns import BatchTurns

PROMPTS = [[number] for number in range(5)]
WAYS = ("speculative", "plain", "one by one")


@pytest.fixture
def calls():
    return []


def make(calls, store=None, ways=WAYS):
    """Turns whose ways append their name, size and prompts, but for the warm-up, which is shorter."""

    def way(name):
        def decode(size, prompts, *, max_new_tokens):
            if max_new_tokens == 20:
                calls.append((name, size, [prompt[0] for prompt in prompts]))
            else:
                calls.append((name, "warm-up"))
            return BatchRun([[1] * max_new_tokens for _ in prompts], 1.0, SteadyRounds())

        return decode

    options = {"max_new_tokens": 20}
    return BatchTurns({name: way(name) for name in ways}, PROMPTS, options, 2, lambda _: None, store or RunStore())


def test_all_ways_have_the_same_prompts_and_turns_have_the_next_ones(calls):
    make(calls, ways=("plain", "speculative")).run([2], 3)
    given = {(name, tuple(rest[-1])) for name, *rest in calls if rest != ["warm-up"]}
    assert given == {(name, own) for name in ("plain", "speculative") for own in ((0, 1), (2, 3), (4, 0))}


def test_another_way_goes_first_in_every_turn(calls):
    make(calls).run([2], 3)
    timed = [name for name, *rest in calls if rest != ["warm-up"]]
    assert [timed[0], timed[3], timed[6]] == list(WAYS)


def test_each_way_is_warmed_up_once_at_every_size(calls):
    make(calls).run([1, 2], 2)
    assert sorted(name for name, *rest in calls if rest == ["warm-up"]) == sorted([*WAYS, "plain", "speculative"])


def test_prompts_are_cut_so_that_one_pass_reads_all_of_a_turn(calls):
    long = [list(range(number, number + 600)) for number in range(2)]
    found = replace(make(calls), prompts=long).run([1, 2, 64], 1)
    given = {size: turn.prompts for size, (turn,) in found.items()}
    assert given[1] == [long[0][-513:]]
    assert given[2] == [each[-257:] for each in long]
    assert sum(len(ids) - 1 for ids in given[64]) == 512


def test_texts_are_decoded_one_by_one_at_one_size_only(calls):
    found = make(calls).run([1, 2, 4], 1)
    assert {size: "one by one" in turn.runs for size, (turn,) in found.items()} == {1: False, 2: True, 4: False}


def test_a_finished_turn_is_taken_from_the_folder(calls, tmp_path):
    first = make(calls, RunStore(tmp_path / "out", {})).run([2], 2)
    done = len(calls)
    assert make(calls, RunStore(tmp_path / "out", {})).run([2], 2) == first
    assert len(calls) == done


def test_a_turn_that_the_time_has_cut_is_left_out(calls, monkeypatch):
    seconds = count()
    monkeypatch.setattr(run_store, "time", SimpleNamespace(monotonic=lambda: next(seconds)))
    store = RunStore(partial=True, minutes=4.5 / 60)  # of a second per run: a turn of three ways, and a part of another
    found = make(calls, store).run([2], 3)
    assert [turn.number for turn in found[2]] == [0]
    assert store.out_of_time


def test_nothing_finished_is_said(calls):
    with pytest.raises(NothingFinished):
        make(calls, RunStore(partial=True, minutes=-1)).run([2], 3)
