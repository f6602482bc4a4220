"""Arguments of calls that are sent back stand in the prompt as they were written, on templates of several habits.

Where a template writes JSON, white space and the escapes of strings are its own.
"""

import json

import pytest
from fastapi.testclient import TestClient

from drafttree import Decoder
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import TEMPLATES, knowing, tokenizer_of
from testing.live_server import named_events
from testing.toy import Table, ToyModel

ASKED = {"role": "user", "content": "What is it?"}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "7"}
PLAIN = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
TOOL = {"name": "f", "parameters": {"type": "object"}}
NUMBERS = [
    '{"x": 1E400}',
    '{"x": -1E400}',
    '{"x": -0}',
    '{"x": 0.10}',
    '{"x": 1e5}',
    '{"x": 1E+05}',
    '{"x": 123456789012345678901234567890.5}',
    '{"x": 0.1, "y": [1.50, {"z": -0}], "s": "-0 1E400"}',
    '{"x": 3, "y": -1.5, "z": 10, "u": true, "v": null}',
]
REPEATS = ['{"x": 1, "x": 2}', '{"x": 1, "x": 1, "x": 1E400}', '{"a": {"x": 1, "x": 2}, "x": 3}']
OTHERS = ['{"x": NaN}', '{"x": -Infinity}', '{"x": 1' + 5000 * "0" + "}"]


def client_of(habit: str) -> TestClient:
    """A client of a server of a toy model."""
    tokenizer = tokenizer_of("qwen3")
    tokenizer.chat_template = TEMPLATES.get(habit, PLAIN)
    vocab = len(tokenizer)
    model = ToyModel(Table(vocab, order=1), vocab, context=20_000)
    decoder = Decoder(model, tokenizer=tokenizer, eos=[tokenizer.eos_token_id])
    parser = "qwen3_coder" if habit == "xml" else "auto"
    return TestClient(create_app(decoder, ServerSettings("toy", tool_parser=parser)))


@pytest.fixture(scope="module", params=["qwen3", "llama3", "qwen3-coder", "glm-4.5", "deepseek-v3.1", "plain", "xml"])
def served(request):
    """A habit, and a client of a server that has it."""
    with client_of(request.param) as client:
        yield request.param, client


@pytest.fixture(scope="module")
def client():
    """A client of a server of the first habit."""
    with client_of("qwen3") as client:
        yield client


def prompt_of(client: TestClient, arguments: str) -> str:
    """The prompt of a conversation in which a call is sent back."""
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [ASKED, {"role": "assistant", "tool_calls": [call]}, RESULT]
    reply = client.post("/tokenize", json={"messages": messages, "tools": [{"type": "function", "function": TOOL}]})
    assert reply.status_code == 200, reply.text
    return client.post("/detokenize", json={"tokens": reply.json()["tokens"]}).json()["prompt"]


def values_of(arguments: str) -> list[tuple[str, str]]:
    """The names and the texts of the values of a JSON object, by hand."""
    decoder, place, found = json.JSONDecoder(parse_int=str), 1, []
    while arguments[place - 1] != "}":
        name, place = decoder.raw_decode(arguments, place)
        begin = place + len(": ")
        _, place = decoder.raw_decode(arguments, begin)
        found.append((name, arguments[begin:place]))
        place += len(", ")
        if arguments[place - 2] == "}":
            break
    return found


@pytest.mark.parametrize("arguments", [*NUMBERS, *REPEATS, *OTHERS], ids=lambda each: each[:30])
def test_a_call_stands_in_the_prompt_as_it_was_written(served, arguments):
    habit, client = served
    prompt = prompt_of(client, arguments)
    if habit in ("qwen3", "llama3", "deepseek-v3.1", "plain"):
        assert arguments in prompt
        return
    opening, closing = (
        ("<arg_key>{}</arg_key>\n<arg_value>", "</arg_value>")
        if habit == "glm-4.5"
        else ("<parameter={}>\n", "\n</parameter>")
    )
    before = 0
    for name, value in values_of(arguments):
        shown = value.strip('"') if value.startswith('"') else value
        if habit != "xml":  # Python's own words, as in transformers
            shown = {"true": "True", "null": "None"}.get(shown, shown.replace('"', "'"))
        before = prompt.index(opening.format(name) + shown + closing, before) + 1


