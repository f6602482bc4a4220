"""Whatever a model writes, the stream of each API, put together as a client does, is its whole reply."""

import json
import os
import re
from dataclasses import dataclass
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from jiter import from_json
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import SPECIAL, ByHeart, tokenizer_of
from testing.live_server import events, named_events, strict
from testing.toy import ToyDrafter, ToyModel

EXAMPLES = int(os.environ.get("FUZZ_CASES", 0))
FEW = settings(
    max_examples=EXAMPLES or 20,
    derandomize=not EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
ASK = [{"role": "user", "content": "x"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
HERMES = '<tool_call>\n{"name": "f", "arguments": {"a": "ü"}}\n</tool_call>'
WORDS = ["So.", " It is", "\n\n", "é€", "<", "stop", "<|im_end|>"]
PIECES = {
    "qwen3": [*WORDS, "<think>\nHm.\n</think>\n\n", HERMES, "<think>", "</think>", HERMES[:40], HERMES[40:]],
    "mistral": [*WORDS, "[THINK]Hm.[/THINK]", '[TOOL_CALLS]f[ARGS]{"a": "ü"}', "[THINK]", "[TOOL_CALLS]f"],
    "gpt-oss": [
        *WORDS,
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
        "<|channel|>final<|message|>So.",
        '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a": "ü"}<|call|>',
        "<|channel|>",
    ],
}
"""What answers are made of, by family."""


@dataclass(frozen=True)
class Case:
    """An answer, and how it is written: up to how many tokens, and how many drafts to a wrong one."""

    family: str
    answer: str
    limit: int
    temperature: float
    drafted_wrong: int


class Recited:
    """The law of a model that writes the answer of the test's example."""

    def __init__(self, family: str) -> None:
        self.tokenizer = tokenizer_of(family)
        self.vocab = len(self.tokenizer)
        self.drafted_wrong = 2

    def learn(self, answer: str, drafted_wrong: int) -> None:
        """Take another answer; of so many drafts one is wrong, so that rounds are of several sizes."""
        tokens = self.tokenizer(answer, add_special_tokens=False)["input_ids"]
        self.law, self.drafted_wrong = ByHeart([*tokens, self.tokenizer.eos_token_id], self.vocab), drafted_wrong

    def __call__(self, prefix: list[int]) -> list[float]:
        return self.law(prefix)

    def draft(self, prefix: list[int]) -> list[float]:
        return self.law(prefix) if len(prefix) % self.drafted_wrong else [0.0] * self.vocab


class Served:
    """Servers of models of all families."""

    def __init__(self) -> None:
        self.laws, self.clients = {}, {}
        for family in PIECES:
            law = self.laws[family] = Recited(family)
            model, drafter = ToyModel(law, law.vocab), ToyDrafter(law.draft, law.vocab)
            eos = [law.tokenizer.eos_token_id]
            decoder = Decoder(model, drafter, tokenizer=law.tokenizer, eos=eos).with_costs(TOY_COSTS)
            self.clients[family] = TestClient(create_app(decoder, ServerSettings("m")))

    def ask(self, case: Case, path: str, **body: Any) -> tuple[Any, str]:
        """The whole reply and the text of the stream for a case."""
        self.laws[case.family].learn(case.answer, case.drafted_wrong)
        post = self.clients[case.family].post
        body = {"temperature": case.temperature, "seed": 1, **body}
        whole = post(f"/v1/{path}", json=body)
        usage = {"stream_options": {"include_usage": True}} if "completions" in path else {}
        stream = post(f"/v1/{path}", json={**body, **usage, "stream": True})
        assert (whole.status_code, stream.status_code) == (200, 200), whole.text
        return whole.json(), stream.text


@st.composite
def cases(draw: Any) -> Case:
    family = draw(st.sampled_from([*PIECES]))
    answer = "".join(draw(st.lists(st.sampled_from(PIECES[family]), min_size=1, max_size=6)))
    limit = draw(st.integers(1, 60) | st.just(60))
    return Case(family, answer, limit, draw(st.sampled_from([0, 0, 1])), draw(st.integers(2, 7)))


CALLED = Case("qwen3", f"So it is.{HERMES}", 200, 0, 7)
"""A message and a call whose beginnings come in one round."""


@pytest.fixture(scope="module")
def served():
    found = Served()
    with found.clients["qwen3"], found.clients["mistral"], found.clients["gpt-oss"]:
        yield found


def same_usage(one: dict, other: dict) -> bool:
    """Whether two usages agree in what does not depend on the texts before: not on what was reused, or drafted."""
    return _told(one) == _told(other)


def _told(usage: dict) -> list[int]:
    cached = usage.get("cache_read_input_tokens", 0)
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0)) + cached
    return [prompt, usage.get("completion_tokens", usage.get("output_tokens")), details.get("reasoning_tokens", 0)]


@FEW
@given(case=cases(), echo=st.booleans(), several=st.integers(1, 2))
def test_completions(served, case, echo, several):
    body = {"prompt": ["x", "é"], "n": several, "echo": echo, "logprobs": 2, "max_tokens": case.limit, "stop": "stop"}
    whole, stream = served.ask(case, "completions", **body)
    if not echo:  # nothing stands before the first token of a prompt, which their type does not know
        strict(Completion, whole)
    *chunks, last = events(stream)
    assert same_usage(last["usage"], whole["usage"])
    assert len(whole["choices"]) == 2 * several
    for choice in whole["choices"]:
        own = [each for chunk in chunks for each in chunk["choices"] if each["index"] == choice["index"]]
        assert "".join(each["text"] for each in own) == choice["text"]
        assert [each["finish_reason"] for each in own if each["finish_reason"]] == [choice["finish_reason"]]
        for name, values in choice["logprobs"].items():
            assert [value for each in own for value in (each["logprobs"] or {}).get(name) or ()] == values
        lengths = {len(values) for values in choice["logprobs"].values()}
        assert len(lengths) == 1


@FEW
@given(case=cases(), several=st.integers(1, 2))
@example(case=CALLED, several=1)
def test_chats(served, case, several):
    tools = [{"type": "function", "function": FUNCTION}]
    body = {"messages": ASK, "n": several, "logprobs": True, "top_logprobs": 2, "max_tokens": case.limit}
    more = {"tools": tools, "stop": "stop"}
    whole, stream = served.ask(case, "chat/completions", **body, **more)
    strict(ChatCompletion, without_thoughts(whole))
    state = ChatCompletionStreamState()
    for chunk in events(stream):
        strict(ChatCompletionChunk, without_thoughts(chunk))
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    made = state.current_completion_snapshot.model_dump()
    assert same_usage(made["usage"], whole["usage"])
    for ours, choice in zip(made["choices"], whole["choices"], strict=True):
        assert ours["finish_reason"] == choice["finish_reason"]
        assert (ours["logprobs"] or {"content": []})["content"] == choice["logprobs"]["content"]
        assert content_of(ours["message"]) == content_of(choice["message"])


def without_thoughts(reply: dict) -> dict:
    """A reply without the field of thoughts, which OpenAI's types do not have."""
    reply = json.loads(json.dumps(reply))
    for choice in reply["choices"]:
        choice.get("message", choice.get("delta")).pop("reasoning_content", None)
    return reply


def content_of(message: dict) -> tuple[Any, ...]:
    calls = [(call["function"]["name"], call["function"]["arguments"]) for call in message.get("tool_calls") or ()]
    return message["content"] or "", message.get("reasoning_content") or "", calls


@FEW
@given(case=cases())
@example(case=CALLED)
def test_responses(served, case):
    body = {"input": "x", "max_output_tokens": case.limit, "stop": "stop", "tools": [{"type": "function", **FUNCTION}]}
    body |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole, stream = served.ask(case, "responses", **body)
    strict(Response, whole)
    items: list[dict] = []
    for number, event in enumerate(told := named_events(stream)):
        strict(ResponseStreamEvent, event)
        assert event["sequence_number"] == number
        put_together(items, event)
    assert told[-1]["type"].removeprefix("response.") == whole["status"] == told[-1]["response"]["status"]
    assert without_names(items) == without_names(told[-1]["response"]["output"]) == without_names(whole["output"])
    assert same_usage(told[-1]["response"]["usage"], whole["usage"])
    chat = {"messages": ASK, "max_tokens": case.limit, "stop": "stop", "logprobs": True, "top_logprobs": 2}
    tools = [{"type": "function", "function": FUNCTION}]
    (choice,) = served.ask(case, "chat/completions", **chat, tools=tools)[0]["choices"]
    assert said(items, "message") == (choice["message"]["content"] or "")
    assert said(items, "reasoning") == choice["message"].get("reasoning_content", "")
    known = iter(choice["logprobs"]["content"])
    for (part,) in (item["content"] for item in items if item["type"] == "message"):
        assert all(score in known for score in part["logprobs"]), "not the tokens of the text in their order"
        text = b"".join(bytes(score["bytes"]) for score in part["logprobs"]).decode(errors="replace")
        assert plain(text) == plain(part["text"]) or "\ufffd" in text, "not all of its tokens, or more"


def plain(text: str) -> str:
    """A text without white space around it, which may be a part of a token, and special tokens, which may be none."""
    return re.sub("|".join(map(re.escape, SPECIAL)), "", text).strip()


def put_together(items: list[dict], event: dict) -> None:
    """What an event adds to the items of a response, and whether it says what is already known."""
    match event["type"].removeprefix("response."):
        case "output_item.added":
            assert event["output_index"] == len(items)
            items.append(event["item"])
        case "content_part.added":
            items[-1]["content"].append(event["part"])
        case "output_text.delta" | "reasoning_text.delta":
            part = items[-1]["content"][event["content_index"]]
            part["text"] += event["delta"]
            part.setdefault("told", []).extend(event.get("logprobs", []))
        case "function_call_arguments.delta":
            items[-1]["arguments"] += event["delta"]
        case "output_text.done" | "reasoning_text.done":
            part = items[-1]["content"][event["content_index"]]
            assert (event["text"], event.get("logprobs", [])) == (part["text"], part.pop("told", []))
            part |= {"logprobs": event["logprobs"]} if "logprobs" in event else {}
        case "function_call_arguments.done":
            assert event["arguments"] == items[-1]["arguments"]
        case "content_part.done":
            assert without_bytes(event["part"]) == items[-1]["content"][event["content_index"]]
        case "output_item.done":
            assert without_bytes(event["item"]) | {"status": ""} == items[-1] | {"status": ""}
            items[-1] = event["item"]
    if "item_id" in event:
        assert (event["item_id"], event["output_index"]) == (items[-1]["id"], len(items) - 1)


def without_bytes(part: Any) -> Any:
    """The same without the bytes of tokens, which deltas do not have."""
    if isinstance(part, list):
        return [without_bytes(each) for each in part]
    if isinstance(part, dict):
        return {name: without_bytes(value) for name, value in part.items() if name != "bytes"}
    return part


def without_names(items: list[dict]) -> list[dict]:
    return [{name: value for name, value in item.items() if name not in ("id", "call_id")} for item in items]


def said(items: list[dict], kind: str) -> str:
    return "".join(part["text"] for item in items if item["type"] == kind for part in item["content"])


@FEW
@given(case=cases())
@example(case=CALLED)
def test_messages(served, case):
    tool = {"name": "f", "input_schema": FUNCTION["parameters"]}
    body = {"messages": ASK, "max_tokens": case.limit, "stop_sequences": ["stop"], "tools": [tool]}
    whole, stream = served.ask(case, "messages", **body)
    told = named_events(stream)
    blocks, usage = [], dict(told[0]["message"]["usage"])
    for event in told:
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"] | {"json": ""})
            case "content_block_delta":
                assert event["index"] == len(blocks) - 1
                kind = event["delta"].pop("type")
                ((_, more),) = event["delta"].items()
                field = "json" if kind == "input_json_delta" else kind.removesuffix("_delta")
                blocks[-1][field] += more
            case "message_delta":
                ended = event["delta"]
                usage |= event["usage"]
    stops = [event["index"] for event in told if event["type"] == "content_block_stop"]
    assert stops == [*range(len(blocks))]
    assert [event["type"] for event in told[-2:]] == ["message_delta", "message_stop"]
    for block in blocks:
        written = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = from_json((written or "{}").encode(), partial_mode=True)  # as Anthropic's client
    assert without_names(blocks) == without_names(whole["content"])
    assert ended == {name: whole[name] for name in ended}
    assert same_usage(usage, whole["usage"])
