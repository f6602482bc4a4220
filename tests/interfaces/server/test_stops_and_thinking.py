"""Stop strings apply to the answer, not to what a model thinks before it, on every route."""

import pytest
from fastapi.testclient import TestClient

from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import knowing
from testing.live_server import events, named_events

ASK = [{"role": "user", "content": "Is it cold?"}]
THOUGHT = "Is it?\nIt is 4."
HARMONY = "<|channel|>analysis<|message|>{}<|end|><|start|>assistant<|channel|>final<|message|>{}"
FAMILIES = {
    "qwen3": "<think>\n{}\n</think>\n\n{}",
    "qwq": "{}\n</think>\n\n{}",
    "mistral": "[THINK]{}[/THINK]{}",
    "gpt-oss": HARMONY,
}
CASES = [
    ("qwen3", "\n", "Yes, it is.\nVery.", "Yes, it is.", True),
    ("qwen3", "4", "Yes.", "Yes.", False),
    ("qwq", "It", "Yes.\nIt is.", "Yes.\n", True),
    ("mistral", "\n", "Yes, it is.\nVery.", "Yes, it is.", True),
    ("gpt-oss", "final", "In the final end.", "In the ", True),
]


def chat(client: TestClient, stop: str, stream: bool) -> tuple:
    body = {"messages": ASK, "stop": [stop], "temperature": 0, "max_tokens": 200, "stream": stream}
    reply = client.post("/v1/chat/completions", json=body)
    if not stream:
        (choice,) = reply.json()["choices"]
        message = choice["message"]
        return message["reasoning_content"], message["content"], choice["finish_reason"]
    choices = [chunk["choices"][0] for chunk in events(reply.text)]
    parts = [[c["delta"].get(name) or "" for c in choices] for name in ("reasoning_content", "content")]
    return *map("".join, parts), choices[-1]["finish_reason"]


def responses(client: TestClient, stop: str, stream: bool) -> tuple:
    body = {"input": "Is it cold?", "stop": [stop], "temperature": 0, "max_output_tokens": 200, "stream": stream}
    reply = client.post("/v1/responses", json=body)
    whole = named_events(reply.text)[-1]["response"] if stream else reply.json()
    thought, said = (item["content"][0]["text"] for item in whole["output"])
    return thought, said, whole["status"]


def messages(client: TestClient, stop: str, stream: bool) -> tuple:
    body = {"messages": ASK, "stop_sequences": [stop], "temperature": 0, "max_tokens": 200, "stream": stream}
    reply = client.post("/v1/messages", json=body)
    if not stream:
        thought, said = reply.json()["content"]
        return thought["thinking"], said["text"], reply.json()["stop_reason"], reply.json()["stop_sequence"]
    found = named_events(reply.text)
    deltas = [event["delta"] for event in found if event["type"] == "content_block_delta"]
    parts = ["".join(delta.get(name, "") for delta in deltas) for name in ("thinking", "text")]
    end = found[-2]["delta"]
    return *parts, end["stop_reason"], end["stop_sequence"]


@pytest.mark.parametrize(("family", "stop", "said", "expected", "stopped"), CASES)
def test_a_stop_string_ends_the_answer_and_no_thought(family, stop, said, expected, stopped):
    with TestClient(create_app(knowing(FAMILIES[family].format(THOUGHT, said), family), ServerSettings("m"))) as to:
        for stream in (False, True):
            assert chat(to, stop, stream) == (THOUGHT, expected, "stop")
            assert responses(to, stop, stream) == (THOUGHT, expected, "completed")
            ends = ("stop_sequence", stop) if stopped else ("end_turn", None)
            assert messages(to, stop, stream) == (THOUGHT, expected, *ends)


def test_without_thinking_the_mark_is_text():
    with TestClient(create_app(knowing("<think>a\nb", "qwen3"), ServerSettings("m", reasoning_parser="none"))) as to:
        reply = to.post("/v1/chat/completions", json={"messages": ASK, "stop": "\n", "temperature": 0}).json()
    assert reply["choices"][0]["message"]["content"] == "<think>a"
