"""What is printed of batch sizes that were made by hand."""

from dataclasses import replace

import pytest

from drafttree.measure.interval import Interval
from drafttree_lab.display.batch import show_batch
from drafttree_lab.load.batch import BatchBench
from drafttree_lab.load.batch_turns import TextDifference
from lab_helpers.batch_runs import row

RESULT = BatchBench(
    rows=[row(1, Interval(2.0, 1.9, 2.1)), row(16, None, predicted_gain=None)],
    target="TargetModel",
    threads=2,
    prompts=8,
    texts=40,
    differences=[],
    drafter_failures=0,
    alone=16,
    transformers="not measured: no such attention",
)


@pytest.fixture
def shown(capsys):
    def show(result=RESULT):
        show_batch(result)
        return capsys.readouterr().out

    return show


def test_ratios_stand_with_their_intervals(shown):
    lines = [line.split() for line in shown().splitlines()]
    own, other = (next(line for line in lines if line[:1] == [size]) for size in ("1", "16"))
    assert own[:6] == ["1", "3", "10.0", "2.00", "[1.90,", "2.10]"]
    assert other[:4] == ["16", "3", "160.0", "-"]


def test_what_was_drafted_stands_beside_what_was_expected(shown):
    assert "3.5      75%  2.50          2.40            1.90" in shown()


def test_what_was_not_run_is_said(shown):
    said = shown()
    assert "transformers: not measured: no such attention" in said
    assert "first 4 prompts of each turn at 16" in said
    assert "8 different prompts: larger batches hold some of them more than once" in said


def test_a_failing_drafter_is_told(shown):
    assert "FAILED" not in shown()
    assert "the drafter FAILED in 7 rounds" in shown(replace(RESULT, drafter_failures=7))


def test_texts_that_differ_are_counted_and_listed_ties_last(shown):
    assert "texts: 40 of 40 are plain decoding's token for token\n" in shown()
    tie = TextDifference(4, 0, "fixed 2", 1, 7, 2e-6, True)
    said = shown(replace(RESULT, differences=[tie, replace(tie, way="speculative", gap=0.3, tie=False)]))
    assert "38 of 40 are plain decoding's token for token, 1 differ by a tie, 1 DIFFER" in said
    assert said.index("speculative: batch 4, turn 0, prompt 1, token 7: best logits 3.00e-01 apart\n") < said.index(
        "fixed 2: batch 4, turn 0, prompt 1, token 7: best logits 2.00e-06 apart (tie)\n"
    )
