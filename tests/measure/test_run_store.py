"""Finished runs are kept, and the same command goes on from them."""

import json

import pytest

from drafttree import Generation
from drafttree.errors import ConfigError, InputError
from drafttree.evaluation import pair_sweep
from drafttree.evaluation.certify import certify
from drafttree.evaluation.pair_sweep import PairFinding, sweep_pairs
from drafttree.evaluation.toy_decoder import Reach
from drafttree.measure.reference import Difference, ReferenceRun
from drafttree.measure.run_store import RUNS, RunStore
from testing.interrupts import COMMAND, PROMPTS, decoder, interrupt_after


def unused():
    raise AssertionError("a run that is kept is run again")


@pytest.mark.parametrize(
    ("kind", "make"),
    [
        (Generation | ReferenceRun, lambda: decoder().generate(PROMPTS[0], max_new_tokens=8, temperature=1.0, seed=3)),
        (Generation | ReferenceRun, lambda: ReferenceRun([1, 2], 0.25)),
        (Generation, lambda: decoder().generate(PROMPTS[0], max_new_tokens=3, logprobs=2)),
        (Difference | None, lambda: Difference(3, None, 7, float("inf"), 0.1)),
        (Difference | None, lambda: None),
        (PairFinding, lambda: PairFinding("chain", "rrsw", "exact", 3, 1e-17, 1e-8, reach=Reach(1, 2, 3))),
        (list[Reach], lambda: [Reach(1, 2, 3)]),
    ],
)
def test_results_are_read_as_they_were(tmp_path, kind, make):
    made = RunStore(tmp_path / "new" / "folder", COMMAND).run((0, "a"), kind, make)
    again = RunStore(tmp_path / "new" / "folder", COMMAND).run((0, "a"), kind, unused)
    assert again == made
    assert type(again) is type(made)


def test_a_line_that_was_cut_short_is_run_again(tmp_path):
    store = RunStore(tmp_path / "out", COMMAND)
    for number in range(3):
        store.run((number,), int, lambda number=number: number)
    path = tmp_path / "out" / RUNS
    path.write_bytes(path.read_bytes()[:-5])
    store = RunStore(tmp_path / "out", COMMAND)
    assert store.run((1,), int, unused) == 1
    assert store.run((2,), int, lambda: 7) == 7
    assert [json.loads(line)["result"] for line in path.read_text().splitlines()] == [0, 1, 7]


def test_a_folder_is_for_one_command(tmp_path):
    RunStore(tmp_path / "out", COMMAND)
    with pytest.raises(InputError, match=r"another command \(seed = '0' there, '1' here\); name another folder"):
        RunStore(tmp_path / "out", COMMAND | {"seed": "1"})
    with pytest.raises(InputError, match="limit = None there, '3' here"):
        RunStore(tmp_path / "out", COMMAND | {"limit": "3"})


def test_other_folders_are_refused(tmp_path):
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "notes.txt").write_text("keep")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="holds files that are not runs"):
        RunStore(tmp_path / "notes", COMMAND)
    with pytest.raises(InputError, match="cannot be written"):
        RunStore(tmp_path / "file", COMMAND)
    RunStore(tmp_path / "out", COMMAND)
    (tmp_path / "out" / RUNS).write_text("no JSON\n")
    with pytest.raises(InputError, match="holds files that are not runs"):
        RunStore(tmp_path / "out", COMMAND)


def test_without_a_store_an_interruption_is_raised(monkeypatch):
    monkeypatch.setattr(pair_sweep, "text_trials", lambda *_: [])
    for measure in (
        lambda **options: certify(decoder(), PROMPTS, ["chain"], temperature=1.0, **options),
        lambda **options: sweep_pairs(["chain"], ["rrsw"], models=1, **options),
    ):
        with pytest.raises(KeyboardInterrupt):
            measure(progress=interrupt_after(1))


def test_an_interrupted_certificate_certifies_nothing_until_it_is_finished(tmp_path):
    def check(progress):
        options = {"temperature": 1.0, "max_new_tokens": 6, "progress": progress, "store": store}
        return certify(decoder(), PROMPTS, ["chain", "talon"], **options)

    store = RunStore(tmp_path, partial=True)
    certificate = check(interrupt_after(5))
    assert [entry.prompts for entry in certificate.policies] == [1, 1]  # those that all ways have written
    assert certificate.interrupted
    assert not certificate.passed
    assert not certificate.summary()["passed"]
    store = RunStore(tmp_path, partial=True)
    certificate = check(lambda _: None)
    assert [entry.prompts for entry in certificate.policies] == [3, 3]
    assert certificate.passed


def test_an_interrupted_enumeration_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(pair_sweep, "text_trials", lambda *_: [])
    pairs = {"policies": ["chain"], "verifiers": ["rrsw", "coupled"], "models": 1}
    part = sweep_pairs(**pairs, progress=interrupt_after(1), store=RunStore(tmp_path, partial=True))
    assert [finding.verifier for finding in part.findings] == ["rrsw"]
    assert not part.passed
    whole = sweep_pairs(**pairs, store=RunStore(tmp_path))
    assert whole.findings[0] == part.findings[0]
    assert whole.passed


def test_mistakes_are_not_kept(tmp_path):
    def work():
        raise ConfigError("wrong")

    store = RunStore(tmp_path)
    with pytest.raises(ConfigError), store.interruptible():
        store.run((1,), int, work)
    assert not (tmp_path / RUNS).read_text()
