"""Replays of toy results: what is run, kept, gone on from, and told."""

import errno
import itertools
import json
import os
from dataclasses import replace

import pytest

from drafttree.errors import ModelError
from drafttree.measure import json_lines
from drafttree.measure.json_lines import UnwritableError
from drafttree.measure.reference import Difference
from drafttree.measure.run_store import RUNS, RunStore
from drafttree.policies import Chain, DynaTree
from drafttree.verifiers import RRSw
from drafttree_lab.replay import run
from drafttree_lab.replay.plan import Block, ReplayMethod
from drafttree_lab.replay.run import Runner
from testing.costs import toy_decoder
from testing.small_trees import TARGET
from testing.toy import ToyModel, greedy_text


def store(folder, **options):
    return RunStore(folder, {"command": "replay"}, partial=True, **options)


def run_replay(planned, prompts, make_decoder, measure, store, *, timed=True, compare=lambda *_: None, **options):
    runner = Runner(make_decoder, measure, prompts, store, timed=timed, compare=compare)
    return run.run_replay(planned, runner, **options)


def no_measure(task, ids):
    pytest.fail("nothing but decoding is run here")


def counts(folder):
    """The lines of the counts, in any order."""
    return sorted(line for line in (folder / RUNS).read_text().splitlines() if '"counts"' in line)


def test_every_way_is_counted_and_timed_on_every_prompt(experiment, prompts, make_decoder, tmp_path):
    (found,) = run_replay([experiment], prompts, make_decoder, no_measure, store(tmp_path))
    assert (found.done, found.tasks) == (10, 10)
    taus = {(entry.method, entry.set): entry.measured for entry in found.entries if entry.metric == "tau"}
    assert set(taus) == {(method, name) for method in ("chain", "tree") for name in ("a", "b")}
    assert all(value.prompts == 5 and value.low <= value.mean <= value.high for value in taus.values())
    assert all(entry.measured for entry in found.entries if entry.metric == "speedup")


def test_tau_is_that_of_the_texts_rounds(experiment, prompts, make_decoder, tmp_path):
    (found,) = run_replay([experiment], prompts, make_decoder, no_measure, store(tmp_path))
    made = make_decoder(ReplayMethod("toy", Chain(depth=3)))
    texts = [made.generate(ids, max_new_tokens=24, temperature=0.0, seed=0).metrics for ids in prompts["toy", "a"]]
    wanted = sum(text.tokens for text in texts) / sum(len(text.rounds) for text in texts)
    (own,) = [each for each in found.entries if (each.method, each.set, each.metric) == ("chain", "a", "tau")]
    assert own.measured.mean == pytest.approx(wanted)


def test_a_claim_has_a_verdict_over_all_sets(experiment, prompts, make_decoder, tmp_path):
    (found,) = run_replay([experiment], prompts, make_decoder, no_measure, store(tmp_path))
    (verdict,) = found.verdicts
    assert verdict.by_counts.prompts == 10
    assert verdict.by_counts.low <= verdict.by_counts.estimate <= verdict.by_counts.high
    assert verdict.by_time is None
    taus = [
        [each.measured.mean for each in found.entries if (each.method, each.metric) == (method, "tau")]
        for method in ("tree", "chain")
    ]
    assert verdict.by_counts.estimate == pytest.approx(sum(taus[0]) / sum(taus[1]))


def test_what_is_kept_is_not_run_again(experiment, prompts, make_decoder, tmp_path):
    first = run_replay([experiment], prompts, make_decoder, no_measure, store(tmp_path))
    lines, made = (tmp_path / RUNS).read_text(), len(make_decoder.made)
    assert run_replay([experiment], prompts, make_decoder, no_measure, store(tmp_path)) == first
    assert (tmp_path / RUNS).read_text() == lines
    assert len(make_decoder.made) == made


