"""The grammars of replies."""

import json
import random

import pytest

from drafttree.interfaces.server.dialect.arguments import written_arguments
from drafttree.interfaces.server.dialect.families import CALLS, HARMONY, THINKING, CallForm
from drafttree.interfaces.server.dialect.model_dialect import Dialect
from drafttree.interfaces.server.dialect.reader import AnswerReader, CallArguments, CallBegun
from drafttree.interfaces.server.grammar import chat_grammar
from drafttree.interfaces.server.request import ChatRequest
from helpers.dialects import tokenizer_of
from testing.grammars import accepts, written

pytest.importorskip("llguidance")

CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "get_weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "clock", "parameters": {"type": "object", "properties": {}}}},
]
PLAIN = THINKING["qwen3"]


def call(form: CallForm, *names: str) -> str:
    """Calls as a model of the family writes them."""
    arguments = {"get_weather": '{"city": "Paris", "days": 3}', "clock": "{}"}
    return form.text([(name, written_arguments(form.arguments, arguments[name])) for name in names])


def grammar_of(name: str, thinks="no", **body):
    thinking = HARMONY if name == "openai" else PLAIN
    request = ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, **body})
    wanted = chat_grammar(request, Dialect(thinking, CALLS[name]), thinks)
    assert wanted
    return wanted.parse()


@pytest.mark.parametrize("name", CALLS)
def test_forced_calls_stand_behind_thinking(name):
    form, thinking = CALLS[name], HARMONY if name == "openai" else PLAIN
    after = "<|start|>assistant" if name == "openai" else "\n\n"
    inside = f"Hm. {form.trigger}{thinking.end}{after}"
    one = call(form, "get_weather")
    for thinks, before in (("no", ""), ("perhaps", ""), ("perhaps", thinking.begin + inside), ("begun", inside)):
        grammar = grammar_of(name, thinks, tool_choice="required")
        assert accepts(grammar, before + one)
        assert not accepts(grammar, before)
        assert not accepts(grammar, before + one.replace("get_weather", "nobody"))
    assert not accepts(grammar_of(name, "begun", tool_choice="required"), one)


@pytest.mark.parametrize("name", CALLS)
def test_what_begins_as_a_call_is_one(name):
    form = CALLS[name]
    grammar = grammar_of(name)
    assert accepts(grammar, "Let me see. " + call(form, "clock"))
    assert accepts(grammar, "Let me see.")
    assert not accepts(grammar, call(form, "clock").replace("clock", "nobody"))


EXACT = {
    "kind": ({"enum": ["ab", "c d"]}, ["ab", "c d"]),
    "zip": ({"type": ["string", "null"], "pattern": "^12345$"}, ["12345", None]),
    "padded": ({"type": "string", "pattern": "^ x[ y]$"}, [" x ", " xy"]),
    "flag": ({"const": "true"}, ["true"]),
    "count": ({"type": "integer", "minimum": 7, "maximum": 8}, [7, 8]),
    "list": ({"type": "array", "items": {"const": "a"}, "minItems": 1, "maxItems": 1}, [["a"]]),
}


@pytest.mark.few(1)
@pytest.mark.parametrize("name", CALLS)
def test_whatever_the_grammar_allows_is_read_as_a_call_that_conforms(name):
    """Texts are drawn token by token from those that the grammar allows."""
    schema = {
        "type": "object",
        "properties": {key: each for key, (each, _) in EXACT.items()},
        "required": list(EXACT),
        "additionalProperties": False,
    }
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    grammar = grammar_of(name, tools=tools, tool_choice="required", parallel_tool_calls=False)
    draw = random.Random(name)
    for _ in range(40):
        text = written(grammar, draw)
        parts = AnswerReader(None, CALLS[name], speaks=False, schemas={"f": schema}).read(text, final=True)
        (begun,) = [part for part in parts if isinstance(part, CallBegun)]
        arguments = json.loads("".join(part.text for part in parts if isinstance(part, CallArguments)))
        assert begun.name == "f"
        for key, (_, values) in EXACT.items():
            assert arguments[key] in values, text


@pytest.mark.parametrize("schema", [{}, {"properties": {name: {"type": "string"} for name in "abc"}}])
@pytest.mark.parametrize("name", CALLS)
def test_optional_arguments_are_as_many_as_a_model_likes(name, schema):
    tools = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", **schema}}}]
    grammar = grammar_of(name, tools=tools, tool_choice="required")
    for given in ({}, {"a": "x"}, {"b": "x", "c": "y"}, {"a": "x", "b": "y", "c": "z"}):
        arguments = written_arguments(CALLS[name].arguments, json.dumps(given))
        assert accepts(grammar, CALLS[name].text([("f", arguments)])), given


@pytest.mark.parametrize("name", sorted(CALLS.keys() - {"openai"}))
def test_several_calls_and_one_at_most(name):
    two = call(CALLS[name], "get_weather", "clock")
    assert accepts(grammar_of(name, tool_choice="required"), two)
    assert not accepts(grammar_of(name, tool_choice="required", parallel_tool_calls=False), two)


def test_one_call_at_most_where_the_template_would_render_no_more():
    request = ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}], "tools": TOOLS})
    dialect = Dialect(None, CALLS["llama3_json"], tokenizer_of("llama3").chat_template)
    wanted = chat_grammar(request, dialect, "no")
    assert wanted
    grammar = wanted.parse()
    assert accepts(grammar, call(CALLS["llama3_json"], "clock"))
    assert not accepts(grammar, call(CALLS["llama3_json"], "clock", "get_weather"))


@pytest.mark.parametrize("name", CALLS)
def test_a_schema_or_a_call(name):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1]}}}
    grammar = grammar_of(name, response_format=form)
    assert accepts(grammar, "<|channel|>final<|message|>1" if name == "openai" else "1")
    assert accepts(grammar, call(CALLS[name], "clock"))
    assert not accepts(grammar, "2")
