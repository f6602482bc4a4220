"""Whatever a model writes: each API's reply says just that, and its stream, put together as a client does, the same.

The model writes texts by heart, so what a reply has to say is known from them alone: where the text ends and why, what
is thought, said and called, which tokens it is made of, and what they cost.
"""

import math
import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
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

from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import SPECIAL, tokenizer_of
from testing.live_server import events, named_events, strict
from testing.toy import ToyDrafter, ToyModel

EXAMPLES = int(os.environ.get("FUZZ_CASES", 0))
FEW = settings(
    max_examples=EXAMPLES or 40,
    derandomize=not EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
ASK = [{"role": "user", "content": "x"}]
FUNCTION = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}
TOOLS = {
    "chat/completions": [{"type": "function", "function": FUNCTION}],
    "responses": [{"type": "function", **FUNCTION}],
    "messages": [{"name": "f", "input_schema": FUNCTION["parameters"]}],
}
WORDS = ["So.", " It is", "\n\n", " ", "é€", "🎉", "<", "stop", "st", "[T"]
SILENT = "<|im_end|>"
"""A special token that is no mark of two of the families."""
EOS = "<|endoftext|>"
CALL = ['{"a": "', "ü", "stop", '"}']


@dataclass(frozen=True)
class Part:
    """A part of an answer: what it is, and the marks around it."""

    kind: str
    before: str
    text: str
    after: str = ""


THINK = {
    "qwen3": ("<think>", "</think>", "\n\n"),
    "mistral": ("[THINK]", "[/THINK]", ""),
    "gpt-oss": ("<|channel|>analysis<|message|>", "<|end|>", "<|start|>assistant"),
}
CALLED = {
    "qwen3": ('<tool_call>\n{"name": "f", "arguments": ', "}\n</tool_call>"),
    "mistral": ("[TOOL_CALLS]f[ARGS]", ""),
    "gpt-oss": ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>", ""),
}
SAID = {"qwen3": ("", ""), "mistral": ("", ""), "gpt-oss": ("<|channel|>final<|message|>", "<|end|><|start|>assistant")}
PROMPTS = ["So it", "é"]


@dataclass(frozen=True)
class Case:
    """Texts of a model of a family, and how they are asked for: whichever is written, they begin alike at 50 : 50."""

    family: str
    texts: Sequence[Sequence[Part]]
    limit: int
    stop: Sequence[str]
    temperature: float
    drafted_wrong: int

    def body(self, **more: Any) -> dict[str, Any]:
        return {"temperature": self.temperature, "seed": 1, **more}


words = st.lists(st.sampled_from(WORDS), min_size=1, max_size=4).map("".join)


@st.composite
def answers(draw: Any, family: str) -> list[Part]:
    """Thinking, then what is said and called."""
    found = []
    if draw(st.booleans()):
        begin, end, after = THINK[family]
        found = [Part("think", begin, draw(words), end), Part("mark", after, "")]
    kinds = st.sampled_from([["say"], ["call"], ["say", "call"], ["call", "say"], ["call", "call"], []])
    for kind in draw(kinds)[: 1 if family == "gpt-oss" else 2]:
        if kind == "say":
            text, (before, _) = draw(words), SAID[family]
            found.append(Part("say", before, text))
        else:
            arguments = draw(st.just("{}") | st.lists(st.sampled_from(CALL[1:3]), max_size=3).map(_arguments))
            found.append(Part("call", CALLED[family][0], arguments, CALLED[family][1]))
    return found


def _arguments(pieces: list[str]) -> str:
    return "".join([CALL[0], *pieces, CALL[-1]])


def raw(parts: Sequence[Part]) -> str:
    return "".join(part.before + part.text + part.after for part in parts)


@st.composite
def cases(draw: Any) -> Case:
    family = draw(st.sampled_from([*THINK]))
    temperature = draw(st.sampled_from([0, 1]))
    texts = [draw(answers(family)) for _ in range(2)]
    whole = raw(texts[0])
    places = st.integers(0, max(len(whole) - 1, 0))
    cuts = draw(st.lists(st.tuples(places, st.integers(1, 6)), max_size=2))
    stop = [whole[begin : begin + length] for begin, length in cuts] + ["never written"]
    stop = [each for each in stop if each and not any(mark in each for mark in SPECIAL)]
    limit = draw(st.just(200) | st.integers(1, 60))
    return Case(family, texts, limit, stop, temperature, draw(st.integers(2, 7)))


Texts = Sequence[tuple[list[int], list[int]]]


