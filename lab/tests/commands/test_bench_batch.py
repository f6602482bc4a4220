"""`drafttree bench batch`: tables and JSON, and mistakes in one line."""

import json
import re

import pytest

from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.cli import decoders
from drafttree.measure import run_store
from drafttree_lab.options import PromptOptions
from testing.command_line import complaint, run

SMALL = ["--batches", "2,1,2", "--budgets", "2", "--max-new-tokens", 4, "--repeats", 2, "--no-transformers"]


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Costs that need not be measured."""
    monkeypatch.setattr(Decoder, "costs", lambda self, **_: TOY_COSTS)


@pytest.mark.usefixtures("quick")
def test_one_document_has_every_figure(prompts, tmp_path):
    options = ["--prompts", prompts, "--out", tmp_path / "out", "--json"]
    done = run("bench", "batch", *SMALL, *options)
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    assert [(row["size"], row["turns"]) for row in found["rows"]] == [(1, 2), (2, 2)]
    assert [*found["rows"][1]["end_to_end"]] == ["speculative", "plain", "fixed 2", "one by one"]
    assert (found["prompts"], found["texts"], found["differences"]) == (2, 2 * 3 + 2 * 8, [])
    assert run("bench", "batch", *SMALL, *options).stdout == done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_transformers_writes_the_same_texts(prompts):
    options = ["--batches", "1,2", "--budgets", "2", "--max-new-tokens", 4, "--repeats", 3, "--prompts", prompts]
    shown = run("bench", "batch", *options).stdout
    assert "transformers: generate_batch of transformers" in shown
    assert re.search(r"texts: (\d+) of \1 are plain decoding's token for token\n", shown)


@pytest.mark.usefixtures("quick")
def test_a_bench_that_is_out_of_time_shows_the_finished_turns(prompts, monkeypatch):
    monkeypatch.setattr(run_store.RunStore, "check_time", late_after(7))
    cut = run("bench", "batch", *SMALL, "--prompts", prompts, "--minutes", 1, "--json")
    assert cut.exit_code == 3
    assert [(row["size"], row["turns"]) for row in json.loads(cut.stdout)["rows"]] == [(1, 1), (2, 1)]


def late_after(runs):
    """A check of the time that ends the measurement after so many runs."""
    left = [None] * runs

    def check(self):
        if not left:
            raise run_store._TimeIsOver
        left.pop()

    return check


def test_without_files_prompts_of_every_kind_that_ships_take_turns(embedded):
    kinds = PromptOptions(limit=4).mixed_token_ids(embedded, 8)
    assert len({tuple(ids) for ids in kinds}) == 4
    assert kinds[3] == PromptOptions(limit=1).token_ids(embedded, 8)[0]
    assert len(PromptOptions(prompt_tokens=8).mixed_token_ids(embedded, 8)) == 66


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--batches", "0"], "--batches is '0'; give whole numbers above 0, separated by commas"),
        (["--batches", "1,two"], "--batches is '1,two'"),
        (["--batches", ""], "--batches is ''"),
        (["--budgets", "1,,2"], "--budgets is '1,,2'"),
        (["--budgets", "-1"], "--budgets is '-1'"),
        (["--inflate", "300n"], "300n"),
        (["--policy", "talom"], "did you mean 'talon'"),
        (["--temperature", "-1"], "temperature"),
        (["--repeats", "0"], "--repeats"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes_are_said_before_anything_is_loaded(capsys, monkeypatch, options, said):
    monkeypatch.setattr(decoders, "load", None)
    monkeypatch.setattr(decoders, "load_inflated", None)
    assert said in complaint(capsys, "bench", "batch", *options)


def test_an_unknown_drafter_is_named(capsys):
    assert "nobody" in complaint(capsys, "bench", "batch", "--drafter", "./nobody", *SMALL)


def test_there_must_be_a_drafter(capsys):
    assert "name one with --drafter" in complaint(capsys, "bench", "batch", "--drafter", "none", *SMALL)
