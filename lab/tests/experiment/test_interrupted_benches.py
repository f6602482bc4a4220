"""A benchmark that is interrupted shows what is finished, and the same command goes on from there."""

import pytest

from drafttree.measure.run_store import RUNS, NothingFinished, RunStore
from drafttree_lab.experiment.methods import bench_policies
from drafttree_lab.experiment.overhead import measure_overhead
from drafttree_lab.micro.verifiers import bench_verifiers
from testing.interrupts import COMMAND, PROMPTS, decoder, interrupt_after


def test_without_a_store_an_interruption_is_raised():
    for measure in (
        lambda **options: bench_policies(decoder(), PROMPTS, ["chain"], repeats=1, **options),
        lambda **options: bench_verifiers(["rrsw"], nodes=[4], vocabs=[50], hidden=4, repeats=1, **options),
    ):
        with pytest.raises(KeyboardInterrupt):
            measure(progress=interrupt_after(1))


def test_an_interrupted_benchmark_shows_what_is_finished_and_goes_on(tmp_path):
    def measure(progress):
        options = {"repeats": 2, "max_new_tokens": 6, "progress": progress, "store": store}
        return bench_policies(engine, PROMPTS, ["chain"], **options)

    engine, store = decoder(), RunStore(tmp_path, COMMAND, partial=True)
    result = measure(interrupt_after(5))
    assert store.interrupted
    assert [(row.method, row.prompts) for row in result.rows if row.group == "all"] == [("plain", 2), ("chain", 2)]
    kept = (tmp_path / RUNS).read_text().splitlines()
    store, seen = RunStore(tmp_path, COMMAND, partial=True), []
    result = measure(seen.append)
    assert not store.interrupted
    assert result.prompts == 3
    assert len(seen) == 12
    lines = (tmp_path / RUNS).read_text().splitlines()
    assert (len(lines), lines[: len(kept)]) == (12, kept)
    engine, store = decoder(), RunStore(tmp_path, COMMAND, partial=True)
    assert measure(seen.append) == result
    assert engine.target.passes == 0


def test_a_benchmark_interrupted_in_its_second_repeat_shows_the_first():
    store = RunStore(partial=True)
    options = {"repeats": 3, "max_new_tokens": 6, "store": store}
    result = bench_policies(decoder(), PROMPTS, ["chain"], progress=interrupt_after(9), **options)
    assert result.prompts == 3


def test_a_benchmark_interrupted_before_anything_is_finished_says_so():
    with pytest.raises(NothingFinished, match="nothing is finished"):
        bench_policies(decoder(), PROMPTS, ["chain"], progress=interrupt_after(1), store=RunStore(partial=True))


def test_an_interrupted_overhead_goes_on(tmp_path):
    def measure(store):
        return measure_overhead(engine, PROMPTS, ["chain", "talon"], repeats=1, max_new_tokens=6, store=store)

    engine = decoder()
    measure(RunStore())
    engine.target.interrupt_at, engine.target.passes = engine.target.passes // 2, 0
    first = measure(RunStore(tmp_path, partial=True))
    assert [row.policy for row in first] == ["plain", "chain", "talon"]
    assert not any(row.operations for row in first)
    engine.target.interrupt_at, engine.target.passes = None, 0
    whole = measure(RunStore(tmp_path))
    assert [row.policy for row in whole] == ["plain", "chain", "talon"]
    assert all(row.operations for row in whole)