class Scripts:
    """The law of a model that writes texts by heart, each behind its prompt, and of a drafter that is often right.

    Of the texts behind one prompt it draws one. Where it writes only one, another token is less likely by so much that
    it is never drawn, and not so little that log-probabilities would not show it.
    """

    def __init__(self, family: str) -> None:
        self.tokenizer = tokenizer_of(family)
        self.vocab = len(self.tokenizer)
        self.eos = self.tokenizer.eos_token_id
        self.texts: Texts = ()
        self.drafted_wrong, self.rival = 2, False

    def tokens(self, text: str) -> list[int]:
        return self.tokenizer(text, add_special_tokens=False)["input_ids"]

    def __call__(self, prefix: Sequence[int]) -> list[float]:
        logits = [0.0] * self.vocab
        for prompt, text in self.texts:
            begin, written = list(prefix[: len(prompt)]), list(prefix[len(prompt) :])
            if begin == prompt and text[: len(written)] == written:
                due = text[len(written)] if len(written) < len(text) else self.eos
                if self.rival:
                    logits[(due + 1) % self.vocab] = 39.0 - len(written) % 3
                logits[due] = 40.0
        return logits

    def draft(self, prefix: Sequence[int]) -> list[float]:
        return self(prefix) if len(prefix) % self.drafted_wrong else [0.0] * self.vocab

    def spelled(self, token: int, marks: str = "") -> bytes:
        """The bytes of a token in a text; special tokens have none but those that are marks."""
        name = self.tokenizer.convert_ids_to_tokens(token)
        if name in SPECIAL or token == self.eos:
            return name.encode() if name in marks else b""
        if token in self.tokenizer.added_tokens_decoder:
            return name.encode()
        return bytes(BYTES[character] for character in name)

    def named(self, token: int) -> str:
        """The name of a token."""
        found = self.spelled(token, " ".join(SPECIAL))
        try:
            return found.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in found)

    def scores(self, prompt: Sequence[int], tokens: Sequence[int]) -> list[tuple[str, float, list[float]]]:
        """The name of each token, its log-probability, and those of the two likeliest ones."""
        found = []
        for place in range(len(tokens)):
            row = self([*prompt, *tokens[:place]])
            whole = math.log(sum(map(math.exp, row)))
            likeliest = [round(each - whole, 3) for each in sorted(row, reverse=True)[:2]]
            found.append((self.named(tokens[place]), round(row[tokens[place]] - whole, 3), likeliest))
        return found


def _byte_names() -> dict[str, int]:
    """The characters by which byte-level tokenizers write bytes, as GPT-2 has them."""
    shown = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in shown]
    return {chr(byte): byte for byte in shown} | {chr(256 + place): byte for place, byte in enumerate(hidden)}


BYTES = _byte_names()


@dataclass(frozen=True)
class Written:
    """What a model has written where its text ends.

    Attributes:
        text: without the stop string.
        count: tokens, with those of a stop string and EOS.
        reason: why it ends.
        stopped_by: the stop string.
        pieces: the bytes of each token.
    """

    text: str
    count: int
    reason: str
    stopped_by: str | None
    pieces: Sequence[bytes]

    @classmethod
    def of(cls, law: Scripts, tokens: Sequence[int], limit: int, stop: Sequence[str], marks: str = "") -> "Written":
        pieces = [law.spelled(token, marks) for token in tokens]
        text = ""
        for count, token in enumerate([*tokens, law.eos][:limit], start=1):
            name = law.tokenizer.convert_ids_to_tokens(token)
            if token == law.eos or name in {*stop} & {*SPECIAL}:
                return cls(text, count, "stop", name if name in stop else None, pieces[: count - 1])
            text = b"".join(pieces[:count]).decode(errors="replace")
            if found := [(text.find(each), each) for each in stop if each in text]:
                end, stopped_by = min(found)
                return cls(text[:end], count, "stop", stopped_by, pieces[:count])
        return cls(text, limit, "length", None, pieces[:limit])

    def before(self, character: int) -> int:
        """The number of tokens up to the one that completes so many characters."""
        return next((count for count in range(self.count) if self.complete(count) >= character), self.count)

    def complete(self, count: int) -> int:
        """The number of characters that so many tokens complete."""
        return len(b"".join(self.pieces[:count]).decode(errors="ignore"))

    @cached_property
    def scored(self) -> int:
        """The number of tokens whose log-probabilities are told: those of the text."""
        return self.count if self.reason == "length" else self.before(len(self.text))


