"""`drafttree bench serve`: two servers are started, measured and ended."""

import json
from contextlib import contextmanager

import pytest

from drafttree.measure.interval import Interval
from drafttree_lab.commands import bench_serve as command
from drafttree_lab.display.serve import show_serve
from drafttree_lab.load.serve import ServeBench, ServedWay, ServeRow
from testing.batches import TOKENIZER
from testing.command_line import complaint, run
from testing.held_server import held_server


@pytest.fixture
def started(monkeypatch):
    """The arguments of the servers that a command starts; there is one instead of them."""
    found: list[list[str]] = []
    with held_server() as held:

        @contextmanager
        def serve(arguments):
            found.append(arguments)
            yield held.address

        monkeypatch.setattr(command, "_served", serve)
        yield found


@pytest.fixture
def letters(tmp_path):
    path = tmp_path / "letters.txt"
    path.write_text("a\nb\nc\n")
    return path


def bench(letters, *arguments):
    shared = ("--prompts", letters, "--clients", "1,2", "--repeats", 2, "--max-new-tokens", 3)
    result = run("bench", "serve", "mine", *shared, *arguments)
    assert result.exit_code == 0, result.exception
    return result.stdout


def test_both_servers_have_the_same_options_but_for_the_drafter(started, letters):
    bench(letters, "--drafter", "lookup", "--dtype", "float32")
    speculative, plain = started
    assert speculative[:3] == ["mine", "--drafter", "lookup"]
    assert plain[:3] == ["mine", "--drafter", "none"]
    assert speculative[3:] == plain[3:]
    assert " ".join(plain[3:]).endswith("--dtype float32 --device auto --max-batch 2 --port 0")


def test_with_a_system_prompt_the_other_server_shares_no_prefixes(started, letters, monkeypatch):
    monkeypatch.setattr("drafttree.loading.pretrained.load_tokenizer", lambda model: TOKENIZER)
    shown = bench(letters, "--drafter", "lookup", "--system-tokens", 60)
    shared, whole = started
    assert shared[:3] == ["mine", "--drafter", "lookup"]
    assert whole[:5] == ["mine", "--drafter", "lookup", "--prefix-tokens", "0"]
    assert shared[3:] == whole[5:]
    assert "2 turns of each; 12 of 12 texts are those of prompts read whole" in shown
    assert "prompts cached" in shown


def test_speeds_waits_and_texts_are_printed(started, letters):
    shown = bench(letters)
    assert "first token" in shown
    assert "2 turns of each; 12 of 12 texts are those without a drafter" in shown
    assert "rounding" not in shown


def test_texts_that_differ_are_explained(capsys):
    way = ServedWay(1.0, {50: 0.1}, {50: 0.1})
    row = ServeRow(
        1, {"speculative": way, "no drafter": way}, Interval.of_ratio_by_student([1.0], [1.0]), texts=2, same=1
    )
    show_serve(ServeBench([row], turns=1, tokens=4))
    shown = capsys.readouterr().out
    assert "1 of 2 texts" in shown
    assert "rounding" in shown


def test_figures_are_printed_as_json(started, letters):
    report = json.loads(bench(letters, "--json"))
    assert [row["at_once"] for row in report["rows"]] == [1, 2]
    assert set(report["rows"][0]["ways"]) == {"speculative", "no drafter"}


@pytest.mark.slow
def test_a_server_that_does_not_start_says_why(capsys):
    error = complaint(capsys, "bench", "serve", "nowhere/at-all", "--device", "nowhere")
    assert "a server does not start:" in error


def test_numbers_of_clients_are_checked(capsys):
    assert "--clients" in complaint(capsys, "bench", "serve", "--clients", "0")
