"""Calls that models of the Hermes family write without its marks: in a fence, or as an object that begins a line."""

import json

import pytest
import regex
from fastapi.testclient import TestClient
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.dialect.families import HERMES, THINKING
from drafttree.interfaces.server.dialect.reader import AnswerReader, CallArguments, CallBegun, Said, Thought
from drafttree.interfaces.server.serving import ServerSettings
from helpers.answers import ENDS, READ, Answer, ask, body
from helpers.dialects import knowing
from testing.live_server import events

NAMES = ["get_weather", "get", "files.search"]
CITY = {"city": "Paris", "days": 3}
PARIS = ("get_weather", CITY)
CALL = f'{{"name": "get_weather", "arguments": {json.dumps(CITY)}}}'
GET = '{"name": "get", "arguments": {}}'
INDENTED = json.dumps({"name": "get_weather", "arguments": CITY}, indent=2)
CALLS = {
    "an object": (CALL, "", [PARIS]),
    "an object behind white space": (f" \n\n {CALL}\n", "", [PARIS]),
    "an indented object": (INDENTED, "", [PARIS]),
    "a fence of JSON": (f"```json\n{INDENTED}\n```", "", [PARIS]),
    "a fence of no language": (f"```\n{CALL}\n```\n", "", [PARIS]),
    "a fence of calls": (f"```tool_call\n\n  {CALL}```", "", [PARIS]),
    "a fence behind words": (f"I call it: ```json\n{CALL}\n``` Done.", "I call it:Done.", [PARIS]),
    "a fence that is not closed": (f"```json\n{CALL}\n", "", [PARIS]),
    "an object in a later line": (f"Here it is:\n{CALL}\nThat is all.", "Here it is:That is all.", [PARIS]),
    "parameters": (CALL.replace("arguments", "parameters"), "", [PARIS]),
    "no spaces": (CALL.replace('": ', '":').replace(', "', ',"'), "", [PARIS]),
    "a name that begins another": (GET, "", [("get", {})]),
    "a name with a dot": (GET.replace("get", "files.search"), "", [("files.search", {})]),
    "strings with marks": (
        '{"name": "get", "arguments": {"a": "}\\n```\\"{", "b": {"c": [1]}}}',
        "",
        [("get", {"a": '}\n```"{', "b": {"c": [1]}})],
    ),
    "two objects": (f"{CALL}\n{GET}", "", [PARIS, ("get", {})]),
    "two objects in a fence": (f"```json\n{CALL}\n{GET}\n```", "", [PARIS, ("get", {})]),
    "two objects in a fence with a comma": (f"```json\n{CALL},\n{GET}\n```\nSo.", "So.", [PARIS, ("get", {})]),
    "two fences": (f"```json\n{CALL}\n```\nand\n```json\n{GET}\n```", "and", [PARIS, ("get", {})]),
    "with marks and without": (f"<tool_call>\n{CALL}\n</tool_call>\n{GET}", "", [PARIS, ("get", {})]),
    "lines that end as on Windows": (f"```json\r\n{GET}\r\n```", "", [("get", {})]),
    "what stands beside a call": ('{"name": "get", "arguments": {}, "type": "function", "id": 3}', "", [("get", {})]),
    "words in a fence": (f"```json\n{CALL}\nx\n```", "x\n```", [PARIS]),
}
TEXTS = {
    "no such tool": CALL.replace("get_weather", "get_weathers"),
    "a longer name": '```json\n{"name": "getting", "arguments": {}}\n```',
    "no such tool in a fence": '```json\n{\n  "name": "Bob",\n  "arguments": {"city": "Rome"}\n}\n```\n',
    "another object": '```json\n{"city": "Paris", "name": "get"}\n```',
    "a list": f"```json\n[{CALL}]\n```",
    "an indented list": json.dumps([{"name": "get", "arguments": {}}], indent=2),
    "arguments that are text": '{"name": "get", "arguments": "{}"}',
    "arguments before the name": '{"arguments": {}, "name": "get"}',
    "no arguments": '{"name": "get"}',
    "an object behind words": f"Write {CALL} to call it.",
    "an indented object behind words": f"Write\n  {CALL}",
    "code": "```python\ndef get():\n    return {}\n```\n",
    "half a call": '```json\n{"name": "get_weather", "arg',
    "half a name": '{"name": "get_we',
    "half a fence": "So:\n``",
    "a fence and white space": "```json\n  \n",
    "white space": " \n\n",
    "white space behind": "Hello.\n\n ",
}
TABLE = {**CALLS, **{name: (text, text, []) for name, text in TEXTS.items()}}


