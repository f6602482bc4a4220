"""Anthropic's client, as it is."""

from typing import Literal, get_args

import pytest

from drafttree.interfaces.server.anthropic.request import (
    CountTokensRequest,
    CustomTool,
    MessagesRequest,
    OutputConfig,
    RedactedThinkingBlock,
    TextBlock,
    ThinkingBlock,
    ToolChoice,
    ToolResultBlock,
    ToolUseBlock,
    Turn,
)
from drafttree.interfaces.server.fields import RequestModel
from helpers.client_questions import CITY, HELLO, City, package
from testing.live_server import named_events, strict

pytestmark = pytest.mark.slow

GREEDY = {"model": "embedded", "messages": HELLO, "temperature": 0, "max_tokens": 24}
WEATHER = {"name": "get_weather", "description": "Weather now", "input_schema": CITY}
CALL = {
    **GREEDY,
    "max_tokens": 120,
    "tools": [WEATHER],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
}


@pytest.fixture(scope="module")
def anthropic():
    return package("anthropic")


@pytest.fixture(scope="module")
def claude(anthropic, address):
    """Anthropic's client."""
    with anthropic.Anthropic(base_url=address, api_key="none", max_retries=0) as made:
        yield made


def sampled(made: dict) -> dict:
    """Options of a client's method that has none for sampling any more."""
    return {**{name: value for name, value in made.items() if name != "temperature"}, "extra_body": {"temperature": 0}}


def test_anthropics_client_reads_a_message_and_a_stream(claude):
    whole = claude.messages.create(**sampled(GREEDY))
    assert whole.content[0].text
    assert whole._request_id.startswith("req_")
    with claude.messages.stream(**sampled(GREEDY)) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        final = stream.get_final_message()
    assert (final.stop_reason, final.content[0].text) == (whole.stop_reason, whole.content[0].text)
    assert final.usage.output_tokens == whole.usage.output_tokens
    counted = claude.messages.count_tokens(model="embedded", messages=HELLO).input_tokens
    assert counted == whole.usage.input_tokens + whole.usage.cache_read_input_tokens


def test_anthropics_client_calls_a_tool_and_goes_on(claude):
    called = claude.messages.create(**sampled(CALL))
    (block,) = called.content
    assert (called.stop_reason, block.name) == ("tool_use", "get_weather")
    City.model_validate(block.input)
    with claude.messages.stream(**sampled(CALL)) as stream:
        assert stream.get_final_message().content[0].input == block.input
    result = {"type": "tool_result", "tool_use_id": block.id, "content": "4 degrees"}
    messages = [*HELLO, {"role": "assistant", "content": called.content}, {"role": "user", "content": [result]}]
    options = sampled({**CALL, "messages": messages, "tool_choice": {"type": "none"}})
    assert claude.messages.create(**options).content[0].text


def test_anthropics_tool_runner_calls_a_tool_and_goes_on(anthropic, claude):
    asked = []

    @anthropic.beta_tool
    def get_weather(city: Literal["Paris", "Rome"]) -> str:
        """Weather now.

        Args:
            city: where.
        """
        asked.append(city)
        return "4 degrees"

    options = {**sampled(CALL), "tools": [get_weather], "max_iterations": 2}
    first, second = claude.beta.messages.tool_runner(**options)
    assert [first.content[0].input["city"], second.content[0].input["city"]] == asked
    assert second.usage.input_tokens + second.usage.cache_read_input_tokens > first.usage.input_tokens


def test_anthropics_client_parses_a_form(claude):
    options = {**sampled(GREEDY), "output_format": City}
    assert isinstance(claude.messages.parse(**options).parsed_output, City)
    with claude.messages.stream(**options) as stream:
        assert isinstance(stream.get_final_message().parsed_output, City)


def test_anthropics_client_raises_its_errors(anthropic, claude):
    with pytest.raises(anthropic.NotFoundError, match="the model 'claude' is not served") as caught:
        claude.messages.create(**{**sampled(GREEDY), "model": "claude"})
    assert caught.value.request_id.startswith("req_")


@pytest.mark.usefixtures("broken")
def test_anthropics_client_raises_the_error_of_a_stream(anthropic, claude):
    with (
        pytest.raises(anthropic.APIStatusError, match="the pass is refused"),
        claude.messages.stream(**sampled(GREEDY)) as stream,
    ):
        stream.until_done()


@pytest.mark.parametrize("body", [GREEDY, CALL], ids=["text", "call"])
def test_replies_are_of_the_types_of_anthropics_package(anthropic, post, body):
    strict(anthropic.types.Message, post("messages", **body).json())
    for event in named_events(post("messages", **body, stream=True).text):
        strict(anthropic.types.RawMessageStreamEvent, event)
    refused = post("messages", **body, container="x").json()
    strict(anthropic.types.ErrorResponse, refused)


def fields_of(*kinds: type) -> set[str]:
    """The keys of typed dictionaries."""
    return {name for kind in kinds for name in kind.__required_keys__ | kind.__optional_keys__}


def test_every_field_of_the_installed_anthropic_package_is_known(anthropic):
    types = anthropic.types
    created, counted = types.message_create_params, types.message_count_tokens_params
    choices = get_args(types.ToolChoiceParam)
    beta = types.beta.message_create_params.MessageCreateParamsBase
    known: dict[type[RequestModel], set[str]] = {
        MessagesRequest: fields_of(created.MessageCreateParamsBase, created.MessageCreateParamsStreaming, beta)
        - {"betas"},  # a header
        CountTokensRequest: fields_of(counted.MessageCountTokensParams),
        Turn: fields_of(*get_args(types.MessageParam)),
        TextBlock: fields_of(types.TextBlockParam),
        ToolUseBlock: fields_of(types.ToolUseBlockParam),
        ToolResultBlock: fields_of(types.ToolResultBlockParam),
        ThinkingBlock: fields_of(types.ThinkingBlockParam),
        RedactedThinkingBlock: fields_of(types.RedactedThinkingBlockParam),
        CustomTool: fields_of(types.ToolParam),
        ToolChoice: fields_of(*choices),
        OutputConfig: fields_of(types.OutputConfigParam),
    }
    for model, names in known.items():
        assert names <= {field.alias or name for name, field in model.model_fields.items()}, model
