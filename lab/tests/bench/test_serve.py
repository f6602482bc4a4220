"""The figures of a server under load."""

import asyncio
import json
from contextlib import contextmanager

import pytest

from drafttree.errors import InputError
from drafttree.measure import Cell
from drafttree_lab.bench import serve
from drafttree_lab.bench.serve import SPECULATIVE, WITHOUT_DRAFTER, make_rows, make_turns, system_prompts
from drafttree_lab.http_load import LoadRun, ServedText, run_load
from testing.batches import TOKENIZER
from testing.command_line import complaint, run
from testing.held_server import held_server

OPTIONS = {"max_tokens": 6, "temperature": 0, "ignore_eos": True}
LETTERS = ["a", "b", "c", "d", "e"]


def text(first: float, *gaps: float, words: str = "x") -> ServedText:
    """A text whose tokens come one by one."""
    found = ServedText()
    for tokens, seconds in enumerate((first, *gaps), start=1):
        found.add(words, tokens, seconds)
    return found


def test_tokens_that_come_together_share_the_time():
    found = ServedText()
    for chunk in (("a", 2, 0.5), ("b", 3, 0.1), ("c", 7, 0.2)):
        found.add(*chunk)
    assert (found.text, found.tokens, found.first_token) == ("abc", 7, 0.5)
    assert found.gaps == pytest.approx([0.1, 0.05, 0.05, 0.05, 0.05])


def rows_of(**runs: list[LoadRun]) -> dict:
    """The row of two servers' turns of two clients."""
    turns = range(len(next(iter(runs.values()))))
    (row,) = make_rows([Cell(way, "2", turn, 0, own[turn]) for turn in turns for way, own in runs.items()], [*runs])
    return row


def test_percentiles_are_over_all_texts_of_all_turns():
    runs = [LoadRun([text(first / 100, 0.01)], 1.0) for first in range(101)]
    found = rows_of(x=runs, y=runs)["ways"]["x"]
    assert found["first_token"] == pytest.approx({50: 0.5, 95: 0.95, 99: 0.99})
    assert found["next_token"] == pytest.approx({50: 0.01, 95: 0.01, 99: 0.01})
    assert found["tokens_per_second"] == pytest.approx(2)


def test_the_ratio_is_of_the_speeds_and_texts_are_compared_by_pairs():
    plain = [LoadRun([text(0.1, 0.1), text(0.1, 0.1)], seconds) for seconds in (1.0, 4.0)]
    ours = [LoadRun([text(0.1, 0.1), text(0.1, 0.1, words="y")], seconds) for seconds in (0.5, 0.25)]
    row = rows_of(**{SPECULATIVE: ours, WITHOUT_DRAFTER: plain})
    assert row["ratio"].mean == pytest.approx(5 / 0.75)  # seconds of both turns, since all texts have as many tokens
    speeds = [own["tokens_per_second"] for own in row["ways"].values()]
    assert speeds == pytest.approx([8 / 0.75, 8 / 5])
    assert row["ratio"].low < 2
    assert (row["texts"], row["same"]) == (4, 2)


@pytest.fixture(scope="module")
def address():
    with held_server() as held:
        yield held.address


def test_every_prompt_is_asked_for_once(address):
    run = asyncio.run(run_load(address, LETTERS, 2, OPTIONS))
    assert [each.tokens for each in run.texts] == [6] * 5
    assert all(each.text and 0 < each.first_token < run.seconds and len(each.gaps) == 5 for each in run.texts)
    alone = asyncio.run(run_load(address, LETTERS[3:4], 1, OPTIONS)).texts[0]
    assert run.texts[3].text == alone.text


def test_the_share_of_prompts_that_was_cached_is_that_of_all_their_tokens():
    texts = [ServedText(tokens=1, prompt_tokens=100, cached_tokens=0), ServedText(1, 1, 1.0, [], 300, 200)]
    assert rows_of(x=[LoadRun(texts, 1.0)], y=[LoadRun(texts, 1.0)])["ways"]["x"]["cached"] == 0.5


def test_the_prompts_of_a_turn_begin_alike_and_those_of_another_otherwise():
    turns = make_turns(LETTERS, [1, 2], ["x ", "y ", "z ", "w "], repeats=1, per_client=1)
    assert turns == [("1", (1, ["x a"])), ("1", (1, ["y b"])), ("2", (2, ["z c", "z d"])), ("2", (2, ["w e", "w a"]))]


class CharacterTokenizer:
    """Every character is a token."""

    def __call__(self, text, **options):
        return {"input_ids": [*map(ord, text)]}

    def decode(self, ids):
        return "".join(map(chr, ids))


def test_system_prompts_are_as_long_as_asked_and_begin_differently():
    found = system_prompts(["abcde", "fgh"], CharacterTokenizer(), 30, 3)
    assert [len(text) for text in found] == [32] * 3
    assert len({text[:3] for text in found}) == 3


def test_a_refused_request_is_told(address):
    with pytest.raises(InputError, match=r"400 .*max_tokens"):
        asyncio.run(run_load(address, LETTERS, 2, {"max_tokens": -1}))


def test_a_server_that_is_not_there_is_told():
    with pytest.raises(InputError, match=r"http://127\.0\.0\.1:9"):
        asyncio.run(run_load("http://127.0.0.1:9", LETTERS, 2, OPTIONS))


@pytest.fixture
def started(monkeypatch):
    """The arguments of the servers that a command starts; there is one instead of them."""
    found: list[list[str]] = []
    with held_server() as held:

        @contextmanager
        def served(arguments):
            found.append(arguments)
            yield held.address

        monkeypatch.setattr(serve, "_served", served)
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
    assert "2 turns of each server; 12 of 12 texts equal those of prompts read whole" in shown
    assert "prompts cached" in shown


def test_speeds_waits_and_texts_are_printed(started, letters):
    shown = bench(letters)
    assert "first token" in shown
    assert "2 turns of each server; 12 of 12 texts equal those without a drafter" in shown
    assert "rounding" not in shown


def test_texts_that_differ_are_explained(capsys):
    texts = [[LoadRun([text(0.1, 0.1), text(0.1, words=words)], 1.0)] for words in "xy"]
    row = rows_of(**dict(zip((SPECULATIVE, WITHOUT_DRAFTER), texts, strict=True)))
    serve._show({"rows": [row], "turns": 1, "tokens": 4})
    shown = capsys.readouterr().out
    assert "1 of 2 texts" in shown
    assert "rounding" in shown


def test_figures_are_printed_as_json(started, letters):
    report = json.loads(bench(letters, "--json"))
    assert [row["clients"] for row in report["rows"]] == ["1", "2"]
    assert set(report["rows"][0]["ways"]) == {"speculative", "no drafter"}


@pytest.mark.slow
def test_a_server_that_does_not_start_says_why(capsys):
    error = complaint(capsys, "bench", "serve", "nowhere/at-all", "--device", "nowhere")
    assert "a server does not start:" in error


def test_numbers_of_clients_are_checked(capsys):
    assert "--clients" in complaint(capsys, "bench", "serve", "--clients", "0")
