"""/v1/responses: the answers of chats as OpenAI's Responses API has them, whole and as events."""

import json

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import BaseModel

from testing.live_server import named_events, strict

PATH = "responses"
HELLO = "Tell me about the old house."
GREEDY = {"input": HELLO, "temperature": 0, "max_output_tokens": 24}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "name": "get_weather", "parameters": CITY, "strict": True}
CLOCK = {"type": "function", "name": "clock", "parameters": None, "strict": None}
CALL = {**GREEDY, "max_output_tokens": 120, "tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
SAID = {"role": "user", "content": HELLO}
STOPPED = {"stop": [" "], "max_output_tokens": 60}


def response_of(post, **body) -> Response:
    return strict(Response, post(PATH, **{**GREEDY, **body}).json())


def events_of(post, **body) -> list:
    reply = post(PATH, **{**GREEDY, **body}, stream=True)
    assert reply.headers["content-type"].startswith("text/event-stream")
    return [strict(ResponseStreamEvent, event) for event in named_events(reply.text)]


def test_a_response_that_ends_by_itself_is_completed(post):
    response = response_of(post, **STOPPED, instructions="Be brief.")
    assert (response.status, response.incomplete_details) == ("completed", None)
    assert response.completed_at is not None
    assert response.instructions == "Be brief."


def test_instructions_and_items_are_the_messages_of_a_chat(post):
    told = [
        {"role": "system", "content": "Be brief."},
        SAID,
        {"role": "assistant", "content": "Yes.", "tool_calls": [_called("c"), _called("d")]},
        {"role": "tool", "tool_call_id": "c", "content": "A\nB"},
        {"role": "user", "content": "Go on."},
    ]
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": HELLO}]},
        {"type": "reasoning", "id": "rs_1", "summary": []},
        {
            "type": "message",
            "id": "msg_1",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Yes.", "annotations": [], "logprobs": []}],
        },
        *({"type": "function_call", "id": "fc", "call_id": each, "name": "f", "arguments": "{}"} for each in "cd"),
        {"type": "function_call_output", "call_id": "c", "output": [{"type": "input_text", "text": "A\nB"}]},
        {"role": "user", "content": "Go on."},
    ]
    ours = response_of(post, input=items, instructions="Be brief.")
    theirs = post("chat/completions", messages=told, temperature=0, max_tokens=24).json()
    assert ours.output_text == theirs["choices"][0]["message"]["content"]
    assert ours.usage.input_tokens == theirs["usage"]["prompt_tokens"]


def _called(id_: str) -> dict:
    return {"id": id_, "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_usage_tells_what_was_read_before(client):
    options = {"model": "embedded", "temperature": 0, "max_output_tokens": 8}
    first = client.responses.create(input="How old is the house by the sea?", **options)
    items = [{"role": "user", "content": "How old is the house by the sea?"}, *first.output]
    second = client.responses.create(input=[*items, {"role": "user", "content": "And the garden?"}], **options)
    assert second.usage.input_tokens_details.cached_tokens > 8


def test_vllms_parameters_reach_the_engine(post):
    options = {"seed": 3, "temperature": 1, "top_k": 5, "repetition_penalty": 1.2}
    reply = post("chat/completions", messages=[SAID], max_tokens=24, **options).json()
    assert response_of(post, **options).output_text == reply["choices"][0]["message"]["content"]


def test_the_clients_stream_is_the_whole_response(client):
    options = {"model": "embedded", **GREEDY, "max_output_tokens": 60, "extra_body": {"stop": [" "]}}
    whole = client.responses.create(**options)
    with client.responses.stream(**options) as stream:
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert [event.type for event in client.responses.create(**options, stream=True)][-1] == "response.completed"


def test_a_call_of_a_function_in_a_namespace_names_both(post):
    space = {"type": "namespace", "name": "weather", "tools": [WEATHER]}
    (call,) = post(PATH, **{**CALL, "tools": [space]}).json()["output"]
    assert (call["name"], call["namespace"]) == ("get_weather", "weather")


def test_a_call_is_an_item_and_its_output_goes_on(client):
    called = client.responses.create(model="embedded", **CALL)
    (call,) = called.output
    assert (called.status, call.type, call.name) == ("completed", "function_call", "get_weather")
    assert json.loads(call.arguments)["city"] in ("Paris", "Rome")
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "4 degrees"}
    options = {**CALL, "tool_choice": "none", "input": [SAID, call, result]}
    assert client.responses.create(model="embedded", **options).output_text


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "function", "name": "clock"},
        {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": "clock"}]},
    ],
)
def test_a_choice_of_a_function_calls_that_one_and_is_repeated(post, choice):
    response = response_of(post, **{**CALL, "tools": [WEATHER, CLOCK], "tool_choice": choice})
    assert [item.name for item in response.output] == ["clock"]
    assert response.tool_choice.model_dump(exclude_unset=True) == choice
    assert [tool.name for tool in response.tools] == ["get_weather", "clock"]