def test_a_replay_cut_short_goes_on_to_the_same_counts(experiment, prompts, make_decoder, tmp_path):
    run_replay([experiment], prompts, make_decoder, no_measure, store(tmp_path / "whole"))
    done = []

    def stop(name):
        done.append(name)
        if len(done) in (2, 5):
            raise KeyboardInterrupt

    for _ in range(3):
        kept = store(tmp_path / "cut")
        run_replay([experiment], prompts, make_decoder, no_measure, kept, progress=stop)
        with (tmp_path / "cut" / RUNS).open("a") as file:
            file.write('{"run": ["torn')  # as a crash would leave it
    assert not kept.interrupted
    RunStore(tmp_path / "cut", {"command": "replay"})
    assert counts(tmp_path / "cut") == counts(tmp_path / "whole")


def test_counts_only_times_nothing_and_shares_counts_among_results(experiment, prompts, make_decoder, tmp_path):
    other = replace(experiment, name="2")
    found = run_replay([experiment, other], prompts, make_decoder, no_measure, store(tmp_path), timed=False)
    assert [each.done for each in found] == [10, 10]
    assert len((tmp_path / RUNS).read_text().splitlines()) == 3 * 10
    assert not [entry for each in found for entry in each.entries if entry.metric == "speedup" and entry.measured]


def test_another_text_ends_the_table(experiment, prompts, make_decoder, tmp_path):
    def make(method):
        if method.drafter is None:
            return toy_decoder(ToyModel(TARGET.blurred(3.0)), None, method.policy)
        return make_decoder(method)

    for _ in range(2):  # a second command finds the same in what is kept
        kept = store(tmp_path)
        (found,) = run_replay([experiment], prompts, make, no_measure, kept)
        assert found.notes[0].startswith("chain wrote another text than AR after prompt 0 of a")
        assert (found.done, found.tasks) == (1, 10)


@pytest.mark.parametrize(("gap", "done"), [(0.5, 10), (0.7, 1)])
def test_a_text_that_differs_by_a_tie_is_counted_and_marked(experiment, prompts, make_decoder, tmp_path, gap, done):
    def make(method):
        if method.drafter is None:
            return toy_decoder(ToyModel(TARGET.blurred(3.0)), None, method.policy)
        return make_decoder(method)

    compared = []

    def compare(setting, prompt, expected, got):
        compared.append((setting.set, tuple(prompt), tuple(expected), tuple(got)))
        return Difference(3, 1, 2, gap, 0.1)  # six units of rounding are a tie

    for _ in range(2):  # a second command reads the ties in what is kept
        options = {"timed": False, "compare": compare}
        (found,) = run_replay([experiment], prompts, make, no_measure, store(tmp_path), **options)
        assert found.done == done
    taus = {(entry.method, entry.set): entry for entry in found.entries if entry.metric == "tau"}
    if done == 1:
        assert found.notes[0].endswith("than AR after prompt 0 of a, and not by a tie: token 3, gap 0.7")
        return
    assert len(compared) == sum(entry.ties for entry in taus.values())  # each once
    assert all(expected != got for _, _, expected, got in compared)
    assert found.notes[0].startswith("~ texts that differ from AR's by a tie, which rounding decides (chain: ")
    assert "the widest gap is 0.5, 5.0 units of rounding); they are counted" in found.notes[0]
    assert taus["chain", "a"].ties > 0
    assert found.verdicts[0].by_counts.prompts == 10


def test_a_method_that_fails_ends_its_table_alone(experiment, prompts, make_decoder, tmp_path):
    def make(method):
        if method.drafter == "broken":
            raise ModelError("the drafter 'broken' is none")
        return make_decoder(method)

    ways = {**experiment.blocks[0].ways, "chain": ReplayMethod("broken", Chain())}
    broken = replace(experiment, name="2", blocks=[replace(experiment.blocks[0], ways=ways)])
    ended, whole = run_replay([broken, experiment], prompts, make, no_measure, store(tmp_path), timed=False)
    assert (ended.done, ended.notes) == (0, ["the drafter 'broken' is none"])
    assert (whole.done, whole.notes) == (10, [])