ROUTES = {
    "chat/completions": lambda call: {
        "messages": [ASKED, {"role": "assistant", "tool_calls": [call]}, RESULT],
        "max_tokens": 1,
    },
    "responses": lambda call: {
        "input": [
            ASKED,
            {"type": "function_call", "call_id": "c", **call["function"]},
            {"type": "function_call_output", "call_id": "c", "output": "7"},
        ],
        "max_output_tokens": 1,
    },
}


@pytest.mark.parametrize("arguments", [*NUMBERS, *REPEATS], ids=lambda each: each[:30])
def test_all_routes_count_the_same_prompt(client, arguments):
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    expected = client.post("/tokenize", json={"messages": ROUTES["chat/completions"](call)["messages"]}).json()["count"]
    for route, body in ROUTES.items():
        usage = client.post(f"/v1/{route}", json=body(call)).json()["usage"]
        assert usage.get("prompt_tokens", usage.get("input_tokens")) == expected
    if arguments in REPEATS:  # an object of the body has a name once
        arguments = json.dumps(json.loads(arguments)).replace("Infinity", "1E400")
        call["function"]["arguments"] = arguments
        expected = client.post("/tokenize", json={"messages": ROUTES["chat/completions"](call)["messages"]}).json()[
            "count"
        ]
    turns = json.dumps(
        [
            ASKED,
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": "INPUT"}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "7"}]},
        ]
    )
    body = f'{{"messages": {turns}}}'.replace('"INPUT"', arguments)
    reply = client.post("/v1/messages/count_tokens", content=body, headers={"Content-Type": "application/json"})
    assert reply.json() == {"input_tokens": expected}


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("[1]", "messages.1.content.0.input: give an object"),
        ("7", "messages.1.content.0.input: give an object"),
        (
            '{"x": NaN}',
            "messages.1.content.0.input: this is not JSON: Out of range float values are not JSON compliant",
        ),
        (
            '{"x": ' + 100 * "[" + 100 * "]" + "}",
            "messages.1.content.0.input: this is nested more than 100 levels deep",
        ),
    ],
    ids=lambda each: each[:20],
)
def test_an_input_that_is_no_object_of_json_is_refused(client, given, message):
    call = {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "f", "input": "INPUT"}]}
    body = json.dumps({"messages": [ASKED, call]}).replace('"INPUT"', given)
    reply = client.post("/v1/messages/count_tokens", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 400
    assert reply.json()["error"]["message"].startswith(message)


def test_numbers_of_other_fields_are_read_as_ever(client):
    body = '{"prompt": [-0, 1], "temperature": 1E-400, "top_p": 0.50, "seed": -0, "max_tokens": 1}'
    reply = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    assert reply.status_code == 200, reply.text
    reply = client.post(
        "/v1/completions", content='{"prompt": "x", "temperature": 1E400}', headers={"Content-Type": "application/json"}
    )
    assert reply.json()["error"]["message"].startswith("temperature: give a finite number")


@pytest.mark.parametrize("stream", [False, True])
def test_a_number_that_no_float_holds_leaves_a_reply_json(stream):
    call = '<tool_call>\n{"name": "f", "arguments": {"x": 1E400}}\n</tool_call>'
    tools = [{"name": "f", "input_schema": {"type": "object", "properties": {"x": {"type": "number"}}}}]
    body = {"messages": [ASKED], "tools": tools, "temperature": 0, "max_tokens": 100, "stream": stream}
    with TestClient(create_app(knowing(call, "qwen3"), ServerSettings("m"))) as client:
        text = client.post("/v1/messages", json=body).text
    assert "Infinity" not in text
    if stream:  # which has the text of the model
        deltas = [event["delta"] for event in named_events(text) if event["type"] == "content_block_delta"]
        assert "".join(delta["partial_json"] for delta in deltas) == '{"x": 1E400}'
    else:
        assert json.loads(text)["content"][-1]["input"] == {"x": None}
