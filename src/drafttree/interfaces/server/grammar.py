"""The grammar that the texts of a request must follow, which begins where thinking has ended; and who makes it."""

import asyncio
import json
import logging
import os
import re
import sys
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import count
from queue import PriorityQueue
from typing import Any, Literal

from prometheus_client import Histogram

from drafttree.constraints import grammar
from drafttree.constraints.grammar import Grammar
from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation_options import RequestOptions
from drafttree.interfaces.server.admission import open_request
from drafttree.interfaces.server.dialect.families import CallForm, Thinking
from drafttree.interfaces.server.dialect.model_dialect import Dialect
from drafttree.interfaces.server.dialect.reader import Thinks
from drafttree.interfaces.server.errors import AGAIN, ServerError
from drafttree.interfaces.server.fields import JsonObjectFormat, JsonSchemaFormat, StructuredOutputs
from drafttree.interfaces.server.request import ChatRequest, NamedTool

logger = logging.getLogger("drafttree")
Made = tuple[Grammar, bool]
NICENESS = 5
"""By how much less urgent the thread is than those that write texts."""


@dataclass(frozen=True)
class WantedGrammar:
    """A grammar as a request asks for it.

    Attributes:
        kind: what the text is.
        text: the grammar.
        field: the field of the request that has it.
        otherwise: takes its place where it cannot be made.
        unenforced: why the schemas of tools, of which the model is told, have no part in it; "" if they have.
    """

    kind: Literal["json_schema", "json_choice", "structural_tag", "regex", "ebnf"]
    text: str
    field: str
    otherwise: "WantedGrammar | None" = None
    unenforced: str = ""

    def parse(self) -> Grammar:
        """The grammar.

        Raises:
            ConfigError: it is malformed, or a part of it would not be enforced.
        """
        match self.kind:
            case "regex":
                return grammar.regex(self.text)
            case "ebnf":
                return grammar.ebnf(self.text)
            case "json_choice":
                quoted = (json.dumps(each, ensure_ascii=False) for each in json.loads(self.text))
                return grammar.ebnf(f"root ::= {' | '.join(quoted)}")
            case "structural_tag":
                return grammar.structural_tag(json.loads(self.text))
        return grammar.json_schema(self.text)


class Grammars:
    """Makes the grammars of a server's requests.

    What one grammar may take is bounded by its length and by `drafttree.constraints`; the longest takes a second.

    Args:
        decoder: the decoder of the served model.
        times: is told how many seconds each request waits for its grammar.
    """

    def __init__(self, decoder: Decoder, times: Histogram) -> None:
        self._decoder, self._times = decoder, times
        self._wanted: PriorityQueue[tuple[int, int, Future[Made], WantedGrammar, tuple[int, ...]]] = PriorityQueue()
        self._order = count()
        self._make = lru_cache(maxsize=64)(self._make_first)
        self._thread = threading.Thread(target=self._make_all, name="grammars", daemon=True)

    async def made(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """The options of a text with the grammar that they want, if any, in place of its `WantedGrammar`.

        The second part says whether the schemas of all its tools are enforced.

        Raises:
            ServerError: the request's time is over (503).
            ConfigError: it is malformed, a part of it would not be enforced, or nothing could end its text.
        """
        wanted = options.get("grammar")
        if not isinstance(wanted, WantedGrammar):
            return {**options}, True
        if options.get("ignore_eos"):
            raise ServerError(400, "a grammar ends its text with an EOS token; leave out ignore_eos")
        merged = RequestOptions.merge(self._decoder.defaults, {**options, "grammar": None})
        eos = merged.eos(self._decoder.eos, self._decoder.target.vocab_size)
        if not self._thread.ident:
            self._thread.start()
        request, making = open_request(), Future[Made]()
        self._wanted.put((len(wanted.text), next(self._order), making, wanted, eos))
        try:
            async with asyncio.timeout(request.seconds_left if request else None):
                with self._times.time():
                    made, enforced = await asyncio.wrap_future(making)
                    return {**options, "grammar": made}, enforced
        except TimeoutError:
            message = f"the time of this request (--timeout) was over before {wanted.field} was read; try again later"
            raise ServerError(503, message, code="timeout", headers=AGAIN) from None

    def _make_all(self) -> None:
        """Make what is wanted; what nobody waits for any more is left out."""
        if sys.platform == "linux":  # where a thread has a niceness of its own
            own = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, own, os.getpriority(os.PRIO_PROCESS, own) + NICENESS)
        while True:
            _, _, making, wanted, eos = self._wanted.get()
            if not making.set_running_or_notify_cancel():
                continue
            try:
                made = self._make(wanted, eos)
                self._begin(made[0], eos)
                making.set_result(made)
            except Exception as error:
                making.set_exception(error)

    def _make_first(self, wanted: WantedGrammar, eos: tuple[int, ...]) -> Made:
        """The grammar, or the one that takes its place, and whether the schemas of all its tools are enforced."""
        if wanted.unenforced:
            logger.warning("the model is told of the schemas of tools, which are not enforced: %r", wanted.unenforced)
        try:
            made = wanted.parse()
            self._begin(made, eos)
        except ConfigError as error:
            if wanted.otherwise is None:
                raise
            return self._make_first(replace(wanted.otherwise, unenforced=str(error)), eos)
        return made, not wanted.unenforced

    def _begin(self, made: Grammar, eos: tuple[int, ...]) -> None:
        """Make the matcher that the states of all texts are copied from, which the first state does."""
        made.new_state(self._decoder.tokenizer, self._decoder.target.vocab_size, eos)


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
        wanted = _tools_grammar(request, schema, dialect)
    elif schema is not None:
        field = request.called("response_format")
        wanted = WantedGrammar("json_schema", _dump(schema, field), field)
    else:
        return None
    return _behind_thinking(wanted, dialect.thinking, thinks)


