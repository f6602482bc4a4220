"""The stream that the page reads: its text, its rounds and its figures are the engine's; it leaves nothing behind."""

import httpx
import pytest

from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.playground import PROMPT, STREAM, playground_decoder, read_events
from testing.held_server import wait_until
from testing.live_server import serving

SAMPLED = {"temperature": 0.9, "seed": 7, "top_p": 0.95}


@pytest.fixture(scope="module")
def expected():
    """The texts of a decoder of its own."""
    decoder = playground_decoder()
    return {
        "greedy": decoder.generate(PROMPT, max_new_tokens=32),
        "sampled": decoder.generate(PROMPT, max_new_tokens=32, **SAMPLED),
    }


@pytest.fixture(scope="module")
def app():
    return create_app(playground_decoder(), ServerSettings("embedded"))


@pytest.fixture(scope="module")
def address(app):
    with serving(app) as address:
        yield address


def text_of(events) -> str:
    return "".join(piece for _, data in events for piece, _ in data.get("text", ()))


@pytest.mark.few(1)
@pytest.mark.parametrize("as_served", [False, True], ids=["always", "as-served"])
@pytest.mark.parametrize("speculate", [True, False], ids=["speculating", "plain"])
@pytest.mark.parametrize(("kind", "options"), [("greedy", {}), ("sampled", SAMPLED)], ids=["greedy", "sampled"])
def test_the_text_is_the_engines_with_and_without_speculation(address, expected, kind, options, speculate, as_served):
    asked = {"speculate": speculate, "as_served": as_served, **options}
    events = read_events(address, prompt=PROMPT, max_tokens=32, **asked)
    assert text_of(events) == expected[kind].text


def test_the_sums_of_the_rounds_are_the_figures_of_the_end(address):
    events = read_events(address, prompt=PROMPT, max_tokens=32)
    rounds, (_, end) = [data for kind, data in events if kind == "round"], events[-1]
    tokens = sum(data["round"]["c"] for data in rounds)
    assert (tokens, len(rounds)) == (32, end["figures"]["rounds"])
    assert end["figures"]["mean_accepted_tokens"] == pytest.approx(tokens / len(rounds))
    passes = sum(data["passes"] for data in rounds)
    assert end["figures"]["draft_efficiency"] == pytest.approx(passes / len(rounds))
    assert passes > 0
    drafted = sum(data["round"]["s"] - 1 for data in rounds)
    accepted = sum(data["round"]["a"] for data in rounds)
    assert end["figures"]["acceptance_rate"] == pytest.approx(accepted / drafted)
    assert not any("bytes" in name for name in end["figures"]), "the memory of the server is not a client's to know"
    assert end["finish"] == "length"


def test_the_paths_of_the_rounds_are_the_text(address, expected):
    events, strings, tokens = read_events(address, prompt=PROMPT, max_tokens=32), [], []
    for kind, data in events:
        if kind == "round":
            strings += data["strings"]
            nodes = [*(data["round"]["n"][place] for place in data["round"]["p"][1:]), data["round"]["b"]]
            tokens += nodes[: data["round"]["c"]]
    assert [node[1] for node in tokens] == expected["greedy"].tokens
    assert "".join(strings[node[0]] for node in tokens) == expected["greedy"].text


def test_the_text_is_marked_by_who_proposed_it(address, expected):
    events, drafted = read_events(address, prompt=PROMPT, max_tokens=32), []
    for _, data in events:
        drafted += [flag for piece, flag in data.get("text", ()) for _ in piece]
    assert any(drafted)
    assert not all(drafted)
    plain = read_events(address, prompt=PROMPT, max_tokens=8, speculate=False)
    assert not any(flag for _, data in plain for _, flag in data.get("text", ()))


def test_a_message_is_answered_up_to_the_end_of_the_turn(address):
    events = read_events(address, messages=[{"role": "user", "content": "Who are you?"}], max_tokens=24)
    expected = playground_decoder().generate(
        [{"role": "user", "content": "Who are you?"}], max_new_tokens=24, stop=["\nUser:"]
    )
    assert text_of(events) == expected.text


@pytest.mark.parametrize("start", [{"prompt": PROMPT}, {"messages": [{"role": "user", "content": "Which way?"}]}])
def test_a_text_is_shaped_by_the_fields_that_all_requests_for_texts_have(address, start):
    pytest.importorskip("llguidance")
    events = read_events(
        address, **start, max_tokens=32, structured_outputs={"choice": ["to the left", "to the right"]}
    )
    assert text_of(events) in ("to the left", "to the right")
    assert text_of(read_events(address, **start, max_tokens=32, stop=["e"])).count("e") == 0


def test_who_goes_away_leaves_no_request_behind(app, address):
    with httpx.stream("POST", address + STREAM, json={"prompt": PROMPT, "max_tokens": 1900}, timeout=60) as response:
        next(response.iter_text())
    metrics = app.state.serving.drafting.metrics
    wait_until(lambda: (metrics.cancelled, metrics.running, metrics.waiting) == (1, 0, 0))


def test_a_failure_while_a_text_is_written_ends_its_stream_with_an_error(app, address, monkeypatch):
    def fail(*_: object) -> None:
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(app.state.serving.engine._loop._loop, "_settle", fail)
    ((kind, data),) = read_events(address, prompt=PROMPT, max_tokens=4, as_served=True)
    assert kind == "error"
    assert data["error"]["type"] == "server_error"
    assert "secret" not in data["error"]["message"]
