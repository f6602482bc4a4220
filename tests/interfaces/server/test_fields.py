"""Every field of OpenAI's requests is served or refused by name, and the page of the server tells which."""

import importlib.util
from pathlib import Path
from typing import get_args

import pytest
from openai.types import completion_create_params as completions
from openai.types.chat import chat_completion_message_param
from openai.types.chat import chat_completion_stream_options_param as stream_params
from openai.types.chat import completion_create_params as chat_params

from drafttree.interfaces.server.protocol.messages import Message
from drafttree.interfaces.server.protocol.request_fields import NotServed, StreamOptions
from drafttree.interfaces.server.protocol.requests import ChatRequest, CompletionRequest

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
    ],
)
def test_every_field_of_the_installed_openai_package_is_known(model, known):
    assert known <= model.model_fields.keys()


@pytest.mark.parametrize("model", [ChatRequest, CompletionRequest])
def test_every_field_says_what_it_does_or_why_it_is_refused(model):
    for name, field in model.model_fields.items():
        refused = any(isinstance(each, NotServed) for each in field.metadata)
        assert bool(field.description) != refused, name


def test_the_tables_of_fields_are_of_today():
    spec = importlib.util.spec_from_file_location("server_fields", ROOT / "docs" / "server_fields.py")
    page = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(page)
    document = page.DOCUMENT.read_text()
    assert page.updated(document) == document, "run python docs/server_fields.py"
