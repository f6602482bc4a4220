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
from typing import Any

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
"""By how much less urgent the thread is than those that write texts."""


@dataclass(frozen=True)
class WantedGrammar:
    """A grammar as a request asks for it.

    Attributes:
        text: an xgrammar structural tag, as JSON.
        fields: the fields of the request that have it, of which errors name one.
        otherwise: takes its place where it cannot be made.
        unenforced: why the schemas of tools, of which the model is told, have no part in it; "" if they have.
    """

    text: str
    fields: tuple[str, ...]
    otherwise: "WantedGrammar | None" = None
    unenforced: str = ""

    def parse(self) -> Grammar:
        """The grammar, which errors name by its kind where it is of one.

        Raises:
            ConfigError: it is malformed, or a part of it would not be enforced.
        """
        match form := json.loads(self.text):
            case {"type": "regex", "pattern": pattern}:
                return grammar.regex(pattern)
            case {"type": "grammar", "grammar": rules}:
                return grammar.ebnf(rules)
            case {"type": "json_schema", "json_schema": schema}:
                return grammar.json_schema(schema)
        return grammar.structural_tag(form)


class Grammars:
    """Makes the grammars of a server's requests.

    What one grammar may take is bounded by its length and by `drafttree.constraints`; the longest takes a second.

    Args:
        decoder: the decoder of the served model.
        times: is told how many seconds each request waits for its grammar.
    """

    def __init__(self, decoder: Decoder, times: Histogram) -> None:
        self._decoder = decoder
        self._times = times
        self._wanted: PriorityQueue[tuple[int, int, Future[Made], WantedGrammar, tuple[int, ...]]] = PriorityQueue()
        self._order = count()
        self._make = lru_cache(maxsize=64)(self._make_first)
        self._thread = threading.Thread(target=self._make_all, name="grammars", daemon=True)

    async def made(self, options: Mapping[str, Any]) -> tuple[dict[str, Any], bool]:
        """The options of a text with the grammar that they want, if any, in place of its `WantedGrammar`.

        The second part says whether the schemas of all its tools are enforced.

        Raises:
            ServerError: it is malformed, a part of it would not be enforced, nothing could end its text, or the
                request's time is over (503).
        """
        wanted_grammar = options.get("grammar")
        if not isinstance(wanted_grammar, WantedGrammar):
            return {**options}, True
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
                    return {**options, "grammar": answer_grammar}, enforced
        except TimeoutError:
            field = wanted_grammar.fields[0]
            message = f"the time of this request (--timeout) was over before {field} was read; try again later"
            raise ServerError(503, message, code="timeout", headers=AGAIN) from None

    def _make_all(self) -> None:
        """Make what is wanted; what nobody waits for any more is left out."""
        if sys.platform == "linux":  # where a thread has a niceness of its own
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

    def _make_first(self, wanted: WantedGrammar, eos: tuple[int, ...]) -> Made:
        """The grammar, or the one that takes its place, and whether the schemas of all its tools are enforced."""
        if wanted.unenforced:
            logger.warning("the model is told of the schemas of tools, which are not enforced: %r", wanted.unenforced)
        try:
            parsed_grammar = wanted.parse()
            self._begin(parsed_grammar, eos)
        except ConfigError as error:
            if wanted.otherwise is None:
                raise
            return self._make_first(replace(wanted.otherwise, unenforced=str(error)), eos)
        return parsed_grammar, not wanted.unenforced

    def _begin(self, made: Grammar, eos: tuple[int, ...]) -> None:
        """Make the matcher that the states of all texts are copied from, which the first state does."""
        made.new_state(self._decoder.tokenizer, self._decoder.target.vocab_size, eos)


MAX_LENGTH = 32_768
"""Characters of a grammar; the heaviest schema of so many takes a second."""
OUTPUTS = "structured_outputs"
ANY_OBJECT = {"type": "object"}
NO_ARGUMENTS = {"type": "object", "properties": {}}
Format = dict[str, Any]
"""A part of an xgrammar structural tag."""


def chat_grammar(request: ChatRequest, dialect: Dialect, thinks: Thinks) -> WantedGrammar | None:
    """The grammar of the answers to a conversation, None for any text.

    Where nobody insists on calls or on schemas, and the schemas of tools are too many or cannot be enforced, tools take
    any object: the model is told of their schemas, and calls are read without a grammar too.

    Args:
        request: what the client asks for.
        dialect: how the model writes thinking and calls.
        thinks: whether an answer begins with thinking.

    Raises:
        ServerError: it is too long, or must have calls that would not be read.
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
        ServerError: it is too long.
    """
    return WantedGrammar(json.dumps(_outputs_form(outputs, OUTPUTS)), (OUTPUTS,))


def _outputs_form(outputs: StructuredOutputs, field: str) -> Format:
    """The same as a part of a structural tag; errors name a field."""
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
    """What lets a model think first."""
    if thinking is None or thinks == "no":
        return form
    begin = "" if thinks == "begun" else thinking.begin
    tag = {"type": "tag", "begin": begin, "content": {"type": "any_text"}, "end": thinking.end}
    thought = {"type": "sequence", "elements": [tag, {"type": "regex", "pattern": thinking.after}]}
    prefix = thought if thinks == "begun" else {"type": "optional", "content": thought}
    return {"type": "sequence", "elements": [prefix, form]}


def _with_calls(request: ChatRequest, said: Format | None, dialect: Dialect, enforced: bool) -> Format:
    """Calls of tools, or what is said unless a call is a must; strict tools are enforced in any case."""
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
    if said:
        return {"type": "or", "elements": [said, calls]}
    return {"type": "triggered_tags", "triggers": [form.trigger], "tags": tags, "stop_after_first": single_call}


def _tag(form: CallForm, names: list[str], parameters: dict[str, Any] | None, place: str) -> Format:
    """The tag that calls of some tools conform to, whose parameters are alike; errors in them name a place."""
    schema = NO_ARGUMENTS if parameters is None else parameters | ANY_OBJECT
    style = {} if form.arguments == "json" else {"style": form.arguments}
    arguments = {"type": "json_schema", "json_schema": schema, "of": place, **style}
    if len(names) == 1:
        return {"type": "tag", "begin": f"{form.begin}{names[0]}{form.middle}", "content": arguments, "end": form.end}
    name = {"type": "regex", "pattern": "|".join(map(re.escape, names))}
    content = {"type": "sequence", "elements": [name, {"type": "const_string", "value": form.middle}, arguments]}
    return {"type": "tag", "begin": form.begin, "content": content, "end": form.end}


def _short(part: Any, field: str) -> Any:
    """A part of a request, unless it is too long.

    Raises:
        ServerError: it is.
    """
    length = len(part if isinstance(part, str) else json.dumps(part))
    if length > MAX_LENGTH:
        message = f"{field} has {length} characters as JSON; give at most {MAX_LENGTH}"
        raise ServerError(400, message, param=field)
    return part