def _tools_grammar(request: ChatRequest, schema: dict[str, Any] | None, dialect: Dialect) -> WantedGrammar:
    """The grammar of answers with calls.

    Where nobody insists on calls or on schemas, and the schemas are too many or cannot be enforced, tools take any
    object: the model is told of their schemas, and calls are read without a grammar too.
    """

    def grammar(*, enforced: bool) -> WantedGrammar:
        return WantedGrammar("structural_tag", _dump(_with_calls(request, schema, dialect, enforced), "tools"), "tools")

    if request.must_call or all(tool.strict for tool in request.callable_tools.values()):
        return grammar(enforced=True)
    lenient = grammar(enforced=False)
    try:
        return replace(grammar(enforced=True), otherwise=lenient)
    except ServerError as error:
        return replace(lenient, unenforced=error.message)


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
    otherwise = wanted.otherwise and _behind_thinking(wanted.otherwise, thinking, thinks)
    return replace(wanted, kind="structural_tag", text=json.dumps(form), otherwise=otherwise)


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


def _with_calls(request: ChatRequest, schema: dict[str, Any] | None, dialect: Dialect, enforced: bool) -> Format:
    """Calls of tools, or what is said unless a call is a must; strict tools are enforced in any case."""
    assert dialect.calls
    form, tools = dialect.calls, request.callable_tools
    single = request.parallel_tool_calls is False or isinstance(request.tool_choice, NamedTool) or dialect.one_call
    tags = [_tag(form, [name], tool.parameters) for name, tool in tools.items() if enforced or tool.strict]
    if lenient := [name for name, tool in tools.items() if not (enforced or tool.strict)]:
        tags.append(_tag(form, lenient, ANY_OBJECT))
    calls = _calls(form, tags, single=single)
    if request.must_call:
        return calls
    if schema is not None:
        answer = {"type": "json_schema", "json_schema": schema, "of": "response_format"}
        said = {"type": "sequence", "elements": [*_say(dialect.thinking), answer]}
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


def _tag(form: CallForm, names: list[str], parameters: dict[str, Any] | None) -> Format:
    """The tag that calls of some tools conform to, whose parameters are alike."""
    schema = NO_ARGUMENTS if parameters is None else ANY_OBJECT | parameters
    style: dict[str, Literal["qwen_xml", "glm_xml"]] = {} if form.arguments == "json" else {"style": form.arguments}
    arguments = {"type": "json_schema", "json_schema": schema, "of": f"tool {names[0]!r}", **style}
    if len(names) == 1:
        return {"type": "tag", "begin": f"{form.begin}{names[0]}{form.middle}", "content": arguments, "end": form.end}
    name = {"type": "regex", "pattern": "|".join(map(re.escape, names))}
    content = {"type": "sequence", "elements": [name, {"type": "const_string", "value": form.middle}, arguments]}
    return {"type": "tag", "begin": form.begin, "content": content, "end": form.end}


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
