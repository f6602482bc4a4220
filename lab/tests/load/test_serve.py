"""The figures of a server under load."""

import asyncio

import pytest

from drafttree.errors import ConfigError, InputError
from drafttree_lab.load.http_load import LoadRun, ServedText, run_load
from drafttree_lab.load.serve import (
    SHARED,
    SPECULATIVE,
    WHOLE,
    WITHOUT_DRAFTER,
    ServedWay,
    ServeRow,
    bench_serve,
    system_prompts,
)
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


def test_speed_is_that_of_all_clients_together():
    assert LoadRun([text(0.1, 0.1), text(0.2, 0.1, 0.1)], seconds=2).tokens_per_second == 2.5


def test_percentiles_are_over_all_texts_of_all_turns():
    runs = [LoadRun([text(first / 100, 0.01)], 1.0) for first in range(101)]
    found = ServedWay.of(runs)
    assert found.first_token == pytest.approx({50: 0.5, 95: 0.95, 99: 0.99})
    assert found.next_token == pytest.approx({50: 0.01, 95: 0.01, 99: 0.01})
    assert found.tokens_per_second == pytest.approx(2)


def test_the_ratio_is_of_the_turns_and_texts_are_compared_by_pairs():
    plain = [LoadRun([text(0.1, 0.1), text(0.1, 0.1)], seconds) for seconds in (1.0, 2.0)]
    ours = [LoadRun([text(0.1, 0.1), text(0.1, 0.1, words="y")], seconds) for seconds in (0.5, 0.25)]
    turns = [{SPECULATIVE: mine, WITHOUT_DRAFTER: other} for mine, other in zip(ours, plain, strict=True)]
    row = ServeRow.of(2, turns, [SPECULATIVE, WITHOUT_DRAFTER])
    assert row.ratio.mean == pytest.approx(4)  # the geometric mean of 2 and 8
    assert row.ratio.low is not None
    assert row.ratio.low < 2
    assert (row.texts, row.same) == (4, 2)


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


def test_two_servers_are_asked_for_the_same_texts(address):
    said: list[str] = []
    ways = {SPECULATIVE: address, WITHOUT_DRAFTER: address}
    found = bench_serve(ways, LETTERS, [1, 2], repeats=2, max_new_tokens=4, progress=said.append)
    assert [(row.at_once, row.texts, row.same) for row in found.rows] == [(1, 4, 4), (2, 8, 8)]
    there, back = [*ways], [*ways][::-1]
    assert said == [f"{size} clients, {way}" for size in (1, 2) for turn in (there, back, there) for way in turn]
    assert found.summary()["turns"] == 2


def test_the_share_of_prompts_that_was_cached_is_that_of_all_their_tokens():
    texts = [ServedText(tokens=1, prompt_tokens=100, cached_tokens=0), ServedText(1, 1, 1.0, [], 300, 200)]
    assert ServedWay.of([LoadRun(texts, 1.0)]).cached == 0.5


def test_the_prompts_of_a_turn_begin_alike_and_those_of_another_otherwise(monkeypatch):
    asked = []

    async def run_load(address, prompts, at_once, options):
        asked.append((address, prompts))
        return LoadRun([text(0.1, 0.1) for _ in prompts], 1.0)

    monkeypatch.setattr("drafttree_lab.load.serve.run_load", run_load)
    servers = {SHARED: "one", WHOLE: "other"}
    bench_serve(servers, LETTERS, [2], systems=["x ", "y "], repeats=1, per_client=1)
    turns = [["x a", "x b"], ["y c", "y d"]]
    assert sorted(asked) == sorted((server, prompts) for server in servers.values() for prompts in turns)


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


def test_without_prompts_nothing_is_measured():
    with pytest.raises(ConfigError, match="no prompt"):
        bench_serve({}, [], [1])