def test_a_full_disk_ends_all_of_it_and_loses_nothing(experiment, prompts, make_decoder, tmp_path, monkeypatch):
    run_replay([experiment], prompts, make_decoder, no_measure, store(tmp_path / "whole"), timed=False)
    synced, sync = [], os.fsync

    def full(file):
        synced.append(file)
        if len(synced) > 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(file)

    monkeypatch.setattr(json_lines.os, "fsync", full)
    kept = store(tmp_path / "cut")
    with pytest.raises(UnwritableError, match=r"cells.jsonl: cannot be written: No space left on device"):
        run_replay([experiment], prompts, make_decoder, no_measure, kept, timed=False)
    monkeypatch.undo()
    assert len(counts(tmp_path / "cut")) == 5
    run_replay([experiment], prompts, make_decoder, no_measure, store(tmp_path / "cut"), timed=False)
    assert counts(tmp_path / "cut") == counts(tmp_path / "whole")


def test_a_law_preserving_verifier_may_write_another_text(experiment, prompts, make_decoder, tmp_path):
    ways = {"AR": ReplayMethod(None, Chain()), "sampled": ReplayMethod("toy", Chain(depth=3), RRSw)}
    settings = [replace(block.setting, temperature=1.0) for block in experiment.blocks]
    sampled = replace(experiment, blocks=[Block(setting, None, ways) for setting in settings])
    (found,) = run_replay([sampled], prompts, make_decoder, no_measure, store(tmp_path))
    assert not found.notes
    assert found.done == found.tasks


def test_when_the_minutes_are_over_nothing_begins(experiment, prompts, make_decoder, tmp_path):
    kept = store(tmp_path, minutes=1e-9)
    (found,) = run_replay([experiment], prompts, make_decoder, no_measure, kept)
    assert kept.out_of_time
    assert found.done == 0
    assert found.verdicts[0].by_counts.outcome == "not run"


def test_prompts_are_cut_to_the_papers_length(experiment, prompts, make_decoder, tmp_path):
    blocks = [replace(block, setting=replace(block.setting, prompt_tokens=2)) for block in experiment.blocks]
    run_replay([replace(experiment, blocks=blocks)], prompts, make_decoder, no_measure, store(tmp_path), timed=False)
    text = greedy_text(TARGET, [1, 2], 24)
    assert any(f'"tokens": {text}' in line for line in counts(tmp_path))


def test_other_kinds_are_measured_once_per_prompt_and_judged(experiment, prompts, make_decoder, tmp_path):
    claims = [claim.model_copy(update={"left": "tree", "right": ["chain"]}) for claim in experiment.result.claims]
    result = experiment.result.model_copy(update={"kind": "acceptance", "metrics": ["tau"], "claims": claims})
    asked = []

    def measure(task, ids):
        asked.append(tuple(ids))
        return {"AR": (1.0, 1.0), "chain": (2.0 + 0.1 * ids[0], 1.0), "tree": (3.0 + 0.1 * ids[0], 1.0)}

    for _ in range(2):
        kept = store(tmp_path)
        (found,) = run_replay([replace(experiment, result=result)], prompts, make_decoder, measure, kept)
    assert len(asked) == len(set(asked)) == 10
    assert (found.done, found.verdicts[0].by_counts.outcome) == (10, "reproduced")
    own = next(each.measured for each in found.entries if (each.method, each.set) == ("tree", "a"))
    assert own.mean == pytest.approx(3.0 + 0.1 * (1 + 4 + 7 + 3 + 2) / 5)


def test_memory_and_growth_are_measured_on_one_prompt(experiment, prompts, make_decoder, tmp_path):
    result = experiment.result.model_copy(update={"kind": "memory", "metrics": ["peak_memory"], "claims": []})

    def measure(task, ids):
        return dict.fromkeys(task.block.ways, (100.0, 1.0))

    planned = [replace(experiment, result=result)]
    (found,) = run_replay(planned, prompts, make_decoder, measure, store(tmp_path))
    assert (found.done, found.tasks) == (2, 2)


