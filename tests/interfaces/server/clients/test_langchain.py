"""LangChain, as it is, over chats and over responses."""

from typing import Any, Literal

import pytest

from helpers.client_questions import QUESTION, City, package

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def langchain():
    return package("langchain_openai")


@pytest.fixture(params=["chats", "responses"])
def model(langchain, address, request):
    """A model that asks one of the routes."""
    options = {"model": "embedded", "api_key": "none", "temperature": 0, "max_tokens": 120, "max_retries": 0}
    return langchain.ChatOpenAI(
        base_url=f"{address}/v1", use_responses_api=request.param == "responses", stream_usage=True, **options
    )


@pytest.fixture
def get_weather(langchain):
    """A tool."""
    from langchain_core.tools import tool

    @tool
    def get_weather(city: Literal["Paris", "Rome"]) -> str:
        """Weather now."""
        return f"4 degrees in {city}"

    return get_weather


def joined(chunks) -> Any:
    """The message that a stream adds up to."""
    first, *rest = chunks
    return sum(rest, first)


def test_a_stream_adds_up_to_the_whole_answer(model):
    whole, chunks = model.invoke(QUESTION), [*model.stream(QUESTION)]
    assert whole.text
    assert joined(chunks).text == whole.text
    assert len([chunk for chunk in chunks if chunk.text]) > 2
    assert joined(chunks).usage_metadata["output_tokens"] == whole.usage_metadata["output_tokens"]


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_called_and_its_result_goes_on(model, get_weather, streamed):
    asking = model.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False)
    messages = [("user", QUESTION)]
    called = joined(asking.stream(messages)) if streamed else asking.invoke(messages)
    (call,) = called.tool_calls
    City.model_validate(call["args"])
    answering = model.bind_tools([get_weather], tool_choice="none")
    answer = answering.invoke([*messages, called, get_weather.invoke(call)])
    assert answer.text
    assert not answer.tool_calls
    read = answer.usage_metadata["input_tokens"]
    assert read > answering.invoke(messages).usage_metadata["input_tokens"]


@pytest.mark.parametrize("method", ["json_schema", "function_calling"])
def test_an_answer_has_a_form(model, method):
    formed = model.with_structured_output(City, method=method)
    assert isinstance(formed.invoke(QUESTION), City)
    assert isinstance([*formed.stream(QUESTION)][-1], City)


def test_an_error_is_the_servers(langchain, address):
    import openai

    model = langchain.ChatOpenAI(base_url=f"{address}/v1", model="gpt-4", api_key="none", max_retries=0)
    with pytest.raises(openai.NotFoundError, match="the model 'gpt-4' is not served"):
        model.invoke(QUESTION)