def read(pieces: list[str], **options) -> tuple[str, list[tuple[str, str]], str]:
    """What is said, the names and arguments of calls, and what is thought."""
    reader = AnswerReader(THINKING["qwen3"], HERMES, untagged=HERMES.untagged_forms(NAMES), **options)
    said, thought, calls = "", "", list[tuple[str, str]]()
    for place, piece in enumerate(pieces, start=1):
        for part in reader.read(piece, final=place == len(pieces)):
            match part:
                case Said(text=text):
                    assert reader.known >= part.begin + len(text)
                    said += text
                case Thought(text=text):
                    thought += text
                case CallBegun(name=name):
                    calls.append((name, ""))
                case CallArguments(index=index, text=text):
                    calls[index] = (calls[index][0], calls[index][1] + text)
    return said, calls, thought


@pytest.mark.parametrize(("text", "said", "calls"), TABLE.values(), ids=TABLE)
def test_a_reply_is_read_the_same_wherever_it_is_cut(text, said, calls):
    whole = read([text])
    assert whole[0] == said
    assert [(name, json.loads(arguments)) for name, arguments in whole[1]] == calls
    assert read([*text, ""]) == whole
    for cut in range(len(text)):
        assert read([text[:cut], text[cut:]]) == whole


@pytest.mark.parametrize("thinks", ["begun", "perhaps"])
def test_a_call_in_thinking_is_thinking_and_one_behind_it_is_a_call(thinks):
    thinking = f"Like so:\n{CALL}\nHm."
    text = f"{'<think>' if thinks == 'perhaps' else ''}{thinking}</think>\n\n{GET}"
    for pieces in ([text], [*text]):
        assert read(pieces, thinks=thinks) == ("", [("get", "{}")], thinking)


def test_words_come_at_once_and_arguments_as_they_grow():
    reader = AnswerReader(None, HERMES, untagged=HERMES.untagged_forms(NAMES))
    assert reader.read("A map is { so", final=False) == [Said("A map is { so")]
    assert reader.read('\n{"name": "ge', final=False) == []
    assert reader.read('x"', final=False) == [Said('\n{"name": "gex"')]
    begun = reader.read('\n```json\n{"name": "get", "arguments": {"a": "b', final=False)
    assert begun == [CallBegun(0, "get"), CallArguments(0, '{"a": "b')]


@pytest.mark.parametrize("space", [" ", "\n"])
@pytest.mark.parametrize("begun", ["", "```json\n", '{"name": "get"', '{"name": "get", "arguments":'])
def test_white_space_without_an_end_begins_no_call(begun, space):
    """All of what may begin one is looked at again with each token."""
    forms = [regex.compile(form.first) for form in HERMES.untagged_forms(NAMES)]
    assert any(form.match(begun + 60 * space, partial=True) for form in forms)
    assert not any(form.match(begun + 200 * space, partial=True) for form in forms)


ALPHABET = ["```json\n", "```", "```py\n", "\n", " ", "{", "}", CALL, GET, "words", ",", '"']
ALPHABET += ['{"name": "get", ', '{"name": "', 'get", "arguments": ', "{}", '"arguments": {}']
nonsense = st.lists(st.sampled_from([*ALPHABET, "<tool_call>", "</tool_call>"]), max_size=12).map("".join)