def test_methods_that_are_missing_are_told(experiment, prompts, make_decoder, tmp_path):
    absent = replace(experiment, missing={"tree": "no drafter replaces it"})
    (found,) = run_replay([absent], prompts, make_decoder, no_measure, store(tmp_path), timed=False)
    assert (found.verdicts[0].by_counts.outcome, found.verdicts[0].by_counts.said) == (
        "not run",
        "no drafter replaces it",
    )


def test_a_policy_that_learns_between_texts_sees_the_prompts_before_in_any_case(
    experiment, prompts, make_decoder, tmp_path
):
    learning = DynaTree(per_prompt=True, base_depth=2, max_depth=4, window=2, level1_top1=True)
    ways = {"AR": ReplayMethod(None, Chain()), "tree": ReplayMethod("toy", learning)}
    one = replace(experiment, blocks=[replace(experiment.blocks[0], ways=ways)])
    options = {"timed": False}
    run_replay([one], prompts, make_decoder, no_measure, store(tmp_path / "whole"), **options)

    def stop(_):
        raise KeyboardInterrupt

    for _ in range(6):  # one prompt in each process
        run_replay([one], prompts, make_decoder, no_measure, store(tmp_path / "cut"), progress=stop, **options)
        run_replay([one], prompts, make_decoder, no_measure, store(tmp_path / "cut", minutes=1e-9), **options)
    run_replay([one], prompts, make_decoder, no_measure, store(tmp_path / "cut"), **options)
    assert counts(tmp_path / "cut") == counts(tmp_path / "whole")
    decoder = make_decoder(ways["tree"])
    texts = [decoder.generate(ids, max_new_tokens=24, temperature=0.0, seed=0) for ids in prompts["toy", "a"]]
    levels = [[each.levels for each in text.metrics.rounds] for text in texts]
    kept = [json.loads(line) for line in (tmp_path / "whole" / RUNS).read_text().splitlines()]
    assert [line["result"]["levels"] for line in kept if "dynatree" in line["run"][1]] == levels


def test_texts_of_one_length_go_on_past_eos(experiment, prompts, make_decoder, tmp_path):
    asked = []

    def make(method):
        decoder = make_decoder(method)

        class Noted:
            def generate(self, ids, **options):
                asked.append(options["ignore_eos"])
                return decoder.generate(ids, **options)

        return Noted()

    for ignore in (False, True):
        blocks = [replace(each, setting=replace(each.setting, ignore_eos=ignore)) for each in experiment.blocks]
        kept = store(tmp_path / str(ignore))
        run_replay([replace(experiment, blocks=blocks)], prompts, make, no_measure, kept, timed=False)
        assert set(asked) == {ignore}
        asked.clear()


def test_the_text_of_another_target_need_not_be_the_same(experiment, prompts, make_decoder, tmp_path):
    def make(method):
        if method.lossy_window:
            return toy_decoder(ToyModel(TARGET.blurred(3.0)), None, method.policy)
        return make_decoder(method)

    ways = {"AR": ReplayMethod(None, Chain()), "window": ReplayMethod(None, Chain(), lossy_window=4)}
    one = replace(experiment, blocks=[replace(experiment.blocks[0], ways=ways)])
    (found,) = run_replay([one], prompts, make, no_measure, store(tmp_path), timed=False)
    assert (found.done, found.notes) == (5, [])


def test_results_without_a_main_claim_are_finished_one_by_one_the_smallest_first(
    experiment, prompts, make_decoder, tmp_path
):
    small = replace(
        experiment, name="2", blocks=[replace(experiment.blocks[0], ways={"AR": experiment.blocks[0].ways["AR"]})]
    )
    claims = [claim.model_copy(update={"main": True}) for claim in experiment.result.claims]
    main = replace(experiment, name="3", result=experiment.result.model_copy(update={"claims": claims}))
    order = []
    planned = [experiment, small, main]
    run_replay(planned, prompts, make_decoder, no_measure, store(tmp_path), progress=order.append, timed=False)
    assert [name for name, _ in itertools.groupby(order)] == ["toy/3", "toy/2", "toy/1"]
