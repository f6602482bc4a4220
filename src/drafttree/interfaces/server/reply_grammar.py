"""The grammar that the texts of a request must follow; it begins where thinking has ended."""

import json
from typing import Any, Literal

from drafttree.interfaces.server.dialect.families import CallForm, Thinking
from drafttree.interfaces.server.dialect.model_dialect import Dialect
from drafttree.interfaces.server.dialect.reader import Thinks
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.fields import JsonObjectFormat, JsonSchemaFormat, StructuredOutputs
from drafttree.interfaces.server.grammars import WantedGrammar
from drafttree.interfaces.server.request import ChatRequest, FunctionDefinition, NamedTool

MAX_LENGTH = 32_768
"""Characters of a grammar; the heaviest schema of so many takes a second."""
ANY_OBJECT = {"type": "object"}
NO_ARGUMENTS = {"type": "object", "properties": {}}
Format = dict[str, Any]
"""A part of an xgrammar structural tag."""


def chat_grammar(request: ChatRequest, dialect: Dialect, thinks: Thinks) -> WantedGrammar | None:
    """The grammar of the answers to a conversation, None for any text.

    Args:
        request: what the client asks for.
        dialect: how the model writes thinking and calls.
        thinks: whether an answer begins with thinking.

    Raises:
        ServerError: it is too long, or must have calls that would not be read.
    """
    if request.structured_outputs:
        return _behind_thinking(outputs_grammar(request.structured_outputs), dialect.thinking, thinks)
    if request.must_call and dialect.calls is None:
        message = "tool_choice asks for a call, but this server reads none (--tool-parser none)"
        raise ServerError(400, message, param="tool_choice", code="not_served")
    schema = _schema(request)
    if request.callable_tools and dialect.calls:
        single = request.parallel_tool_calls is False or isinstance(request.tool_choice, NamedTool) or dialect.one_call
        form = _with_calls(request, schema, dialect.calls, _say(dialect.thinking), single=single)
        wanted = WantedGrammar("structural_tag", _dump(form, "tools"), "tools")
    elif schema is not None:
        field = request.called("response_format")
        wanted = WantedGrammar("json_schema", _dump(schema, field), field)
    else:
        return None
    return _behind_thinking(wanted, dialect.thinking, thinks)


def outputs_grammar(outputs: StructuredOutputs) -> WantedGrammar:
    """The grammar of vLLM's structured outputs.

    Raises:
        ServerError: it is too long.
    """
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


def _behind_thinking(wanted: WantedGrammar, thinking: Thinking | None, thinks: Thinks) -> WantedGrammar:
    """A grammar that lets a model think first."""
    if thinking is None or (thinks == "no" and not thinking.say):
        return wanted
    parts = []
    if thinks != "no":
        begin = "" if thinks == "begun" else thinking.begin
        tag = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": thinking.end}
        before = {"type": "sequence", "elements": [tag, {"type": "regex", "pattern": thinking.after}]}
        parts.append(before if thinks == "begun" else {"type": "optional", "content": before})
    if wanted.kind != "structural_tag":
        parts += _say(thinking)
    form = {"type": "sequence", "elements": [*parts, _format(wanted)]}
    return WantedGrammar("structural_tag", json.dumps(form), wanted.field)


def _say(thinking: Thinking | None) -> list[Format]:
    """The mark that stands before what is said, if there is one."""
    return [{"type": "const_string", "value": thinking.say}] if thinking and thinking.say else []


def _format(wanted: WantedGrammar) -> Format:
    """A grammar as a part of a structural tag."""
    match wanted.kind:
        case "regex":
            return {"type": "regex", "pattern": wanted.text}
        case "ebnf":
            return {"type": "grammar", "grammar": wanted.text}
        case "json_choice":
            texts = [{"type": "const_string", "value": each} for each in json.loads(wanted.text)]
            return {"type": "or", "elements": texts}
        case "structural_tag":
            return json.loads(wanted.text)
    return {"type": "json_schema", "json_schema": wanted.text}


def _schema(request: ChatRequest) -> dict[str, Any] | None:
    """The schema of what is said."""
    match request.response_format:
        case JsonObjectFormat():
            return ANY_OBJECT
        case JsonSchemaFormat(json_schema=named):
            return named.body
    return None


def _with_calls(
    request: ChatRequest, schema: dict[str, Any] | None, form: CallForm, say: list[Format], *, single: bool
) -> Format:
    """Calls of tools, or what is said unless a call is a must."""
    tags = [_tag(name, tool, form) for name, tool in request.callable_tools.items()]
    calls = _calls(form, tags, single=single)
    if request.must_call:
        return calls
    if schema is not None:
        answer = {"type": "json_schema", "json_schema": schema, "of": "response_format"}
        said = {"type": "sequence", "elements": [*say, answer]}
        return {"type": "or", "elements": [said, calls]}
    triggered = [calls] if form.around[0] else tags
    single = single or bool(form.around[0])
    return {"type": "triggered_tags", "triggers": [form.trigger], "tags": triggered, "stop_after_first": single}


def _calls(form: CallForm, tags: list[Format], *, single: bool) -> Format:
    """One call or more, with what stands around all of them."""
    counts = {"at_least_one": True, "stop_after_first": single}
    calls = {"type": "tags_with_separator", "tags": tags, "separator": form.between or "", **counts}
    if not form.around[0]:
        return calls
    return {"type": "tag", "begin": form.around[0], "content": calls, "end": form.around[1]}


def _tag(name: str, tool: FunctionDefinition, form: CallForm) -> Format:
    """The tag that calls of a tool conform to."""
    schema = NO_ARGUMENTS if tool.parameters is None else ANY_OBJECT | tool.parameters
    style: dict[str, Literal["qwen_xml", "glm_xml"]] = {} if form.arguments == "json" else {"style": form.arguments}
    content = {"type": "json_schema", "json_schema": schema, "of": f"tool {name!r}", **style}
    return {"type": "tag", "begin": f"{form.begin}{name}{form.middle}", "content": content, "end": form.end}


def _dump(value: Any, field: str) -> str:
    """A part of a request as JSON text."""
    try:
        return _short(json.dumps(value, allow_nan=False), field)
    except (ValueError, RecursionError) as error:
        raise ServerError(400, f"{field} is not JSON: {error}", param=field) from None


def _short(text: str, field: str) -> str:
    if len(text) > MAX_LENGTH:
        message = f"{field} has {len(text)} characters as JSON; give at most {MAX_LENGTH}"
        raise ServerError(400, message, param=field)
    return text
