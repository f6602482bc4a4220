"""Grammars that texts must follow after thinking, and the thread that compiles them."""

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
from typing import Any, NamedTuple

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
from drafttree.interfaces.server.errors import AGAIN, ServerError, blaming
from drafttree.interfaces.server.fields import StructuredOutputs
from drafttree.interfaces.server.request import ChatRequest, FunctionName, NamedTool

logger = logging.getLogger("drafttree")
Made = tuple[Grammar, bool]
NICENESS = 5
"""Increase of the niceness of the thread that compiles grammars, so that it does not slow down generation."""


@dataclass(frozen=True)
class WantedGrammar:
    """A grammar that a request asks for.

    Attributes:
        text: an xgrammar structural tag, as JSON.
        fields: the fields of the request that the grammar comes from; errors name one of them.
        otherwise: the grammar to use instead if this one cannot be compiled.
        unenforced: why this grammar does not enforce the schemas of tools; "" if it does.
    """

    text: str
    fields: tuple[str, ...]
    otherwise: "WantedGrammar | None" = None
    unenforced: str = ""

    def parse(self) -> Grammar:
        """Parse the grammar. Errors name its kind, such as "JSON schema".

        Raises:
            ConfigError: the grammar is malformed, or a part of it would not be enforced.
        """
        match form := json.loads(self.text):
            case {"type": "regex", "pattern": pattern}:
                return grammar.regex(pattern)
            case {"type": "grammar", "grammar": rules}:
                return grammar.ebnf(rules)
            case {"type": "json_schema", "json_schema": schema}:
                return grammar.json_schema(schema)
        return grammar.structural_tag(form)


class MadeOptions(NamedTuple):
    """Options of a text with its finished grammar.

    Attributes:
        options: the options, with a `Grammar` in place of its `WantedGrammar`.
        enforced: whether the text must follow the schemas of all its tools.
    """

    options: dict[str, Any]
    enforced: bool


class Grammars:
    """Compiles the grammars of a server's requests, shortest first, in a thread.

    `MAX_LENGTH` and the limits in `drafttree.constraints` bound the time for one grammar to about a second.

    Args:
        decoder: the decoder of the served model.
        times: histogram of the seconds that requests wait for their grammar.
    """

    def __init__(self, decoder: Decoder, times: Histogram) -> None:
        self._decoder = decoder
        self._times = times
        self._wanted: PriorityQueue[tuple[int, int, Future[Made], WantedGrammar, tuple[int, ...]]] = PriorityQueue()
        self._order = count()
        self._make = lru_cache(maxsize=64)(self._make_first)
        self._thread = threading.Thread(target=self._make_all, name="grammars", daemon=True)

    async def made(self, options: Mapping[str, Any]) -> MadeOptions:
        """Compile the grammar in the options of a text, if there is one.

        Raises:
            ServerError: the grammar is malformed or cannot be enforced completely, nothing could end its text, or the
                request's time is over (503).
        """
        wanted_grammar = options.get("grammar")
        if not isinstance(wanted_grammar, WantedGrammar):
            return MadeOptions({**options}, enforced=True)
        if options.get("ignore_eos"):
            raise ServerError(
                400, "a grammar ends its text with an EOS token; leave out ignore_eos", param="ignore_eos"
            )
        merged_options = RequestOptions.merge(self._decoder.defaults, {**options, "grammar": None})
        eos = merged_options.eos(self._decoder.eos, self._decoder.target.vocab_size)
        if not self._thread.ident:
            self._thread.start()
        grammar_future = Future[Made]()
        self._wanted.put((len(wanted_grammar.text), next(self._order), grammar_future, wanted_grammar, eos))
        try:
            async with asyncio.timeout(open_request.get().seconds_left):
                with self._times.time(), blaming(*wanted_grammar.fields):
                    answer_grammar, enforced = await asyncio.wrap_future(grammar_future)
                    return MadeOptions({**options, "grammar": answer_grammar}, enforced)
        except TimeoutError:
            field = wanted_grammar.fields[0]
            message = f"the time of this request (--timeout) was over before {field} was read; try again later"
            raise ServerError(503, message, code="timeout", headers=AGAIN) from None

    def _make_all(self) -> None:
        """Compile waiting grammars for ever. If a request was cancelled, its grammar is skipped."""
        if sys.platform == "linux":  # only there, threads have their own niceness
            thread_id = threading.get_native_id()
            os.setpriority(os.PRIO_PROCESS, thread_id, os.getpriority(os.PRIO_PROCESS, thread_id) + NICENESS)
        while True:
            _, _, grammar_future, wanted_grammar, eos = self._wanted.get()
            if not grammar_future.set_running_or_notify_cancel():
                continue
            try:
                outcome = self._make(wanted_grammar, eos)
                self._begin(outcome[0], eos)
                grammar_future.set_result(outcome)
            except Exception as error:
                grammar_future.set_exception(error)

    def _make_first(self, wanted_grammar: WantedGrammar, eos: tuple[int, ...]) -> Made:
        """Compile a grammar, or its replacement if that fails; also return whether all tools' schemas are enforced.

        Raises:
            ConfigError: the grammar fails, and it has no replacement.
        """
        if wanted_grammar.unenforced:
            logger.warning("schemas of tools are shown to the model, but not enforced: %r", wanted_grammar.unenforced)
        try:
            parsed_grammar = wanted_grammar.parse()
            self._begin(parsed_grammar, eos)
        except ConfigError as error:
            if wanted_grammar.otherwise is None:
                raise
            return self._make_first(replace(wanted_grammar.otherwise, unenforced=str(error)), eos)
        return parsed_grammar, not wanted_grammar.unenforced

    def _begin(self, parsed_grammar: Grammar, eos: tuple[int, ...]) -> None:
        """Create a first state. This makes the matcher that the states of later texts copy."""
        parsed_grammar.new_state(self._decoder.tokenizer, self._decoder.target.vocab_size, eos)


