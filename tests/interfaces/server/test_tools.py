"""Tools: the calls that a grammar makes of a model's text, whole and streamed, and the conversation after them."""

import asyncio
import json

import openai
import pytest
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from testing.live_server import strict

PATH = "chat/completions"
ASK = [{"role": "user", "content": "Is it cold in Paris?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}, "größe": {"enum": ["groß", "klein"]}},
    "required": ["city", "größe"],
    "additionalProperties": False,
}
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "Weather now", "parameters": CITY}}
CLOCK = {"type": "function", "function": {"name": "clock"}}
BODY = {"messages": ASK, "tools": [WEATHER, CLOCK], "temperature": 0, "max_tokens": 120, "parallel_tool_calls": False}
NAMED = {"type": "function", "function": {"name": "clock"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


def answer(post, **body):
    return strict(ChatCompletion, post(PATH, **{**BODY, **body}).json()).choices[0]


def form(schema: dict) -> dict:
    return {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema}}


def test_a_required_call_conforms_to_one_of_the_schemas(post):
    choice = answer(post, tool_choice="required", tools=[WEATHER])
    (call,) = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert (choice.finish_reason, choice.message.content, call.function.name) == ("tool_calls", None, "get_weather")
    assert arguments["city"] in ("Paris", "Rome")
    assert arguments["größe"] in ("groß", "klein")


@pytest.mark.parametrize("choice", [NAMED, ALLOWED], ids=["named", "allowed"])
def test_a_choice_of_a_function_calls_that_one(post, choice):
    (call,) = answer(post, tool_choice=choice).message.tool_calls
    assert (call.function.name, json.loads(call.function.arguments)) == ("clock", {})


def test_none_and_auto_may_answer_in_words(post):
    plain = answer(post, tools=None, parallel_tool_calls=None)
    assert answer(post, tool_choice="none").message == plain.message
    assert answer(post, tool_choice="auto").message.content


@pytest.mark.few(1)
@pytest.mark.parametrize("parameters", [None, {}, {"description": "nothing"}, {"properties": {"a": {"const": 1}}}])
@pytest.mark.parametrize("temperature", [0, 1])
def test_parameters_without_a_type_are_those_of_an_object(post, parameters, temperature):
    tools = [{"type": "function", "function": {"name": "f", "parameters": parameters}}]
    choice = answer(post, tools=tools, tool_choice="required", temperature=temperature, seed=1)
    (call,) = choice.message.tool_calls
    assert call.function.arguments.startswith("{")
    if choice.finish_reason != "length":
        assert isinstance(json.loads(call.function.arguments), dict)


def test_a_call_and_its_result_go_on_as_a_conversation(client):
    options = {"model": "embedded", "tools": [WEATHER], "temperature": 0, "max_tokens": 60}
    called = client.chat.completions.create(messages=ASK, tool_choice="required", parallel_tool_calls=False, **options)
    message = called.choices[0].message
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "4 degrees"}
    reply = client.chat.completions.create(messages=[*ASK, message, result], tool_choice="none", **options)
    assert reply.choices[0].message.content


def test_a_form_and_tools_leave_the_choice_between_them(post):
    choice = answer(post, response_format=form({"const": {"cold": True}}), tools=[CLOCK])
    assert choice.message.tool_calls or json.loads(choice.message.content) == {"cold": True}


class Answer(BaseModel):
    cold: bool


def test_the_clients_parsers_read_forms(client):
    options = {"model": "embedded", "messages": ASK, "response_format": Answer, "max_tokens": 40}
    reply = client.chat.completions.parse(**options)
    assert isinstance(reply.choices[0].message.parsed, Answer)
    with client.chat.completions.stream(**options) as stream:
        stream.until_done()
        assert isinstance(stream.get_final_completion().choices[0].message.parsed, Answer)


def test_a_json_object_is_one(client):
    reply = client.chat.completions.create(
        model="embedded", messages=ASK, response_format={"type": "json_object"}, temperature=0, max_tokens=200
    )
    content, reason = reply.choices[0].message.content, reply.choices[0].finish_reason
    assert content.startswith("{")
    assert reason == "length" or isinstance(json.loads(content), dict)


def test_the_async_client_reads_many_streams_at_once(address, client):
    async def one(made: openai.AsyncOpenAI, seed: int) -> str:
        stream = await made.chat.completions.create(
            model="embedded", messages=ASK, seed=seed, max_tokens=12, stream=True
        )
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    async def several() -> list[str]:
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="none") as made:
            return await asyncio.gather(*(one(made, seed) for seed in range(6)))

    alone = [
        client.chat.completions.create(model="embedded", messages=ASK, seed=seed, max_tokens=12).choices[0]
        for seed in range(6)
    ]
    assert asyncio.run(several()) == [choice.message.content for choice in alone]
