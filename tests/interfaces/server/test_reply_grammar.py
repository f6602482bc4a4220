"""The grammars of replies, and those that xgrammar ships for the families."""

import json

import numpy as np
import pytest
import xgrammar
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.interfaces.server.dialect.arguments import written_arguments
from drafttree.interfaces.server.dialect.families import CALLS, HARMONY, THINKING, CallForm
from drafttree.interfaces.server.dialect.model_dialect import Dialect
from drafttree.interfaces.server.dialect.reader import AnswerReader, CallArguments, CallBegun
from drafttree.interfaces.server.protocol.requests import ChatRequest
from drafttree.interfaces.server.reply_grammar import chat_grammar
from helpers.dialects import tokenizer_of

END = 256
VOCABULARY = xgrammar.TokenizerInfo(
    [chr(byte) if byte < 128 else f"<0x{byte:02X}>" for byte in range(END)] + ["</s>"],
    vocab_type=xgrammar.VocabType.BYTE_FALLBACK,
    stop_token_ids=[END],
)
COMPILER = xgrammar.GrammarCompiler(VOCABULARY, cache_enabled=False)
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
SHIPPED = {
    "openai": "harmony",
    "deepseek_v3": "deepseek_r1",
    "deepseek_v31": "deepseek_v3_1",
    "glm45": "glm_4_7",
    "glm47": "glm_4_7",
    "qwen3_coder": "qwen_3_coder",
    "hermes": "qwen_3",
    "llama3_json": "llama",
}
PLAIN = THINKING["qwen3"]


def accepts(grammar, text: str) -> bool:
    """Whether a text conforms to a grammar as a whole."""
    matcher = xgrammar.GrammarMatcher(COMPILER.compile_grammar(grammar))
    return matcher.accept_string(text) and matcher.accept_token(END)


def call(form: CallForm, *names: str) -> str:
    """Calls as a model of the family writes them."""
    arguments = {"get_weather": '{"city": "Paris", "days": 3}', "clock": "{}"}
    return form.text([(name, written_arguments(form.arguments, arguments[name])) for name in names])


def grammar_of(name: str, thinks="no", **body):
    thinking = HARMONY if name == "openai" else PLAIN
    request = ChatRequest.model_validate({"messages": [{"role": "user", "content": "x"}], "tools": TOOLS, **body})
    wanted = chat_grammar(request, Dialect(thinking, CALLS[name]), thinks)
    assert wanted
    return wanted.parse().parsed


@pytest.mark.parametrize("choice", ["auto", "required"])
@pytest.mark.parametrize("name", SHIPPED)
def test_a_call_of_ours_is_one_of_xgrammars(name, choice):
    tag = xgrammar.get_model_structural_tag(SHIPPED[name], tools=TOOLS, tool_choice=choice, reasoning="disabled")
    shipped = xgrammar.Grammar.from_structural_tag(tag)
    written = call(CALLS[name], "get_weather")
    if name == "openai":  # xgrammar wants no space there, and the token behind a call as text
        written = written.replace(" <|constrain|>", "<|constrain|>") + "<|call|>"
    assert accepts(shipped, written)
    assert not accepts(shipped, written.replace("get_weather", "nobody"))


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
    compiled, mask = COMPILER.compile_grammar(grammar), xgrammar.allocate_token_bitmask(1, END + 1)

    @settings(max_examples=8)
    @given(st.data())
    def check(data):
        matcher, written = xgrammar.GrammarMatcher(compiled), ""
        while not matcher.is_terminated():
            matcher.fill_next_token_bitmask(mask)
            bits = np.unpackbits(mask[0].numpy().view(np.uint8), bitorder="little")[: END + 1]
            allowed = bits.nonzero()[0].tolist()
            token = allowed[0] if len(allowed) == 1 else data.draw(st.sampled_from(allowed))
            assert matcher.accept_token(token)
            written += "" if token == END else chr(token)
        text = written.encode("latin-1").decode()
        parts = AnswerReader(None, CALLS[name], speaks=False, schemas={"f": schema}).read(text, final=True)
        (begun,) = [part for part in parts if isinstance(part, CallBegun)]
        arguments = json.loads("".join(part.text for part in parts if isinstance(part, CallArguments)))
        assert begun.name == "f"
        for key, (_, values) in EXACT.items():
            assert arguments[key] in values, text

    check()


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
    grammar = wanted.parse().parsed
    assert accepts(grammar, call(CALLS["llama3_json"], "clock"))
    assert not accepts(grammar, call(CALLS["llama3_json"], "clock", "get_weather"))


@pytest.mark.parametrize("name", CALLS)
def test_a_schema_or_a_call(name):
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"enum": [1]}}}
    grammar = grammar_of(name, response_format=form)
    assert accepts(grammar, "<|channel|>final<|message|>1" if name == "openai" else "1")
    assert accepts(grammar, call(CALLS[name], "clock"))
    assert not accepts(grammar, "2")
