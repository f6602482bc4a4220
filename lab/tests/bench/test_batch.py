"""`drafttree bench batch`: tables and JSON, and mistakes in one line."""

import json
import re

import pytest

from drafttree import Decoder
from drafttree.engine.metrics import EngineRound
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.cli import decoders
from drafttree.measure import Cell, columns, run_store
from drafttree_lab.bench.batch import BatchRun, EngineWay, Turn, make_rows, steady_rounds, turn_prompts
from drafttree_lab.options import PromptOptions
from testing.command_line import complaint, run

SMALL = ["--batches", "2,1,2", "--budgets", "2", "--max-new-tokens", 4, "--repeats", 2]


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
    assert [(row["batch"], row["turns"]) for row in found["rows"]] == [("1", 2), ("2", 2)]
    assert [*found["rows"][1]["end to end"]] == ["speculative", "plain", "fixed 2", "one by one"]
    assert (found["prompts"], found["texts"], found["differences"]) == (2, 2 * 3 + 2 * 8, [])
    assert run("bench", "batch", *SMALL, *options).stdout == done.stdout


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_transformers_writes_the_same_texts(prompts):
    options = ["--peers", "transformers", "--batches", "1,2", "--budgets", "2", "--max-new-tokens", 4]
    options += ["--repeats", 3, "--prompts", prompts]
    shown = run("bench", "batch", *options).stdout
    assert "transformers: generate_batch of transformers" in shown
    assert re.search(r"texts: (\d+) of \1 are plain decoding's token for token\n", shown)


@pytest.mark.usefixtures("quick")
def test_a_bench_that_is_out_of_time_shows_the_finished_turns(prompts, monkeypatch):
    monkeypatch.setattr(run_store.RunStore, "check_time", late_after(7))
    cut = run("bench", "batch", *SMALL, "--prompts", prompts, "--minutes", 1, "--json")
    assert cut.exit_code == 3
    assert [(row["batch"], row["turns"]) for row in json.loads(cut.stdout)["rows"]] == [("1", 1), ("2", 1)]


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
        (["--peers", "openvino"], "openvino"),
        (["--peers", "transformers", "--temperature", "1"], "other programs draw other random numbers"),
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


def test_the_figures_of_a_size_by_hand():
    """Two requests: drafted rounds of 2 s with 6 tokens, plain ones of 1 s with 2, and half as fast by one budget."""

    def run(committed, seconds, nodes, turn, **more):
        round_ = EngineRound(committed, committed - 2, nodes, 2, 2, 0.25, 1.25, seconds, batch=2, **more)
        found = columns([round_] * 3)
        rounds = {name: found[name].tolist() for name in found.dtype.names} | {"gain": [1.5] * 3}
        return Cell("", "2", turn, 0, BatchRun([[1] * 3 * committed], 3 * seconds + 1, rounds))

    cells = [
        run(*figures, turn, **more)._replace(way=way)
        for turn in range(2)
        for way, figures, more in (
            ("speculative", (6, 2.0, 8), {"expected": 5.0}),
            ("plain", (2, 1.0, 2), {"expected": 2.0}),
            ("fixed 2", (3, 2.0, 6), {"expected": 3.0}),
        )
    ]
    (row,) = make_rows(cells)
    assert (row["batch"], row["turns"], row["plain/s"], row["best fixed"]) == ("2", 2, pytest.approx(2.0), "2")
    assert [row[name].mean for name in ("R", "over best fixed")] == pytest.approx([1.5, 2.0])
    assert row["R end to end"].mean == pytest.approx((18 / 7) / (6 / 4))
    found = [row[name] for name in ("k", "drafted", "tau", "expected", "predicted gain", "v", "delta")]
    assert found == pytest.approx([3.0, 1.0, 3.0, 2.5, 1.5, 1.0, 2.0])
    assert row["plain over one by one"] is None


def test_the_steady_state_of_a_program_is_from_the_last_first_token_to_the_first_end():
    times = [[1.0, 2.0, 3.0, 4.0, 5.0], [2.1, 3.1, 4.1, 5.1, 6.1]]
    found = steady_rounds(times)
    assert (sum(found["committed"]), sum(found["seconds"])) == (6, pytest.approx(2.9))
    assert steady_rounds([[1.0, 2.0], [3.0, 4.0]])["seconds"] == []


def test_a_turn_takes_the_next_prompts_and_cuts_what_one_pass_cannot_read():
    prompts = [[number] * 1000 for number in range(5)]
    assert [[own[0] for own in turn_prompts(prompts, 2, turn)] for turn in range(3)] == [[0, 1], [2, 3], [4, 0]]
    assert [len(own) for own in turn_prompts(prompts, 4, 0)] == [129] * 4


def test_an_engine_is_told_all_prompts_before_it_begins_and_kept_for_later_turns(embedded):
    decoder = embedded.plain()
    prompts = [decoder.new_request(text).tokens for text in ("one two three four", "The old man")]
    options = {"max_new_tokens": 5, "temperature": 0.0, "ignore_eos": True}
    alone = [decoder.generate(ids, **options).tokens for ids in prompts]
    engine = EngineWay(decoder, options)
    for turn in (prompts, prompts[::-1]):
        found = engine.run(Turn(2, turn))
        assert found.texts == (alone if turn is prompts else alone[::-1])
        assert (len(found.rounds["seconds"]), sum(found.rounds["committed"])) == (5, 10)
        assert sum(found.rounds["seconds"]) < found.seconds


def test_an_error_of_a_request_is_raised(embedded):
    def broken(*_):
        raise ValueError("no criterion")

    with pytest.raises(ValueError, match="no criterion"):
        EngineWay(embedded.plain(), {"max_new_tokens": 3, "stopping_criteria": [broken]}).run(Turn(1, [[1, 2]]))
