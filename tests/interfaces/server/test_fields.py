"""Every field of OpenAI's requests is served or refused by name, and the page of the server tells which."""

import importlib.util
from pathlib import Path
from typing import get_args

import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import chat_completion_message_param
from openai.types.chat import chat_completion_stream_options_param as stream_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import (
    EasyInputMessageParam,
    FunctionToolParam,
    ResponseFunctionToolCallParam,
    ResponseOutputMessageParam,
    ResponseOutputTextParam,
    ResponseReasoningItemParam,
    ResponseTextConfigParam,
    response_create_params,
    response_input_item_param,
)
from openai.types.responses.response_format_text_json_schema_config_param import (
    ResponseFormatTextJSONSchemaConfigParam,
)
from openai.types.responses.response_input_text_param import ResponseInputTextParam
from openai.types.shared_params import Reasoning as ReasoningParam

from drafttree.interfaces.server.anthropic.request import CountTokensRequest, MessagesRequest
from drafttree.interfaces.server.completions import CompletionRequest
from drafttree.interfaces.server.fields import entry_of
from drafttree.interfaces.server.request import ChatRequest, Message
from drafttree.interfaces.server.responses.request import (
    FunctionCallItem,
    FunctionOutputItem,
    FunctionTool,
    InputMessage,
    Reasoning,
    ReasoningItem,
    ResponseRequest,
    ResponseStreamOptions,
    SchemaFormat,
    TextConfig,
    TextPart,
)
from drafttree.interfaces.server.sampling import StreamOptions
from drafttree.interfaces.server.service import DetokenizeRequest, TokenizeRequest
from drafttree.interfaces.server.unsupported_fields import RefusedField

ROOT = Path(__file__).parents[3]


def fields_of(*kinds: type) -> set[str]:
    """The keys of typed dictionaries, which have those of their bases too."""
    return {name for kind in kinds for name in kind.__required_keys__ | kind.__optional_keys__}


MESSAGES = get_args(chat_completion_message_param.ChatCompletionMessageParam)


@pytest.mark.parametrize(
    ("model", "known"),
    [
        (ChatRequest, fields_of(chat_params.CompletionCreateParamsStreaming, chat_params.CompletionCreateParamsBase)),
        (
            CompletionRequest,
            fields_of(completions.CompletionCreateParamsBase, completions.CompletionCreateParamsStreaming),
        ),
        (Message, fields_of(*MESSAGES)),
        (StreamOptions, fields_of(stream_params.ChatCompletionStreamOptionsParam)),
        (
            ResponseRequest,
            fields_of(
                response_create_params.ResponseCreateParamsBase, response_create_params.ResponseCreateParamsStreaming
            ),
        ),
        (ResponseStreamOptions, fields_of(response_create_params.StreamOptions)),
        (
            InputMessage,
            fields_of(EasyInputMessageParam, response_input_item_param.Message, ResponseOutputMessageParam),
        ),
        (TextPart, fields_of(ResponseInputTextParam, ResponseOutputTextParam)),
        (FunctionCallItem, fields_of(ResponseFunctionToolCallParam)),
        (FunctionOutputItem, fields_of(response_input_item_param.FunctionCallOutput)),
        (ReasoningItem, fields_of(ResponseReasoningItemParam)),
        (FunctionTool, fields_of(FunctionToolParam)),
        (TextConfig, fields_of(ResponseTextConfigParam)),
        (SchemaFormat, fields_of(ResponseFormatTextJSONSchemaConfigParam)),
        (Reasoning, fields_of(ReasoningParam)),
    ],
)
def test_every_field_of_the_installed_openai_package_is_known(model, known):
    assert known <= {field.alias or name for name, field in model.model_fields.items()}


@pytest.mark.parametrize(
    "model",
    [
        ChatRequest,
        CompletionRequest,
        ResponseRequest,
        MessagesRequest,
        CountTokensRequest,
        TokenizeRequest,
        DetokenizeRequest,
    ],
)
def test_every_field_says_what_it_does_or_why_it_is_refused(model):
    for name, field in model.model_fields.items():
        assert bool(field.description) != isinstance(entry_of(field), RefusedField), name


FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
SPACE = {"type": "namespace", "name": "n", "tools": [FUNCTION, {"type": "custom", "name": "g"}]}
TEXT = {"type": "text", "text": "x"}


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (ResponseRequest, {"input": [{"type": "reasoning", "content": []}, {"role": "user", "content": []}]}),
        (ResponseRequest, {"input": "x", "tools": [FUNCTION, SPACE, {"type": "web_search"}], "tool_choice": "auto"}),
        (ResponseRequest, {"input": "x", "tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f"}}),
        (ResponseRequest, {"input": "x", "text": {"format": {"type": "json_schema", "name": "x", "schema": {}}}}),
        (ChatRequest, {"messages": [{"role": "user", "content": [TEXT]}], "response_format": {"type": "text"}}),
        (MessagesRequest, {"max_tokens": 1, "messages": [{"role": "user", "content": [TEXT]}], "system": [TEXT]}),
    ],
)
@pytest.mark.filterwarnings("error")
def test_a_request_is_written_as_it_was_given(model, body):
    request = model.model_validate(body)
    as_lists = {"input": [{"role": "user", "content": [{"type": "input_text", "text": "x"}]}]}
    expected = body | as_lists if body.get("input") == "x" else body
    assert request.model_dump(mode="json", by_alias=True, exclude_unset=True) == expected


def test_the_tables_of_fields_are_of_today():
    spec = importlib.util.spec_from_file_location("server_fields", ROOT / "docs" / "server_fields.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    document = page.DOCUMENT.read_text()
    assert page.updated(document) == document, "run python docs/server_fields.py"
