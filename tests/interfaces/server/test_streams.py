"""Whatever a model writes: each API's reply says just that, and its stream, put together as a client does, the same.

The model writes texts by heart, so what a reply has to say is known from them alone: where the text ends and why, what
is thought, said and called, which tokens it is made of, and what they cost.
"""

import json
import os
import time
from collections.abc import Sequence
from copy import deepcopy
from importlib.util import find_spec
from itertools import pairwise
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from jiter import from_json
from openai.lib.streaming.chat import ChatCompletionStreamState
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response, ResponseStreamEvent

import drafttree
from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.recited import (
    EOS,
    MARKS,
    SILENT,
    WORDS,
    Answer,
    Case,
    Part,
    Scripts,
    Texts,
    Written,
    cases,
    joined,
    raw,
)
from testing.live_server import events, named_events, strict
from testing.toy import ToyDrafter, ToyModel

EXAMPLES = int(os.environ.get("FUZZ_CASES", 0))
FEW = settings(
    max_examples=EXAMPLES or 12,
    derandomize=not EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
RECENT = 60
"""Seconds that a reply may have taken."""
ASK = [{"role": "user", "content": "x"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
PROMPTS = ["So it", "é"]
TOOLS = {
    "chat/completions": [{"type": "function", "function": FUNCTION}],
    "responses": [{"type": "function", **FUNCTION}],
    "messages": [{"name": "f", "input_schema": FUNCTION["parameters"]}],
}
CALL = Part("qwen3", "call", '{"a": "stop"}')
BEGINNINGS = Case("qwen3", [[Part("qwen3", "say", "So it is."), CALL, CALL]])
"""A message and calls, some of whose beginnings come in one round."""
CUT_CALL = Case("qwen3", [[CALL, CALL]], stop=["top"])
"""A call in which a stop string ends the text."""
THOUGHTS = [
    Part("gpt-oss", "think", "So."),
    Part("gpt-oss", "then"),
    Part("gpt-oss", "think", " It is"),
    Part("gpt-oss", "then"),
]
THINKS_TWICE = Case("gpt-oss", [[*THOUGHTS, Part("gpt-oss", "say", "So it is.")]])
"""Two stretches of thinking, whose tokens are counted together."""


PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}assistant:"
"""A chat template by which a text goes on with the next turn."""


class Served:
    """Servers of models of all families."""

    def __init__(self) -> None:
        self.laws, self.clients, self.prompts = {}, {}, {}
        for family in MARKS:
            law = self.laws[family] = Scripts(family)
            self.clients[family] = client_of(law)

    def prompt(self, family: str, *, tools: bool = True) -> list[int]:
        """The tokens of the conversation."""
        if (family, tools) not in self.prompts:
            body = {"messages": ASK, "tools": TOOLS["chat/completions"] if tools else None}
            found = self.clients[family].post("/tokenize", json=body)
            self.prompts[family, tools] = found.json()["tokens"]
        return self.prompts[family, tools]

    def ask(self, case: Case, path: str, texts: Texts, **body: Any) -> tuple[Any, str]:
        """The whole reply and the text of the stream for a case whose model writes texts behind their prompts."""
        law = self.laws[case.family]
        law.texts, law.drafted_wrong, law.rival = texts, case.drafted_wrong, not case.temperature
        post, asked = self.clients[case.family].post, {"temperature": case.temperature, "seed": 1, **body}
        whole = post(f"/v1/{path}", json=asked)
        usage = {"stream_options": {"include_usage": True}} if "completions" in path else {}
        stream = post(f"/v1/{path}", json={**asked, **usage, "stream": True})
        assert (whole.status_code, stream.status_code) == (200, 200), whole.text
        return whole.json(), stream.text

    def tokens(self, case: Case) -> list[int]:
        """The tokens of the first text."""
        law = self.laws[case.family]
        return [*law.tokens(raw(case.texts[0])), law.eos]

    def expected(self, case: Case, parts: Sequence[Part]) -> tuple[Written, Answer]:
        """What a chat of a case says."""
        law = self.laws[case.family]
        marks = " ".join(mark for marks in MARKS[case.family].values() for mark in marks)
        found = Written.of(law, law.tokens(raw(parts)), case.limit, case.stop, marks, case.family)
        return found, Answer(parts, found)


def client_of(law: Scripts) -> TestClient:
    model, drafter = ToyModel(law, law.vocab), ToyDrafter(law.draft, law.vocab)
    decoder = Decoder(model, drafter, tokenizer=law.tokenizer, eos=[law.eos]).with_costs(TOY_COSTS)
    return TestClient(create_app(decoder, ServerSettings("m")))


@pytest.fixture(scope="module")
def served():
    found = Served()
    with found.clients["qwen3"], found.clients["mistral"], found.clients["gpt-oss"]:
        yield found


def same_usage(one: dict, other: dict) -> bool:
    """Whether two usages agree in what does not depend on the texts before: not on what was reused, or drafted."""
    return told(one) == told(other)


def told(usage: dict) -> list[int]:
    """The tokens of the prompts and of the texts, and those that are thinking."""
    cached = usage.get("cache_read_input_tokens", 0)
    details = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    prompt = usage.get("prompt_tokens", usage.get("input_tokens", 0)) + cached
    written = usage.get("completion_tokens", usage.get("output_tokens"))
    assert usage.get("total_tokens", prompt + written) == prompt + written
    return [prompt, written, details.get("reasoning_tokens", 0)]


def rounded(scores: Sequence[dict]) -> list[tuple[str, float, list[float]]]:
    return [
        (each["token"], round(each["logprob"], 3), [round(top["logprob"], 3) for top in each["top_logprobs"]])
        for each in scores
    ]


@FEW
@given(case=cases(), echo=st.booleans(), several=st.integers(1, 2))
def test_completions(served, case, echo, several):
    law = served.laws[case.family]
    prompts, scripts = [law.tokens(text) for text in PROMPTS], [law.tokens(raw(parts)) for parts in case.texts]
    pairs = [*zip(prompts, scripts, strict=True)]
    texts = [(prompt, script) for prompt in prompts for script in scripts] if case.temperature else pairs
    body = {"prompt": PROMPTS, "n": several, "echo": echo, "logprobs": 2, "max_tokens": case.limit, "stop": case.stop}
    whole, stream = served.ask(case, "completions", texts, **body)
    if not echo:  # nothing stands before the first token of a prompt, which their type does not know
        strict(Completion, whole)
        for chunk in events(stream):  # nor do they know a text that goes on
            choices = [choice | {"finish_reason": "stop"} for choice in chunk["choices"]]
            strict(Completion, chunk | {"choices": choices})
    *chunks, last = events(stream)
    assert last["choices"] == []
    assert same_usage(last["usage"], whole["usage"])
    check_heads(whole, [*chunks, last], "cmpl-")
    assert [choice["index"] for choice in whole["choices"]] == [*range(2 * several)]
    generated = 0
    for choice in whole["choices"]:
        own = [each for chunk in chunks for each in chunk["choices"] if each["index"] == choice["index"]]
        assert "".join(each["text"] for each in own) == choice["text"]
        assert [each["finish_reason"] for each in own if each["finish_reason"]] == [choice["finish_reason"]]
        for name, values in choice["logprobs"].items():
            assert [value for each in own for value in (each["logprobs"] or {}).get(name) or ()] == values
        prompt = prompts[choice["index"] // several]
        shown = PROMPTS[choice["index"] // several] if echo else ""
        found = [(script, Written.of(law, script, case.limit, case.stop)) for to, script in texts if to == prompt]
        assume(len({each.text for _, each in found}) == len(found))
        script, wanted = next((each for each in found if shown + each[1].text == choice["text"]), found[0])
        assert (choice["text"], choice["finish_reason"]) == (shown + wanted.text, wanted.reason)
        generated += wanted.count
        before, tokens = prompt if echo else [], [*script, law.eos][: wanted.scored]
        scores = law.scores(prompt, tokens)
        logprobs = {name: values[len(before) :] for name, values in choice["logprobs"].items()}
        assert [*map(law.named, before)] + [name for name, *_ in scores] == choice["logprobs"]["tokens"]
        assert [round(each, 3) for each in logprobs["token_logprobs"]] == [number for _, number, _ in scores]
        assert [top[name] for top, name in zip(logprobs["top_logprobs"], logprobs["tokens"], strict=True)] == logprobs[
            "token_logprobs"
        ]
        pieces = [law.spelled(token) for token in before]
        ends = [len(b"".join(pieces[:count]).decode(errors="ignore")) for count in range(len(before))]
        assert choice["logprobs"]["text_offset"][: len(before)] == ends
        offsets = [len(shown) + wanted.complete(count) for count in range(len(tokens))]
        whole_characters = wanted.complete(len(tokens)) + len(shown)
        assert [min(each, whole_characters) for each in logprobs["text_offset"]] == offsets
    assert told(whole["usage"])[:2] == [sum(map(len, prompts)), generated]
    assert last["timings"]["predicted_n"] == whole["timings"]["predicted_n"] == generated


def check_heads(whole: dict, chunks: Sequence[dict], prefix: str) -> None:
    """Check how a reply and the chunks of a stream are named, and that usage stands in the last chunk alone."""
    assert [each["id"].startswith(prefix) for each in (whole, chunks[0])] == [True, True]
    assert {(chunk["id"], chunk["created"]) for chunk in chunks} == {(chunks[0]["id"], chunks[0]["created"])}
    assert all(0 <= time.time() - each["created"] < RECENT for each in (whole, chunks[0]))
    assert {each["system_fingerprint"] for each in (whole, *chunks)} == {f"drafttree-{drafttree.__version__}"}
    assert {each["model"] for each in (whole, *chunks)} == {"m"}
    assert [chunk["usage"] is None for chunk in chunks] == [True] * (len(chunks) - 1) + [False]


def without_thoughts(reply: dict) -> dict:
    """A reply without the field of thoughts, which OpenAI's types do not have."""
    choices = []
    for choice in reply["choices"]:
        name = "message" if "message" in choice else "delta"
        own = {key: value for key, value in choice[name].items() if key != "reasoning_content"}
        choices.append(choice | {name: own})
    return reply | {"choices": choices}


def content_of(message: dict) -> tuple[str, str, list[str]]:
    calls = [call["function"]["arguments"] for call in message.get("tool_calls") or ()]
    assert all(call["function"]["name"] == "f" for call in message.get("tool_calls") or ())
    assert len({call["id"] for call in message.get("tool_calls") or ()}) == len(calls)
    return message.get("reasoning_content") or "", message["content"] or "", calls


@FEW
@given(case=cases(), several=st.integers(1, 2), top=st.sampled_from([0, 2]))
@example(case=BEGINNINGS, several=1, top=0)
@example(case=CUT_CALL, several=1, top=2)
@example(case=THINKS_TWICE, several=1, top=2)
def test_chats(served, case, several, top):
    law, prompt = served.laws[case.family], served.prompt(case.family)
    drawn = case.texts if case.temperature else case.texts[:1]
    texts = [(prompt, law.tokens(raw(parts))) for parts in drawn]
    body = {"messages": ASK, "n": several, "logprobs": True, "top_logprobs": top, "max_tokens": case.limit}
    more = {"tools": TOOLS["chat/completions"], "stop": case.stop}
    whole, stream = served.ask(case, "chat/completions", texts, **body, **more)
    strict(ChatCompletion, without_thoughts(whole))
    state, chunks = ChatCompletionStreamState(), events(stream)
    check_heads(whole, chunks, "chatcmpl-")
    for chunk in chunks:
        strict(ChatCompletionChunk, without_thoughts(chunk))
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    made = state.current_completion_snapshot.model_dump()
    assert same_usage(made["usage"], whole["usage"])
    assert [choice["index"] for choice in whole["choices"]] == [*range(several)]
    generated = reasoning = 0
    for ours, choice in zip(made["choices"], whole["choices"], strict=True):
        assert choice["message"]["refusal"] is choice["logprobs"]["refusal"] is None
        silent = any(choice["message"].get(name) for name in ("tool_calls", "reasoning_content"))
        assert choice["message"]["content"] or choice["message"]["content"] == (None if silent else "")
        assert (ours["message"]["role"], ours["finish_reason"]) == ("assistant", choice["finish_reason"])
        assert (ours["logprobs"] or {"content": []})["content"] == choice["logprobs"]["content"]
        assert content_of(ours["message"]) == content_of(choice["message"])
        wanted = []
        for (_, script), parts in zip(texts, drawn, strict=True):
            written, answer = served.expected(case, parts)
            scores = law.scores(prompt, [*script, law.eos][: written.scored])
            wanted.append(([(*known, likeliest[:top]) for *known, likeliest in scores], written, answer))
        scores = rounded(choice["logprobs"]["content"])
        assume(all(one[0] != other[0] for one, other in pairwise(wanted)))
        known, written, answer = next((each for each in wanted if each[0] == scores), wanted[0])
        assert scores == known
        answer.check(*content_of(choice["message"]))
        assert choice["finish_reason"] == answer.finish_reason
        generated, reasoning = generated + written.count, reasoning + answer.reasoning
    assert told(whole["usage"]) == [len(prompt), generated, reasoning]
    assert ["timings" in chunk for chunk in chunks] == [False] * (len(chunks) - 1) + [True]
    assert chunks[-1]["timings"]["predicted_n"] == whole["timings"]["predicted_n"] == generated


def answered(served, case: Case, path: str, **body: Any) -> tuple[dict, str, Written, Answer]:
    """The whole reply and the stream of an API that gives one answer, and what they have to say."""
    law, prompt = served.laws[case.family], served.prompt(case.family)
    written, answer = served.expected(case, case.texts[0])
    texts = [(prompt, law.tokens(raw(case.texts[0])))]
    whole, stream = served.ask(case, path, texts, tools=TOOLS[path], **body)
    assert told(whole["usage"])[:2] == [len(prompt), written.count]
    return whole, stream, written, answer


@FEW
@given(case=cases())
@example(case=BEGINNINGS)
@example(case=CUT_CALL)
def test_responses(served, case):
    body = {"input": "x", "max_output_tokens": case.limit, "stop": case.stop}
    body |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2}
    whole, stream, written, answer = answered(served, case, "responses", **body)
    strict(Response, whole)
    items: list[dict] = []
    for number, event in enumerate(sent := named_events(stream)):
        strict(ResponseStreamEvent, event)
        assert event["sequence_number"] == number
        put_together(items, event)
    kinds = [event["type"].removeprefix("response.") for event in sent]
    assert kinds[:2] == ["created", "in_progress"]
    assert {(each["model"], each["id"][:5]) for each in (whole, sent[0]["response"])} == {("m", "resp_")}
    assert all(0 <= time.time() - each["created_at"] < RECENT for each in (whole, sent[0]["response"]))
    assert all(kinds.count(f"{part}.added") == kinds.count(f"{part}.done") for part in ("output_item", "content_part"))
    assert all(event["delta"] for event in sent if event["type"].endswith(".delta"))
    assert kinds[-1] == whole["status"] == sent[-1]["response"]["status"]
    assert without_names(items) == without_names(sent[-1]["response"]["output"]) == without_names(whole["output"])
    assert told(sent[-1]["response"]["usage"]) == told(whole["usage"])
    assert sent[-1]["response"]["timings"]["predicted_n"] == whole["timings"]["predicted_n"] == written.count
    assert told(whole["usage"])[2] == answer.reasoning
    if not answer.torn:
        names = {"think": "reasoning", "say": "message", "call": "function_call"}
        shown = [item["type"] for item in items if "arguments" in item or said([item], item["type"]).strip()]
        assert shown == [names[kind] for kind in answer.kinds]
    calls = [item for item in items if item["type"] == "function_call"]
    answer.check(said(items, "reasoning"), said(items, "message"), [call["arguments"] for call in calls])
    assert whole["status"] == ("incomplete" if written.reason == "length" else "completed")
    assert whole["incomplete_details"] == ({"reason": "max_output_tokens"} if written.reason == "length" else None)
    cut_call = answer.finish_reason == "stop" and items[-1]["type"] == "function_call"
    last = "incomplete" if written.reason == "length" or cut_call else "completed"
    assert [item["status"] for item in items] == ["completed"] * (len(items) - 1) + [last]
    law, prompt = served.laws[case.family], served.prompt(case.family)
    scores = law.scores(prompt, served.tokens(case)[: written.scored])
    parts = [item["content"][0] for item in items if item["type"] == "message"]
    if not answer.torn:
        firsts = [min(written.before(begin), written.before(begin + 1) - 1) for begin, _ in answer.said]
        spans = [range(first, written.before(end)) for first, (_, end) in zip(firsts, answer.said, strict=True)]
        wanted = [scores[place] for span in spans for place in span]
        found = [score for part in parts for score in rounded(part["logprobs"])]
        assert [each for each in found if each[0].strip()] == [each for each in wanted if each[0].strip()]


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
@example(case=BEGINNINGS)
@example(case=CUT_CALL)
def test_messages(served, case):
    body = {"messages": ASK, "max_tokens": case.limit, "stop_sequences": case.stop}
    whole, stream, written, answer = answered(served, case, "messages", **body)
    sent = named_events(stream)
    assert sent[-1]["type"] == "message_stop", sent[-1]
    if find_spec("anthropic"):
        from anthropic.types import Message, RawMessageStreamEvent

        strict(Message, whole)
        for event in sent:
            strict(RawMessageStreamEvent, event)
    begun = sent[0]["message"]
    assert (sent[0]["type"], begun["role"], begun["content"]) == ("message_start", "assistant", [])
    assert {(each["model"], each["id"][:4]) for each in (whole, begun)} == {("m", "msg_")}
    blocks, usage = [], dict(begun["usage"])
    for event in sent:
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
    stops = [event["index"] for event in sent if event["type"] == "content_block_stop"]
    assert stops == [*range(len(blocks))]
    assert [event["type"] for event in sent[-2:]] == ["message_delta", "message_stop"]
    if not answer.torn:
        kinds = {"think": "thinking", "say": "text", "call": "tool_use"}
        shown = [block["type"] for block in blocks if block.get("text", "x").strip()]
        assert shown == [kinds[kind] for kind in answer.kinds]
    inputs = {block["id"]: block["json"] for block in blocks if block["type"] == "tool_use"}
    thought, text = ("".join(block.get(kind, "") for block in blocks) for kind in ("thinking", "text"))
    answer.check(thought, text, [*inputs.values()])
    assert all(block["signature"] == "" for block in blocks if block["type"] == "thinking")
    for block in blocks:
        written_input = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = from_json((written_input or "{}").encode(), partial_mode=True)  # as Anthropic's client
    assert without_names(blocks) == without_names(whole["content"])
    reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    why = "stop_sequence" if written.stopped_by else reason[answer.finish_reason]
    assert ended == {"stop_reason": why, "stop_sequence": written.stopped_by} == {name: whole[name] for name in ended}
    assert same_usage(usage, whole["usage"])
    assert sent[-2]["timings"]["predicted_n"] == whole["timings"]["predicted_n"] == written.count


def test_a_call_that_is_cut_within_its_first_argument_has_no_input():
    law = Scripts("qwen3-coder")
    with client_of(law) as client:
        prompt = client.post("/tokenize", json={"messages": ASK, "tools": TOOLS["chat/completions"]}).json()["tokens"]
        law.texts = [(prompt, law.tokens("<tool_call>\n<function=f>\n<parameter=a>\nSo stop"))]
        body = {"messages": ASK, "max_tokens": 99, "stop_sequences": ["stop"], "tools": TOOLS["messages"]}
        (block,) = client.post("/v1/messages", json=body).json()["content"]
    assert (block["type"], block["name"], block["input"]) == ("tool_use", "f", {})


@pytest.mark.parametrize("stop", [[], ["\nuser:"]])
def test_only_a_stop_string_of_the_request_is_told(stop):
    law = Scripts("qwen3")
    law.tokenizer.chat_template = PLAIN
    prompt = law.tokenizer.apply_chat_template(ASK, tokenize=False)
    law.texts = [(law.tokens(prompt), law.tokens("So it is.\nuser: stop"))]
    with client_of(law) as client:
        found = client.post("/v1/messages", json={"messages": ASK, "max_tokens": 99, "stop_sequences": stop}).json()
    assert found["content"] == [{"type": "text", "text": "So it is."}]
    ended = ("stop_sequence", "\nuser:") if stop else ("end_turn", None)
    assert (found["stop_reason"], found["stop_sequence"]) == ended


ASKED = {
    "completions": {"prompt": "So it"},
    "chat/completions": {"messages": ASK},
    "responses": {"input": "x"},
    "messages": {"messages": ASK, "max_tokens": 200},
}


@pytest.mark.few(2)
@pytest.mark.parametrize("path", ASKED)
@settings(FEW, max_examples=EXAMPLES or 5)
@given(pieces=st.lists(st.sampled_from([*WORDS, SILENT]), min_size=2, max_size=8), data=st.data())
def test_a_stop_string_never_shows(served, path, pieces, data):
    law, text = served.laws["mistral"], "".join(pieces)
    plain = text.replace(SILENT, "")
    begin = data.draw(st.integers(0, len(plain)))
    stop = data.draw(st.sampled_from([plain[begin : begin + length] for length in range(1, 6)] + [SILENT, EOS]))
    assume(stop)
    name = "stop_sequences" if path == "messages" else "stop"
    body = ASKED[path] | {name: ["never written", stop]}
    prompt = law.tokens("So it") if path == "completions" else served.prompt("mistral", tools=False)
    thinks = None if path == "completions" else "mistral"
    wanted = Written.of(law, law.tokens(text), 200, [stop], thinks=thinks)
    case = Case("mistral", [], drafted_wrong=data.draw(st.integers(2, 7)))
    limit = {} if path in ("responses", "messages") else {"max_tokens": 200, "ignore_eos": stop == EOS}
    whole, stream = served.ask(case, path, [(prompt, law.tokens(text))], **body, **limit)
    assert joined(wanted.text) == joined("".join(texts_of(whole)))
    assert joined(wanted.text) == joined("".join(deltas_of(path, stream)))
    if path == "messages":
        assert whole["stop_sequence"] == wanted.stopped_by
    assert whole["usage"].get("completion_tokens", whole["usage"].get("output_tokens")) == wanted.count


def texts_of(reply: dict) -> list[str]:
    """What a whole reply says."""
    if "choices" in reply:
        return [each["text"] if "text" in each else each["message"]["content"] for each in reply["choices"]]
    blocks = reply["content"] if "content" in reply else [each["content"][0] for each in reply["output"]]
    return [each["text"] for each in blocks]


def deltas_of(path: str, stream: str) -> list[str]:
    """What the parts of a stream say."""
    if path == "completions":
        return [choice["text"] for chunk in events(stream) for choice in chunk["choices"]]
    if path == "chat/completions":
        return [choice["delta"].get("content", "") for chunk in events(stream) for choice in chunk["choices"]]
    found = [event["delta"] for event in named_events(stream) if event["type"].endswith("delta")]
    return [delta if path == "responses" else delta.get("text", "") for delta in found]


@pytest.mark.few(1)
@pytest.mark.parametrize("path", ASKED)
@settings(FEW, max_examples=EXAMPLES or 5)
@given(case=cases(), fails_after=st.integers(0, 30))
def test_a_stream_that_fails_ends_with_the_error_behind_what_was_written(served, path, case, fails_after):
    law, post = served.laws[case.family], served.clients[case.family].post
    tools = {"tools": TOOLS[path]} if path in TOOLS else {}
    prompt = law.tokens("So it") if path == "completions" else served.prompt(case.family)
    law.texts, law.drafted_wrong, law.rival = [(prompt, law.tokens(raw(case.texts[0])))], case.drafted_wrong, True
    limit = {"max_tokens": 200} if path == "completions" else {}
    body = {**ASKED[path], **tools, **limit, "temperature": 0}
    full = post(f"/v1/{path}", json={**body, "stream": True}).text
    law.fails_after = fails_after
    try:
        failed, whole = post(f"/v1/{path}", json={**body, "stream": True}), post(f"/v1/{path}", json=body)
    finally:
        law.fails_after = None
    told = sum(event.startswith("data: ") for event in failed.text.splitlines())
    written = [json.loads(line[6:]) for line in failed.text.splitlines() if line.startswith("data: {")]
    assert failed.status_code == 200
    if whole.status_code == 200:
        assert fails_after >= len(law.texts[0][1])
        return
    last = written.pop()
    assert (whole.status_code, whole.json()["error"]["message"]) == (400, "the pass is refused")
    assert told == len(written) + 1, "nothing comes behind the error"
    if path == "messages":
        assert last["type"] == whole.json()["type"] == "error"
        assert last["error"] == whole.json()["error"]
    elif path == "responses":
        assert (last["type"], last["sequence_number"]) == ("response.failed", len(written))
        assert last["response"]["status"] == "failed"
        assert last["response"]["error"] == {"code": "invalid_prompt", "message": "the pass is refused"}
        items: list[dict] = []
        for event in deepcopy(written):
            put_together(items, event)
        for begun in items[-1:]:
            begun["status"] = "incomplete"
        assert without_names(without_bytes(last["response"]["output"])) == without_names([*map(without_told, items)])
    else:
        assert last == whole.json()
    sent = [json.loads(line[6:]) for line in full.splitlines() if line.startswith("data: {")]
    assert all(each["choices"] and "usage" not in each for each in sent if "choices" in each)
    assert [*map(unnamed, written)] == [*map(unnamed, sent[: len(written)])]


def without_told(item: dict) -> dict:
    """An item whose text was cut short, with what was told of its tokens in its place."""
    parts = [dict(part) for part in item.get("content", ())]
    for part in parts:
        told = part.pop("told", [])
        part |= {"logprobs": told} if "logprobs" in part else {}
    return item | ({"content": parts} if parts else {})


def unnamed(part: Any) -> Any:
    """The same without names that are drawn, and times."""
    if isinstance(part, list):
        return [unnamed(each) for each in part]
    if isinstance(part, dict):
        own = ("id", "item_id", "call_id", "created", "created_at", "usage")
        return {name: unnamed(value) for name, value in part.items() if name not in own}
    return part
