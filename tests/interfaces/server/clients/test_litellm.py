"""LiteLLM, as it is, by the names under which it knows such servers."""

import pytest

from helpers.client_questions import CITY, HELLO, QUESTION, City, package

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore::UserWarning")]  # of its own types
TOOLS = [{"type": "function", "function": {"name": "get_weather", "description": "Weather now", "parameters": CITY}}]


@pytest.fixture(scope="module")
def litellm():
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LITELLM_LOCAL_MODEL_COST_MAP", "True")  # else importing it asks a server for prices
        found = package("litellm")
    found.suppress_debug_info = True
    return found


@pytest.fixture(params=["openai", "hosted_vllm", "anthropic"])
def options(litellm, address, request):
    """What all requests by one of the names have."""
    base = address if request.param == "anthropic" else f"{address}/v1"
    limits = {"temperature": 0, "max_tokens": 120, "num_retries": 0, "max_retries": 0}
    return {"model": f"{request.param}/embedded", "api_base": base, "api_key": "none", **limits}


def content_of(chunks) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_a_stream_is_the_whole_answer_in_parts(litellm, options):
    whole = litellm.completion(messages=HELLO, **options)
    chunks = [*litellm.completion(messages=HELLO, stream=True, stream_options={"include_usage": True}, **options)]
    assert whole.choices[0].message.content
    assert content_of(chunks) == whole.choices[0].message.content
    assert len(chunks) > 3
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens


@pytest.mark.parametrize("streamed", [False, True])
def test_a_tool_is_called_and_its_result_goes_on(litellm, options, streamed):
    asked = {"tools": TOOLS, "tool_choice": "required", "parallel_tool_calls": False, "stream": streamed}
    reply = litellm.completion(messages=HELLO, **asked, **options)
    message = (litellm.stream_chunk_builder([*reply]) if streamed else reply).choices[0].message
    (call,) = message.tool_calls
    City.model_validate_json(call.function.arguments)
    result = {"role": "tool", "tool_call_id": call.id, "name": call.function.name, "content": "4 degrees"}
    answer, without = (
        litellm.completion(messages=messages, tools=TOOLS, tool_choice="none", **options)
        for messages in ([*HELLO, message, result], HELLO)
    )
    assert answer.choices[0].message.content
    assert not answer.choices[0].message.tool_calls
    assert answer.usage.prompt_tokens > without.usage.prompt_tokens


def test_an_answer_has_a_form(litellm, options):
    whole = litellm.completion(messages=HELLO, response_format=City, **options).choices[0].message.content
    City.model_validate_json(whole)
    assert content_of(litellm.completion(messages=HELLO, response_format=City, stream=True, **options)) == whole


def test_responses_and_completions_are_asked_for_too(litellm, address):
    options = {"model": "openai/embedded", "api_base": f"{address}/v1", "api_key": "none", "temperature": 0}
    whole = litellm.responses(input=QUESTION, max_output_tokens=24, **options)
    *_, last = litellm.responses(input=QUESTION, max_output_tokens=24, stream=True, **options)
    text = whole.output[0].content[0].text
    assert text
    assert last.response.output[0].content[0].text == text
    continued = litellm.text_completion(prompt=QUESTION, max_tokens=8, **options).choices[0].text
    chunks = litellm.text_completion(prompt=QUESTION, max_tokens=8, stream=True, **options)
    assert "".join(chunk.choices[0].text or "" for chunk in chunks) == continued != ""


def test_an_error_is_the_servers(litellm, options):
    with pytest.raises(litellm.NotFoundError, match="the model 'other' is not served"):
        litellm.completion(messages=HELLO, **{**options, "model": options["model"].replace("embedded", "other")})