@pytest.mark.parametrize("parallel", [None, True, False])
def test_a_response_says_what_was_asked_for_and_what_is_not_done(post, parallel):
    tools = [CLOCK, {"type": "web_search"}]  # which the server cannot run
    response = response_of(post, tools=tools, tool_choice="none", parallel_tool_calls=parallel)
    assert ([tool.name for tool in response.tools], response.tool_choice) == (["clock"], "none")
    assert response.parallel_tool_calls is (parallel is not False)
    assert (response.background, response.truncation, response.previous_response_id) == (False, "disabled", None)


class Answer(BaseModel):
    cold: bool


def test_a_call_goes_on_as_its_model_is_dumped(client):
    tools = [{"type": "function", "name": "clock", "parameters": {}, "strict": False}]
    options = {"model": "embedded", "tools": tools, "temperature": 0, "max_output_tokens": 60}
    called = client.responses.create(input="x", tool_choice="required", parallel_tool_calls=False, **options)
    (call,) = [item for item in called.output if item.type == "function_call"]
    output = {"type": "function_call_output", "call_id": call.call_id, "output": "noon"}
    reply = client.responses.create(input=[call.model_dump(), output], tool_choice="none", **options)
    assert reply.output_text


def test_the_clients_parsers_read_forms(client):
    options = {"model": "embedded", "input": HELLO, "text_format": Answer, "max_output_tokens": 40}
    assert isinstance(client.responses.parse(**options).output_parsed, Answer)
    with client.responses.stream(**options) as stream:
        assert isinstance(stream.get_final_response().output_parsed, Answer)


def test_a_json_object_is_one(post):
    form = {"format": {"type": "json_object"}}
    response = response_of(post, text=form)
    assert response.output_text.startswith("{")
    assert response.text.format.type == "json_object"


@pytest.mark.parametrize("stream", [False, True])
def test_bookkeeping_changes_no_text_and_is_told_in_a_header(post, stream):
    told = {"store": True, "service_tier": "flex", "prompt_cache_key": "k", "user": "u"}
    reply = post(PATH, **GREEDY, **told, metadata={"run": "7"}, text={"verbosity": "low"}, stream=stream)
    assert reply.headers["warning"] == f'299 drafttree "without effect: {", ".join(sorted([*told, "verbosity"]))}"'
    body = named_events(reply.text)[-1]["response"] if stream else reply.json()
    assert strict(Response, body).output_text == response_of(post).output_text
    assert body["metadata"] == {"run": "7"}


def test_what_asks_for_nothing_is_not_told(post):
    nothing = {"store": False, "truncation": "disabled", "previous_response_id": None, "include": [], "reasoning": {}}
    nothing |= {"tools": [{**CLOCK, "allowed_callers": ["direct"]}], "tool_choice": "none"}
    reply = post(PATH, **GREEDY, **nothing, stream_options={"include_obfuscation": False}, stream=True)
    assert reply.status_code == 200
    assert "warning" not in reply.headers


@pytest.mark.usefixtures("broken")
def test_an_error_inside_a_stream_is_its_last_event(post, client):
    last = events_of(post)[-1]
    assert (last.type, last.response.status) == ("response.failed", "failed")
    assert last.response.error.message == "the pass is refused"
    with pytest.raises(openai.BadRequestError, match="the pass is refused"):
        client.responses.create(model="embedded", **GREEDY)


def test_a_failure_of_the_server_is_told_from_a_wrong_request(post, decoder, monkeypatch):
    def fail(*_, **__):
        raise RuntimeError("/secret/path")

    monkeypatch.setattr(decoder.target, "forward", fail)
    error = events_of(post)[-1].response.error
    assert (error.code, "secret" in error.message) == ("server_error", False)


def nested(levels: int) -> dict:
    """A schema that has so many levels."""
    schema = {}
    for _ in range(levels - 1):
        schema = {"x": schema}
    return schema


@pytest.mark.parametrize("stream", [False, True])
def test_a_schema_that_is_repeated_is_nested_no_deeper_than_can_be_written(post, stream):
    told = {**GREEDY, "tool_choice": "none", "stream": stream}
    for levels, status in ((100, 200), (101, 400), (300, 400)):
        assert post(PATH, **told, tools=[{**CLOCK, "parameters": nested(levels)}]).status_code == status
