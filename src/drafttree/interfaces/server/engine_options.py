"""The engine's options for a request, and the grammar that its texts must follow."""

import json
from collections.abc import Iterable
from typing import Any

from drafttree.engine.decoder import Decoder
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.grammar_process import WantedGrammar
from drafttree.interfaces.server.protocol.messages import NamedTool
from drafttree.interfaces.server.protocol.request_fields import (
    INT64,
    JsonObjectFormat,
    JsonSchemaFormat,
    SamplingFields,
    SeveralTexts,
    StructuredOutputs,
)
from drafttree.interfaces.server.protocol.requests import ChatRequest
from drafttree.interfaces.server.tool_calls import BEGIN, BETWEEN, call_format

MAX_LENGTH = 32_768
"""Characters of a grammar; xgrammar takes seconds for 100,000 of some schemas, and more than their square."""
ANY_OBJECT = {"type": "object"}
DEFAULT_LIMIT = 2048
"""Tokens of an answer at most where neither the request nor the model says."""
SAME_NAMES = ("top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "stop")


def engine_options(request: SamplingFields, decoder: Decoder, prompt_length: int, wanted: int | None) -> dict[str, Any]:
    """The options of a prompt's texts, all but their seeds; their grammar is yet to be compiled.

    Args:
        request: what the client asks for.
        decoder: the decoder of the served model.
        prompt_length: tokens of the prompt.
        wanted: tokens of a text at most, None where the request does not say.

    Raises:
        ServerError: a token id is outside the vocabulary, the grammar is too long, or prompt and text do not fit into
            the model's context.
    """
    limit = _limit(wanted, prompt_length, decoder)
    options = {name: value for name in SAME_NAMES if (value := getattr(request, name)) is not None}
    options["max_new_tokens"] = limit
    adopted = decoder.defaults.get("temperature", 1.0)
    options["temperature"] = adopted if request.temperature is None else request.temperature
    if request.top_k is not None:
        options["top_k"] = max(request.top_k, 0)
    if form := reply_grammar(request):
        options["grammar"] = form
    return options | _token_options(request, decoder, limit)


def _token_options(request: SamplingFields, decoder: Decoder, limit: int) -> dict[str, Any]:
    """The options that are about single tokens."""
    found: dict[str, Any] = {}
    if request.min_tokens:
        if request.min_tokens > limit:
            message = f"min_tokens is {request.min_tokens}, but the text may have {limit} tokens"
            raise ServerError(400, message, param="min_tokens")
        found["min_new_tokens"] = request.min_tokens
    if request.logit_bias:
        bias = {int(token): added for token, added in request.logit_bias.items()}
        check_tokens("logit_bias", bias, decoder)
        found["sequence_bias"] = [[[token], float(added)] for token, added in bias.items()]
    if request.stop_token_ids:
        check_tokens("stop_token_ids", request.stop_token_ids, decoder)
        found["eos_token_id"] = [*(() if request.ignore_eos else decoder.eos), *request.stop_token_ids]
        found["ignore_eos"] = False
    return found


def seeds(request: SeveralTexts) -> list[int | None]:
    """The seed of each of a prompt's texts: they differ, and the first one's is the request's."""
    if request.seed is None:
        return [None] * request.choices
    return [(request.seed + choice + INT64) % (2 * INT64) - INT64 for choice in range(request.choices)]


def _limit(wanted: int | None, prompt_length: int, decoder: Decoder) -> int:
    """Tokens of a text at most, by default as many as the context has room for, up to the model's own or 2,048.

    Raises:
        ServerError: prompt and text would not fit into the model's context.
    """
    context = decoder.target.context
    room = None if context is None else context - prompt_length
    if room is not None and room < max(wanted or 1, 1):
        asked = f"and {wanted} tokens of text exceed" if room > 0 else "leaves no room for a text in"
        advice = f" or ask for at most {room} tokens" if room > 0 else ""
        message = f"the prompt of {prompt_length} tokens {asked} the model's context of {context}; shorten it{advice}"
        raise ServerError(400, message, param="max_tokens" if room > 0 else None, code="context_length_exceeded")
    default = decoder.defaults.get("max_new_tokens") or DEFAULT_LIMIT
    return wanted if wanted is not None else min(default, default if room is None else room)


def check_tokens(field: str, tokens: Iterable[int], decoder: Decoder) -> None:
    """Refuse token ids that the model does not have.

    Raises:
        ServerError: names the field and the first of them.
    """
    vocab = decoder.target.vocab_size
    if wrong := next((token for token in tokens if token >= vocab), None):
        message = f"{field}: token id {wrong} is outside the vocabulary of {vocab}"
        raise ServerError(400, message, param=field)


def reply_grammar(request: SamplingFields) -> WantedGrammar | None:
    """The grammar that the texts of a request must follow, None for any text.

    Raises:
        ServerError: it is too long.
    """
    if request.structured_outputs:
        return _of_outputs(request.structured_outputs)
    if not isinstance(request, ChatRequest):
        return None
    schema = _schema(request)
    if request.callable_tools:
        return WantedGrammar("structural_tag", _dump(_with_calls(request, schema), "tools"), "tools")
    field = "response_format"
    return None if schema is None else WantedGrammar("json_schema", _dump(schema, field), field)


def _schema(request: ChatRequest) -> dict[str, Any] | None:
    """The schema of what is said."""
    match request.response_format:
        case JsonObjectFormat():
            return ANY_OBJECT
        case JsonSchemaFormat(json_schema=named):
            return named.body
    return None


def _with_calls(request: ChatRequest, schema: dict[str, Any] | None) -> dict[str, Any]:
    """Calls of tools, or what is said unless a call is a must."""
    tags = [call_format(name, tool) for name, tool in request.callable_tools.items()]
    single = request.parallel_tool_calls is False or isinstance(request.tool_choice, NamedTool)
    counts = {"at_least_one": True, "stop_after_first": single}
    calls = {"type": "tags_with_separator", "tags": tags, "separator": BETWEEN, **counts}
    if request.must_call:
        return calls
    if schema is not None:
        return {"type": "or", "elements": [{"type": "json_schema", "json_schema": schema}, calls]}
    return {"type": "triggered_tags", "triggers": [BEGIN], "tags": tags, "stop_after_first": single}


def _of_outputs(outputs: StructuredOutputs) -> WantedGrammar:
    field = "structured_outputs"
    if outputs.regex is not None:
        return WantedGrammar("regex", _short(outputs.regex, field), field)
    if outputs.grammar is not None:
        return WantedGrammar("ebnf", _short(outputs.grammar, field), field)
    if outputs.choice is not None:
        return WantedGrammar("json_choice", _dump(outputs.choice, field), field)
    schema = ANY_OBJECT if outputs.json_schema is None else outputs.json_schema
    text = _short(schema, field) if isinstance(schema, str) else _dump(schema, field)
    return WantedGrammar("json_schema", text, field)


def _dump(value: Any, field: str) -> str:
    """A part of a request as JSON text."""
    try:
        return _short(json.dumps(value, allow_nan=False), field)
    except (ValueError, RecursionError) as error:
        raise ServerError(400, f"{field} is no JSON: {error}", param=field) from None


def _short(text: str, field: str) -> str:
    if len(text) > MAX_LENGTH:
        message = f"{field} has {len(text)} characters as JSON; give at most {MAX_LENGTH}"
        raise ServerError(400, message, param=field)
    return text