@dataclass(frozen=True)
class Answer:
    """An answer as a chat has it.

    Attributes:
        thought: what is thought.
        said: what is said.
        calls: the arguments of the calls.
        reasoning: tokens that are thinking, with the marks around it.
        in_call: whether the text ends within the arguments of a call.
        torn: how much there is of a mark in which the text ends.
    """

    thought: str
    said: Sequence[str]
    calls: Sequence[str]
    reasoning: int
    in_call: bool
    torn: str
    spans: Sequence[tuple[int, int]]

    @classmethod
    def of(cls, parts: Sequence[Part], written: Written) -> "Answer":
        thought, said, calls, reasoning, in_call, torn, place = "", [], [], 0, False, "", 0
        spans = []
        text = written.text
        for part in parts:
            begin = place + len(part.before)
            end = begin + len(part.text)
            first, place = place, end + len(part.after)
            shown = text[begin:end]
            for mark_begin, mark_end in ((first, begin), (end, place)):
                if mark_begin < len(text) < mark_end:
                    torn = text[mark_begin:]
            if len(text) < begin or part.kind == "mark":
                continue
            if part.kind == "think":
                thought += shown
                ended = written.before(place) if len(text) >= place else written.count
                reasoning += ended - written.before(first)
            elif part.kind == "say":
                said.append(shown)
                if shown.strip():
                    spans.append((begin, begin + len(shown)))
            else:
                calls.append(shown)
                in_call = len(text) < end
        return cls(thought, said, calls, reasoning, in_call, torn, spans)

    def check(self, thought: str, said: str, calls: Sequence[str]) -> None:
        """Whether a reply says the same; white space around marks is dropped, and half a mark may be said."""
        if self.torn:
            assert joined(thought).startswith(joined(self.thought))
            assert joined(said) in joined("".join(self.said) + self.torn)
            assert joined(said).startswith(joined("".join(self.said)))
        else:
            assert thought.strip() == self.thought.strip()
            assert said.strip() == "".join(each.strip() for each in self.said).strip()
        assert [each for each in calls if each] == [each for each in self.calls if each]

    def finish_reason(self, written: Written, calls: int) -> str:
        called = written.reason == "stop" and calls and not self.in_call
        return "tool_calls" if called else written.reason


def joined(text: str) -> str:
    """A text without white space."""
    return "".join(text.split())


HERMES = Part("call", CALLED["qwen3"][0], '{"a": "stop"}', CALLED["qwen3"][1])
BEGINNINGS = Case("qwen3", [[Part("say", "", "So it is."), HERMES]], 200, [], 0, 7)
"""A message and a call whose beginnings come in one round."""
CUT_CALL = Case("qwen3", [[HERMES, HERMES]], 200, ["top"], 0, 7)
"""A call in which a stop string ends the text."""


class Served:
    """Servers of models of all families."""

    def __init__(self) -> None:
        self.laws, self.clients, self.prompts = {}, {}, {}
        for family in THINK:
            law = self.laws[family] = Scripts(family)
            model, drafter = ToyModel(law, law.vocab), ToyDrafter(law.draft, law.vocab)
            decoder = Decoder(model, drafter, tokenizer=law.tokenizer, eos=[law.eos]).with_costs(TOY_COSTS)
            self.clients[family] = TestClient(create_app(decoder, ServerSettings("m")))

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
        post = self.clients[case.family].post
        whole = post(f"/v1/{path}", json=case.body(**body))
        usage = {"stream_options": {"include_usage": True}} if "completions" in path else {}
        stream = post(f"/v1/{path}", json={**case.body(**body), **usage, "stream": True})
        assert (whole.status_code, stream.status_code) == (200, 200), whole.text
        return whole.json(), stream.text

    def tokens(self, case: Case) -> list[int]:
        """The tokens of the first text."""
        law = self.laws[case.family]
        return [*law.tokens(raw(case.texts[0])), law.eos]

    def expected(self, case: Case, parts: Sequence[Part]) -> tuple[Written, Answer]:
        """What a chat of a case says."""
        law = self.laws[case.family]
        marks = " ".join([*THINK[case.family], *CALLED[case.family], *SAID[case.family]])
        found = Written.of(law, law.tokens(raw(parts)), case.limit, case.stop, marks)
        return found, Answer.of(parts, found)


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
    return [prompt, usage.get("completion_tokens", usage.get("output_tokens")), details.get("reasoning_tokens", 0)]


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
    *chunks, last = events(stream)
    assert last["choices"] == []
    assert same_usage(last["usage"], whole["usage"])
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
        offsets = [len(shown) + wanted.complete(count) for count in range(len(tokens))]
        whole_characters = wanted.complete(len(tokens)) + len(shown)
        assert [min(each, whole_characters) for each in logprobs["text_offset"]] == offsets
    assert told(whole["usage"])[:2] == [sum(map(len, prompts)), generated]


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
    return message.get("reasoning_content") or "", message["content"] or "", calls


