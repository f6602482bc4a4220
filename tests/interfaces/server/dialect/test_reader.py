"""Answers as the families have published them, read from a text that comes in any parts."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.interfaces.server.dialect.families import CALLS, HERMES, THINKING
from drafttree.interfaces.server.dialect.reader import AnswerReader, CallArguments, CallBegun, Part, Said, Thought

SCHEMAS = {"get_weather": {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}}
WEATHER = ("get_weather", {"city": "Paris", "days": 3})
DEEPSEEK = "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>"  # noqa: RUF001
DEEPSEEK_END = "<｜tool▁call▁end｜><｜tool▁calls▁end｜>"  # noqa: RUF001
JSON = '{"city": "Paris", "days": 3}'


def read(reader: AnswerReader, pieces: list[str]) -> tuple[str, str, list[tuple[str, str]]]:
    """What is thought, what is said, and the names and arguments of the calls."""
    parts: list[Part] = []
    for place, piece in enumerate(pieces, start=1):
        parts += reader.read(piece, final=place == len(pieces))
    calls: list[tuple[str, str]] = []
    for part in parts:
        match part:
            case CallBegun(index=index, name=name):
                assert index == len(calls)
                calls.append((name, ""))
            case CallArguments(index=index, text=text):
                calls[index] = (calls[index][0], calls[index][1] + text)
    thought, said = ("".join(part.text for part in parts if isinstance(part, kind)) for kind in (Thought, Said))
    return thought, said, calls


def reader_of(thinking: str | None, calls: str | None, **options) -> AnswerReader:
    return AnswerReader(
        thinking and THINKING[thinking], calls and CALLS[calls], **{"thinks": "perhaps", "schemas": SCHEMAS, **options}
    )


ANSWERS = {
    "qwen3": (
        "<think>\nI need the weather.\n</think>\n\nLet me see.\n"
        f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>',
        ("qwen3", "hermes"),
        ("I need the weather.", "Let me see.", [WEATHER]),
    ),
    "two calls": (
        f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>\n'
        '<tool_call>\n{"name": "g", "arguments": {"a": "}</tool_call>\\""}}\n</tool_call>',
        (None, "hermes"),
        ("", "", [WEATHER, ("g", {"a": '}</tool_call>"'})]),
    ),
    "qwen3-coder": (
        "I look.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        (None, "qwen3_coder"),
        ("", "I look.", [WEATHER]),
    ),
    "llama3": (
        f'<|python_tag|>{{"name": "get_weather", "parameters": {JSON}}}; {{"name": "g", "parameters": {{}}}}',
        (None, "llama3_json"),
        ("", "", [WEATHER, ("g", {})]),
    ),
    "mistral-7b": (
        f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {JSON}, "id": "VvvODy9mT"}}, '
        '{"name": "g", "arguments": {}}]',
        (None, "mistral_list"),
        ("", "", [WEATHER, ("g", {})]),
    ),
    "magistral": (
        f"[THINK]Hm.[/THINK]Wait.[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{JSON}[TOOL_CALLS]g[ARGS]{{}}",
        ("mistral", "mistral"),
        ("Hm.", "Wait.", [WEATHER, ("g", {})]),
    ),
    "gpt-oss call": (
        "<|channel|>analysis<|message|>Need weather.<|end|><|start|>assistant<|channel|>commentary "
        f"to=functions.get_weather <|constrain|>json<|message|>{JSON}<|call|>",
        ("openai_gptoss", "openai"),
        ("Need weather.", "", [WEATHER]),
    ),
    "gpt-oss other order": (
        "<|channel|>analysis<|message|>Need weather.<|end|><|start|>assistant"
        f" to=functions.get_weather<|channel|>commentary json<|message|>{JSON}",
        ("openai_gptoss", "openai"),
        ("Need weather.", "", [WEATHER]),
    ),
    "gpt-oss text": (
        "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>commentary<|message|>I call.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Two.<|end|><|start|>assistant<|channel|>final<|message|>Four.",
        ("openai_gptoss", None),
        ("One.Two.", "I call.Four.", []),
    ),
    "gpt-oss json": (
        f"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final <|constrain|>json<|message|>{JSON}"
        "<|return|>",
        ("openai_gptoss", None),
        ("Hm.", JSON, []),
    ),
    "llama3 with types": (
        f'{{"type": "function", "name": "get_weather", "parameters": {JSON}}}; '
        '{"name": "g", "parameters": {}, "type": "function"}',
        (None, "llama3_json"),
        ("", "", [WEATHER, ("g", {})]),
    ),
    "deepseek-r1": (
        f"<think>\nHm.\n</think>\n\n{DEEPSEEK}function<｜tool▁sep｜>get_weather\n```json\n{JSON}\n```{DEEPSEEK_END}",  # noqa: RUF001
        ("deepseek_r1", "deepseek_v3"),
        ("Hm.", "", [WEATHER]),
    ),
    "deepseek-v3.1": (
        f"Sure.{DEEPSEEK}get_weather<｜tool▁sep｜>{JSON}<｜tool▁call▁end｜>"  # noqa: RUF001
        "<｜tool▁call▁begin｜>g<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
        ("deepseek_r1", "deepseek_v31"),
        ("", "Sure.", [WEATHER, ("g", {})]),
    ),
    "glm-4.5": (
        "<think>Hm.</think>\nI look.\n<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n"
        "<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        ("glm45", "glm45"),
        ("Hm.", "I look.", [WEATHER]),
    ),
    "glm-4.7": (
        "<think></think><tool_call>get_weather<arg_key>city</arg_key><arg_value>Paris</arg_value>"
        "<arg_key>days</arg_key><arg_value>3</arg_value></tool_call><tool_call>g</tool_call>",
        ("glm45", "glm47"),
        ("", "", [WEATHER, ("g", {})]),
    ),
}
TEXTS = {
    "plain": ("Hello there.\n", ("qwen3", "hermes"), ("", "Hello there.\n", [])),
    "half a mark": ("a < b <tool", ("qwen3", "hermes"), ("", "a < b <tool", [])),
    "said mark": ("It writes <think> first.", ("qwen3", None), ("", "It writes <think> first.", [])),
    "no name": ("<tool_call>\n[1]\n</tool_call>", (None, "hermes"), ("", "<tool_call>\n[1]\n</tool_call>", [])),
    "no object": (
        '{"name": "f", "parameters": 3} is JSON',
        (None, "llama3_json"),
        ("", '{"name": "f", "parameters": 3} is JSON', []),
    ),
    "unclosed": ("<think>\nI wonder </thin", ("qwen3", "hermes"), ("I wonder </thin", "", [])),
    "call in thought": (
        '<think><tool_call>\n{"name": "f", "arguments": {}}</think>No.',
        ("qwen3", "hermes"),
        ('<tool_call>\n{"name": "f", "arguments": {}}', "No.", []),
    ),
    "blank thought": ("<think>\n\n</think>\n\nHi.", ("qwen3", None), ("", "Hi.", [])),
    "a reader that reads neither": (
        "<think>x</think>[TOOL_CALLS]",
        (None, None),
        ("", "<think>x</think>[TOOL_CALLS]", []),
    ),
    "after a call": (
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\nDone. ',
        (None, "hermes"),
        ("", "Done.", [("f", {})]),
    ),
}


@pytest.mark.few(8)
@pytest.mark.parametrize(("text", "parsers", "expected"), [*ANSWERS.values(), *TEXTS.values()], ids=[*ANSWERS, *TEXTS])
@settings(max_examples=30)
@given(data=st.data())
def test_any_cut_of_a_text_reads_the_same(data, text, parsers, expected):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    thought, said, calls = read(reader_of(*parsers), pieces)
    assert (thought, said, [(name, json.loads(arguments)) for name, arguments in calls]) == expected


@pytest.mark.parametrize(("text", "parsers", "expected"), [*ANSWERS.values(), *TEXTS.values()], ids=[*ANSWERS, *TEXTS])
def test_one_character_at_a_time_reads_the_same(text, parsers, expected):
    thought, said, calls = read(reader_of(*parsers), [*text, ""])
    assert (thought, said, [(name, json.loads(arguments)) for name, arguments in calls]) == expected


ALPHABET = [
    "<think>",
    "</think>",
    "<tool_call>",
    "</tool_call>",
    '{"name": "f", "arguments": ',
    "{}",
    "}",
    "\n",
    " a",
    '"',
]
ALPHABET += [
    "<|channel|>",
    "analysis",
    "final",
    "commentary",
    " to=functions.f",
    "<|message|>",
    "<|end|>",
    "[TOOL_CALLS]",
    "[",
]
ALPHABET += [
    "f[ARGS]",
    "<function=f>",
    "<parameter=a>",
    "</parameter>",
    "</function>",
    "<arg_key>k</arg_key>",
    "; ",
    ", ",
]


@pytest.mark.few(9)
@pytest.mark.parametrize("calls", CALLS)
@pytest.mark.parametrize("thinking", ["qwen3", "openai_gptoss"])
@settings(max_examples=30)
@given(data=st.data())
def test_nonsense_reads_the_same_in_any_cut(data, thinking, calls):
    text = "".join(data.draw(st.lists(st.sampled_from(ALPHABET), max_size=14)))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    pieces = [text[begin:end] for begin, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert read(reader_of(thinking, calls), pieces) == read(reader_of(thinking, calls), [text])


@pytest.mark.parametrize("text", ["Hm.</think>Yes.", "\nHm.\n</think>\n\nYes."])
def test_a_block_that_the_template_has_opened_has_begun(text):
    assert read(reader_of("qwen3", None, thinks="begun"), [text]) == ("Hm.", "Yes.", [])


def test_a_block_that_the_template_has_closed_is_over():
    assert read(reader_of("qwen3", None, thinks="no"), ["<think> is a mark."]) == ("", "<think> is a mark.", [])


def test_thinking_is_told_where_it_stands():
    reader = reader_of("openai_gptoss", None)
    first, second = "<|channel|>analysis<|message|>One.<|end|>", "<|channel|>analysis<|message|>Two."
    read(reader, [f"{first}<|start|>assistant{second}"])
    begin = len(first) + len("<|start|>assistant")
    assert reader.thoughts == [(0, len(first)), (begin, None)]


def test_arguments_come_before_a_call_has_ended():
    reader = AnswerReader(None, HERMES)
    parts = reader.read('<tool_call>\n{"name": "f", "arguments": {"a": "b', final=False)
    assert parts == [CallBegun(0, "f"), CallArguments(0, '{"a": "b')]


@pytest.mark.parametrize("text", ['<tool_call>\n{"name": "f', '<tool_call>\n{"name": "f", "arguments": {"a": "b'])
def test_a_call_that_is_cut_short_says_nothing(text):
    assert read(AnswerReader(None, HERMES), [text])[1] == ""


@pytest.mark.parametrize(
    ("value", "expected"), [("3", 3), ("[1]", [1]), ("three", "three"), ("NaN", "NaN"), ("a\nb", "a\nb"), ("", "")]
)
def test_values_between_marks_are_json_where_they_can_be(value, expected):
    text = f"<tool_call>f<arg_key>x</arg_key><arg_value>{value}</arg_value></tool_call>"
    ((_, arguments),) = read(reader_of(None, "glm47"), [text])[2]
    assert json.loads(arguments) == {"x": expected}


def test_a_value_is_text_where_its_schema_says_so():
    text = "<tool_call>get_weather<arg_key>city</arg_key><arg_value>3</arg_value></tool_call>"
    ((_, arguments),) = read(reader_of(None, "glm47"), [text])[2]
    assert json.loads(arguments) == {"city": "3"}


@pytest.mark.parametrize(
    ("schema", "value", "expected"),
    [
        ({"enum": ["12345"]}, "12345", "12345"),
        ({"const": "true"}, "true", "true"),
        ({"type": ["string", "null"]}, "12345", "12345"),
        ({"type": ["string", "null"]}, "null", None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, "07", "07"),
        ({"anyOf": [{"type": "string"}, {"type": "integer"}]}, "7", 7),
        ({"$ref": "#/$defs/zip"}, "12345", "12345"),
        ({"type": "number"}, "12345", 12345),
        ({"type": "string"}, '"quoted"', '"quoted"'),
        ({"type": "string"}, " a ", " a "),
        ({"type": "array"}, '["a"]', ["a"]),
        ({}, "3", 3),
    ],
)
@pytest.mark.parametrize("calls", ["qwen3_coder", "glm45"])
@pytest.mark.parametrize("where", ["properties", "additional"])
def test_a_value_is_what_its_schema_allows(schema, value, expected, calls, where):
    found = {"properties": {"x": schema}} if where == "properties" else {"additionalProperties": schema}
    parameters = {"type": "object", "$defs": {"zip": {"type": "string"}}, **found}
    marked = f"\n<arg_key>x</arg_key>\n<arg_value>{value}</arg_value>\n</tool_call>"
    if calls == "qwen3_coder":
        marked = f">\n<parameter=x>\n{value}\n</parameter>\n</function>\n</tool_call>"
    text = f"<tool_call>{'f' if calls == 'glm45' else chr(10) + '<function=f'}{marked}"
    ((_, arguments),) = read(reader_of(None, calls, schemas={"f": parameters}), [text])[2]
    assert json.loads(arguments) == {"x": expected}


@pytest.mark.parametrize(
    ("calls", "begun"),
    [
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=x>\n"),
        ("glm45", "<tool_call>f\n<arg_key>x</arg_key>\n<arg_value>"),
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"x": "'),
    ],
)
def test_a_long_argument_is_read_once(calls, begun):
    """Reading what has come again with every piece would take minutes."""
    value = "some words < of a file\n" * 8_000
    reader = reader_of(None, calls)
    for text in (begun, *(value[place : place + 4] for place in range(0, len(value), 4))):
        reader.read(text, final=False)
    assert reader.in_call


@pytest.mark.parametrize("calls", CALLS)
def test_white_space_without_end_holds_nobody_up(calls):
    """Patterns that went back over it would take minutes."""
    begun = ANSWERS["mistral-7b"][0][:-1] if calls == "mistral_list" else CALLS[calls].trigger
    pieces = [begun, *["\n" * 20] * 1000, "x"]
    assert read(reader_of(None, calls), pieces)[1] in ("", "x", "".join(pieces))


def test_text_without_marks_is_given_out_at_once():
    assert AnswerReader(None, None).read("Hello ", final=False) == [Said("Hello ")]
    reader = reader_of("qwen3", None)
    assert reader.read("<think>a </think>\n\nb ", final=False) == [Thought("a"), Said("b ")]


@pytest.mark.parametrize("schema", [{"$ref": "#/$defs/none"}, {"$ref": "#"}, {"properties": [1]}])
def test_schemas_that_lead_nowhere_allow_any_value(schema):
    """Where tools are not strict they are read, though no grammar can be made of them."""
    text = "<tool_call>\n<function=f>\n<parameter=x>\n1\n</parameter>\n</function>\n</tool_call>"
    parts = AnswerReader(None, CALLS["qwen3_coder"], schemas={"f": schema}).read(text, final=True)
    assert "".join(part.text for part in parts if isinstance(part, CallArguments)) == '{"x": 1}'