MAX_LENGTH = 32_768
"""The most characters of a grammar. A schema of this length takes up to a second."""
OUTPUTS = "structured_outputs"
ANY_OBJECT = {"type": "object"}
NO_ARGUMENTS = {"type": "object", "properties": {}}
Format = dict[str, Any]
"""A part of an xgrammar structural tag."""


def chat_grammar(request: ChatRequest, dialect: Dialect, thinks: Thinks) -> WantedGrammar | None:
    """The grammar of the answers to a conversation; None if any text will do.

    If the schemas of tools are too long or cannot be enforced, the arguments of a call may be any JSON object, although
    the model still sees the schemas. If a call is required or all tools are strict, this is an error instead.

    Args:
        request: the client's request.
        dialect: how the model writes thinking and tool calls.
        thinks: whether an answer begins with thinking.

    Raises:
        ServerError: the grammar is too long, or a call is required, but this server does not read calls.
    """
    if request.must_call and dialect.calls is None:
        message = "tool_choice asks for a call, but this server reads none (--tool-parser none)"
        raise ServerError(400, message, param="tool_choice", code="not_served")
    field = OUTPUTS if request.structured_outputs else request.called("response_format")
    form = request.said_form and _outputs_form(request.said_form, field)
    tools = request.callable_tools
    if form and dialect.thinking and dialect.thinking.say:
        form = {"type": "sequence", "elements": [{"type": "const_string", "value": dialect.thinking.say}, form]}

    def wanted(form: Format, *fields: str) -> WantedGrammar:
        return WantedGrammar(json.dumps(_behind_thinking(form, dialect.thinking, thinks)), fields)

    def with_calls(*, enforced: bool) -> WantedGrammar:
        form_and_calls = _short(_with_calls(request, form, dialect, enforced), "tools")
        return wanted(form_and_calls, "tools", field, *tools)

    if not (tools and dialect.calls):
        return wanted(form, field) if form else None
    if request.must_call or all(tool.strict for tool in tools.values()):
        return with_calls(enforced=True)
    lenient_grammar = with_calls(enforced=False)
    try:
        return replace(with_calls(enforced=True), otherwise=lenient_grammar)
    except ServerError as error:
        return replace(lenient_grammar, unenforced=error.message)


def outputs_grammar(outputs: StructuredOutputs) -> WantedGrammar:
    """The grammar of vLLM's structured outputs.

    Raises:
        ServerError: the grammar is too long.
    """
    return WantedGrammar(json.dumps(_outputs_form(outputs, OUTPUTS)), (OUTPUTS,))


