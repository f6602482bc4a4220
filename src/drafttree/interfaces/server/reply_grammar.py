"""The grammar of a reply: the form that a request asks for, and calls of its tools."""

import json
from functools import lru_cache
from typing import Any

from drafttree.constraints import grammar
from drafttree.constraints.grammar import Grammar
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.protocol.chat_request import ChatRequest
from drafttree.interfaces.server.protocol.response_format import JsonObjectFormat, JsonSchemaFormat
from drafttree.interfaces.server.protocol.sampling_fields import SamplingFields
from drafttree.interfaces.server.protocol.structured_outputs import StructuredOutputs
from drafttree.interfaces.server.protocol.tools import NamedTool
from drafttree.interfaces.server.tool_calls import BEGIN, BETWEEN, call_format

MAX_LENGTH = 32_768
"""Characters of a grammar; xgrammar takes seconds for 100,000 of some schemas, and more than their square."""
ANY_OBJECT = {"type": "object"}


def reply_grammar(request: SamplingFields) -> Grammar | None:
    """The grammar that the texts of a request must follow, None for any text.

    Raises:
        ServerError: it is too long.
        ConfigError: it is malformed, or a part of it would not be enforced.
    """
    if request.structured_outputs:
        return _of_outputs(request.structured_outputs)
    if not isinstance(request, ChatRequest):
        return None
    schema = _schema(request)
    if request.callable_tools:
        return _made("structural_tag", _dump(_with_calls(request, schema), "tools"))
    return None if schema is None else _made("json_schema", _dump(schema, "response_format"))


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


def _of_outputs(outputs: StructuredOutputs) -> Grammar:
    field = "structured_outputs"
    if outputs.regex is not None:
        return _made("regex", _short(outputs.regex, field))
    if outputs.grammar is not None:
        return _made("ebnf", _short(outputs.grammar, field))
    if outputs.choice is not None:
        return _made("json_choice", _dump(outputs.choice, field))
    schema = ANY_OBJECT if outputs.json_schema is None else outputs.json_schema
    return _made("json_schema", _short(schema, field) if isinstance(schema, str) else _dump(schema, field))


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


@lru_cache(maxsize=32)
def _made(kind: str, text: str) -> Grammar:
    """A grammar; one that is asked for again is not compiled again."""
    match kind:
        case "regex":
            return grammar.regex(text)
        case "ebnf":
            return grammar.ebnf(text)
        case "json_choice":
            quoted = (json.dumps(each, ensure_ascii=False) for each in json.loads(text))
            return grammar.ebnf(f"root ::= {' | '.join(quoted)}")
        case "structural_tag":
            return grammar.structural_tag(json.loads(text))
    return grammar.json_schema(text)