@settings(max_examples=200)
@given(text=nonsense, data=st.data())
def test_any_reply_is_read_the_same_in_any_cut(text, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(pieces) == read([text])


def core(text: str) -> str:
    """A text without what may be dropped beside a call: fences, white space, commas and the brace that closes it."""
    return regex.sub(r"```|json|py|[\s,}]", "", text)


@settings(max_examples=300)
@given(text=st.lists(st.sampled_from(ALPHABET), max_size=12).map("".join))
def test_nothing_is_lost_of_any_reply(text):
    reader = AnswerReader(None, HERMES, untagged=HERMES.untagged_forms(NAMES))
    rebuilt = ""
    for part in reader.read(text, final=True):
        rebuilt += f'{{"name": "{part.name}", "arguments": ' if isinstance(part, CallBegun) else part.text
    assert rebuilt == text if not reader.calls else core(rebuilt) == core(text)


def served(answer: str, family: str = "qwen3", **settings) -> TestClient:
    return TestClient(create_app(knowing(answer, family), ServerSettings("m", **settings)))


PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
CLOSED = {**PARAMETERS, "additionalProperties": False, "required": ["city", "days"]}
TOOL = {"name": "get_weather", "parameters": PARAMETERS}


def asked(client: TestClient, route: str = "chat/completions", **more) -> Answer:
    """The answer of a model that is told of the tool."""
    return ask(client, route, {**body(route, "Is it cold?", "get_weather", PARAMETERS, 300), **more})


ANSWERS = {
    "fenced": (f"```json\n{INDENTED}\n```", "", [PARIS]),
    "bare": (CALL, "", [PARIS]),
    "behind words": (f"I look.\n```json\n{CALL}\n```", "I look.", [PARIS]),
    "two": (f"{CALL}\n{CALL}", "", [PARIS, PARIS]),
    "no tool": (CALL.replace("get_weather", "Bob"), CALL.replace("get_weather", "Bob"), []),
}


@pytest.mark.few(3)
@pytest.mark.parametrize("route", READ)
@pytest.mark.parametrize(("answer", "said", "calls"), ANSWERS.values(), ids=ANSWERS)
def test_every_route_reads_calls_without_marks(route, answer, said, calls):
    with served(answer) as client:
        expected = (said, calls, ENDS[route][not calls])
        assert asked(client, route) == expected
        assert asked(client, route, stream=True) == expected


def test_a_template_that_knows_no_tools_has_such_calls_read_too():
    with served(f"```json\n{CALL}\n```", "mistral", tool_parser="hermes") as client:
        assert asked(client) == ("", [PARIS], "tool_calls")


@pytest.mark.parametrize(
    "more",
    [
        {"tools": [{"type": "function", "function": {**TOOL, "strict": True, "parameters": CLOSED}}]},
        {"tools": [{"type": "function", "function": {**TOOL, "name": "other"}}]},
        {"tools": None},
        {"tool_choice": "none"},
        {"response_format": {"type": "json_object"}},
    ],
    ids=["strict", "another tool", "no tools", "none", "a form"],
)
def test_an_object_stays_text(more):
    with served(CALL) as client:
        assert asked(client, **more) == (CALL, [], "stop")


@pytest.mark.parametrize(
    ("answer", "said"), [(f"{CALL}\n{CALL}", CALL), (f"```json\n{CALL},\n{CALL}\n```", f",\n{CALL}\n```")]
)
@pytest.mark.parametrize("stream", [False, True])
def test_without_parallel_calls_the_first_is_one(answer, said, stream):
    with served(answer) as client:
        assert asked(client, parallel_tool_calls=False, stream=stream) == (said, [PARIS], "tool_calls")


def test_a_form_of_another_family_reads_no_such_calls():
    with served(CALL, "glm-4.5") as client:
        assert asked(client) == (CALL, [], "stop")


@pytest.mark.parametrize("stream", [False, True])
def test_a_call_that_is_cut_off_is_returned_as_far_as_it_was_written(stream):
    with served(CALL) as client:
        request = body("chat/completions", "x", "get_weather", PARAMETERS, 300)
        reply = client.post("/v1/chat/completions", json={**request, "stop": ['", "days"'], "stream": stream})
        found = events(reply.text) if stream else [reply.json()]
    (ended,) = [each["choices"][0] for each in found if each["choices"][0]["finish_reason"]]
    messages = [each["choices"][0]["delta" if stream else "message"] for each in found]
    functions = [call["function"] for message in messages for call in message.get("tool_calls", ())]
    assert "".join(each["arguments"] for each in functions) == '{"city": "Paris'
    assert ended["finish_reason"] == "stop"


def test_log_probabilities_are_those_of_what_is_said():
    with served(f"Look.\n{CALL}") as client:
        request = body("chat/completions", "x", "get_weather", PARAMETERS, 300)
        reply = client.post("/v1/chat/completions", json={**request, "logprobs": True, "n": 2}).json()
    for choice in reply["choices"]:
        assert choice["finish_reason"] == "tool_calls"
        tokens = "".join(each["token"] for each in choice["logprobs"]["content"])
        assert tokens == f"Look.\n{CALL}"