@FEW
@given(case=cases(), several=st.integers(1, 2))
@example(case=BEGINNINGS, several=1)
@example(case=CUT_CALL, several=1)
def test_chats(served, case, several):
    law, prompt = served.laws[case.family], served.prompt(case.family)
    drawn = case.texts if case.temperature else case.texts[:1]
    texts = [(prompt, law.tokens(raw(parts))) for parts in drawn]
    body = {"messages": ASK, "n": several, "logprobs": True, "top_logprobs": 2, "max_tokens": case.limit}
    more = {"tools": TOOLS["chat/completions"], "stop": case.stop}
    whole, stream = served.ask(case, "chat/completions", texts, **body, **more)
    strict(ChatCompletion, without_thoughts(whole))
    state = ChatCompletionStreamState()
    for chunk in events(stream):
        strict(ChatCompletionChunk, without_thoughts(chunk))
        state.handle_chunk(ChatCompletionChunk.model_validate(chunk))
    made = state.current_completion_snapshot.model_dump()
    assert same_usage(made["usage"], whole["usage"])
    assert [choice["index"] for choice in whole["choices"]] == [*range(several)]
    generated = reasoning = 0
    for ours, choice in zip(made["choices"], whole["choices"], strict=True):
        assert ours["finish_reason"] == choice["finish_reason"]
        assert (ours["logprobs"] or {"content": []})["content"] == choice["logprobs"]["content"]
        assert content_of(ours["message"]) == content_of(choice["message"])
        wanted = []
        for (_, script), parts in zip(texts, drawn, strict=True):
            written, answer = served.expected(case, parts)
            wanted.append((law.scores(prompt, [*script, law.eos][: written.scored]), written, answer))
        scores = rounded(choice["logprobs"]["content"])
        assume(all(one[0] != other[0] for one, other in pairwise(wanted)))
        known, written, answer = next((each for each in wanted if each[0] == scores), wanted[0])
        assert scores == known
        answer.check(*content_of(choice["message"]))
        calls = len(choice["message"].get("tool_calls") or ())
        assert choice["finish_reason"] == answer.finish_reason(written, calls)
        generated, reasoning = generated + written.count, reasoning + answer.reasoning
    assert told(whole["usage"]) == [len(prompt), generated, reasoning]


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
    assert sent[-1]["type"].removeprefix("response.") == whole["status"] == sent[-1]["response"]["status"]
    assert without_names(items) == without_names(sent[-1]["response"]["output"]) == without_names(whole["output"])
    assert told(sent[-1]["response"]["usage"]) == told(whole["usage"])
    assert told(whole["usage"])[2] == answer.reasoning
    calls = [item for item in items if item["type"] == "function_call"]
    answer.check(said(items, "reasoning"), said(items, "message"), [call["arguments"] for call in calls])
    assert whole["status"] == ("incomplete" if written.reason == "length" else "completed")
    cut = written.reason == "length" or (calls and answer.finish_reason(written, len(calls)) == "stop")
    ends_open = cut and (written.reason == "length" or items[-1] == calls[-1])
    assert [item["status"] for item in items] == ["completed"] * (len(items) - 1) + [
        "incomplete" if ends_open else "completed"
    ]
    law, prompt = served.laws[case.family], served.prompt(case.family)
    scores = law.scores(prompt, served.tokens(case)[: written.scored])
    parts = [item["content"][0] for item in items if item["type"] == "message"]
    if not answer.torn:
        firsts = [min(written.before(begin), written.before(begin + 1) - 1) for begin, _ in answer.spans]
        spans = [range(first, written.before(end)) for first, (_, end) in zip(firsts, answer.spans, strict=True)]
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
    if find_spec("anthropic"):
        from anthropic.types import Message, RawMessageStreamEvent

        strict(Message, whole)
        for event in sent:
            strict(RawMessageStreamEvent, event)
    blocks, usage = [], dict(sent[0]["message"]["usage"])
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
    inputs = [block["json"] for block in blocks if block["type"] == "tool_use"]
    thought, text = ("".join(block.get(kind, "") for block in blocks) for kind in ("thinking", "text"))
    answer.check(thought, text, inputs)
    for block in blocks:
        written_input = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = from_json((written_input or "{}").encode(), partial_mode=True)  # as Anthropic's client
    assert without_names(blocks) == without_names(whole["content"])
    reason = {"stop": "end_turn", "length": "max_tokens", "tool_calls": "tool_use"}
    why = "stop_sequence" if written.stopped_by else reason[answer.finish_reason(written, len(inputs))]
    assert ended == {"stop_reason": why, "stop_sequence": written.stopped_by} == {name: whole[name] for name in ended}
    assert same_usage(usage, whole["usage"])


ASKED = {
    "completions": {"prompt": "So it"},
    "chat/completions": {"messages": ASK},
    "responses": {"input": "x"},
    "messages": {"messages": ASK, "max_tokens": 200},
}


@pytest.mark.parametrize("path", ASKED)
@settings(FEW, max_examples=EXAMPLES or 15)
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
    wanted = Written.of(law, law.tokens(text), 200, [stop])
    case = Case("mistral", [], 200, [stop], 0, data.draw(st.integers(2, 7)))
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