def _outputs_form(outputs: StructuredOutputs, field: str) -> Format:
    """The structural tag for structured outputs. Errors name `field`."""
    if outputs.regex is not None:
        return {"type": "regex", "pattern": _short(outputs.regex, field)}
    if outputs.grammar is not None:
        return {"type": "grammar", "grammar": _short(outputs.grammar, field)}
    if outputs.choice is not None:
        texts = [{"type": "const_string", "value": choice} for choice in _short(outputs.choice, field)]
        return {"type": "or", "elements": texts}
    schema = ANY_OBJECT if outputs.json_schema is None else outputs.json_schema
    return {"type": "json_schema", "json_schema": _short(schema, field), "of": field}


def _behind_thinking(form: Format, thinking: Thinking | None, thinks: Thinks) -> Format:
    """A form that also accepts thinking before it, if the model thinks."""
    if thinking is None or thinks == "no":
        return form
    begin = "" if thinks == "begun" else thinking.begin
    tag = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": thinking.end}
    thought = {"type": "sequence", "elements": [tag, {"type": "regex", "pattern": thinking.after}]}
    prefix = thought if thinks == "begun" else {"type": "optional", "content": thought}
    return {"type": "sequence", "elements": [prefix, form]}


def _with_calls(request: ChatRequest, text_form: Format | None, dialect: Dialect, enforced: bool) -> Format:
    """The form of an answer with tool calls, or with text unless a call is required.

    Args:
        request: the client's request.
        text_form: the form of the text; None for any text.
        dialect: how the model writes tool calls.
        enforced: whether to enforce the schemas of all tools, or only those of strict ones.
    """
    assert dialect.calls
    form = dialect.calls
    tools = request.callable_tools
    names_tool = isinstance(request.tool_choice, NamedTool | FunctionName)
    single_call = names_tool or request.parallel_tool_calls is False or dialect.one_call
    tags = [_tag(form, [tool.name], tool.parameters, field) for field, tool in tools.items() if enforced or tool.strict]
    if lenient_names := [tool.name for tool in tools.values() if not (enforced or tool.strict)]:
        tags.append(_tag(form, lenient_names, ANY_OBJECT, "tools"))
    counts = {"at_least_one": True, "stop_after_first": single_call}
    calls = {"type": "tags_with_separator", "tags": tags, "separator": form.between or "", **counts}
    begin, end = form.around
    if begin:
        calls = {"type": "tag", "begin": begin, "content": calls, "end": end}
        tags = [calls]
        single_call = True
    if request.must_call:
        return calls
    if text_form:
        return {"type": "or", "elements": [text_form, calls]}
    return {"type": "triggered_tags", "triggers": [form.trigger], "tags": tags, "stop_after_first": single_call}


def _tag(form: CallForm, names: list[str], parameters: dict[str, Any] | None, field: str) -> Format:
    """The tag for calls of tools with the same parameters.

    Args:
        form: how the model writes a call.
        names: names of the tools.
        parameters: the schema of their arguments; None for tools without arguments.
        field: the field of the request that errors in the schema should name.
    """
    schema = NO_ARGUMENTS if parameters is None else parameters | ANY_OBJECT
    style = {} if form.arguments == "json" else {"style": form.arguments}
    arguments = {"type": "json_schema", "json_schema": schema, "of": field, **style}
    if len(names) == 1:
        return {"type": "tag", "begin": f"{form.begin}{names[0]}{form.middle}", "content": arguments, "end": form.end}
    name = {"type": "regex", "pattern": "|".join(map(re.escape, names))}
    content = {"type": "sequence", "elements": [name, {"type": "const_string", "value": form.middle}, arguments]}
    return {"type": "tag", "begin": form.begin, "content": content, "end": form.end}


def _short(value: Any, field: str) -> Any:
    """Check the length of a part of a request, and return it unchanged.

    Raises:
        ServerError: the part has more than `MAX_LENGTH` characters as JSON.
    """
    length = len(value if isinstance(value, str) else json.dumps(value))
    if length > MAX_LENGTH:
        message = f"{field} has {length} characters as JSON; give at most {MAX_LENGTH}"
        raise ServerError(400, message, param=field)
    return value
