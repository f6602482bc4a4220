"""Tables of model families: how they mark thinking, and how they write tool calls.

`--reasoning-parser` and `--tool-parser` choose an entry by its name, which is vLLM's. By default, a family is detected
by its marks in the chat template. Models vary the white space in a form and around its
braces, so any amount matches. The quantifiers are possessive, because backtracking would take quadratic time.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeVar

import regex

from drafttree.core.errors import ConfigError

NAME = r'(?P<name>[^\s"<>\[\]{}|]{1,128})'
"""The name of a function in a call."""


@dataclass(frozen=True)
class Thinking:
    """How a family marks thinking.

    Attributes:
        begin: the mark before thinking.
        end: the mark after thinking.
        after: regular expression of what a model writes between `end` and its answer.
        anywhere: whether a model may think again after it has begun its answer.
        say: the mark before the answer; "" for none.
        said: regular expression of `say` in all its variants.
        silent: further marks that are not part of the text.
        headers: pairs of marks around headers, which are not part of the text either.
    """

    begin: str
    end: str
    after: str = r"\n{0,2}"
    anywhere: bool = False
    say: str = ""
    said: str = ""
    silent: tuple[str, ...] = ()
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def told_by(self) -> tuple[str, ...]:
        """Texts that identify the family: its chat templates have all of them."""
        return (self.begin,)

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return self.begin, self.end, self.say, *self.silent


Arguments = Literal["json", "qwen_xml", "glm_xml"]
"""How arguments are written: as one JSON object, or each between marks. The names are xgrammar's."""


@dataclass(frozen=True)
class CallForm:
    """How a family writes tool calls.

    Attributes:
        begin: text before the name of the function.
        middle: text between the name and the arguments.
        end: text after the arguments.
        trigger: the beginning of a call, which occurs in no other text; from there on, a grammar applies.
        told_by: texts that identify the family: its chat templates have all of them.
        arguments: how the arguments are written.
        around: texts before the first call and after the last call.
        between: text between two calls; None if an answer has one call at most.
        silent: further marks that are not text.
        template_writes_text: whether the family's chat templates take arguments as JSON text instead of objects.
        head: regular expression of what precedes the arguments, if models vary it.
        tail: regular expression of what follows the arguments, if models vary it.
        opening: regular expression of what precedes the first call, if models vary it.
        untagged: whether models may leave out the marks, and write the object in a code fence or on a new line.
    """

    begin: str
    middle: str
    end: str
    trigger: str
    told_by: tuple[str, ...]
    arguments: Arguments = "json"
    around: tuple[str, str] = ("", "")
    between: str | None = "\n"
    silent: tuple[str, ...] = ()
    template_writes_text: bool = False
    head: str | None = None
    tail: str | None = None
    opening: str | None = None
    untagged: bool = False

    @property
    def marks(self) -> tuple[str, ...]:
        """All marks."""
        return self.begin, self.middle, self.end, *self.around, *self.silent

    @cached_property
    def first(self) -> str:
        """Regular expression of what precedes the arguments of the first call."""
        opening = _lenient(self.around[0]) + r"\s*+" * bool(self.around[0]) if self.opening is None else self.opening
        return opening + self._head

    @cached_property
    def further(self) -> Any:
        """Pattern of what precedes the arguments of a later call."""
        return regex.compile(rf"\s*+,?\s*+{self._head}")

    @cached_property
    def after(self) -> Any:
        """Pattern of what follows the arguments of a call."""
        return regex.compile(_lenient(self.end) if self.tail is None else self.tail)

    @cached_property
    def closing(self) -> Any:
        """Pattern of what follows the last call."""
        return regex.compile(rf"\s*+{regex.escape(self.around[1])}")

    @property
    def _head(self) -> str:
        if self.head:
            return self.head
        return _lenient(self.begin) + NAME + _lenient(self.middle) + r"\s*+(?=\{)" * (self.arguments == "json")

    def untagged_forms(self, names: Iterable[str]) -> tuple["CallForm", ...]:
        """The forms of calls without marks. These are recognised only by the functions' names."""
        name_pattern = "|".join(map(regex.escape, names))
        if not (self.untagged and name_pattern):
            return ()
        head = (
            rf'\{{{SPACE}"name"{SPACE}:{SPACE}"(?P<name>{name_pattern})"{SPACE},{SPACE}'
            rf'"(?:arguments|parameters)"{SPACE}:{SPACE}(?=\{{)'
        )
        return replace(FENCED, head=head), replace(OBJECT, head=head)

    def text(self, calls: Iterable[tuple[str, str]]) -> str:
        """The text of calls, each given by its name and its arguments as the family writes them."""
        call_texts = [f"{self.begin}{name}{self.middle}{arguments}{self.end}" for name, arguments in calls]
        return f"{self.around[0]}{(self.between or '').join(call_texts)}{self.around[1]}"


def _lenient(literal: str) -> str:
    """Regular expression of a text with any amount of white space where the text has some, and inside braces."""
    segments = (regex.escape(segment, literal_spaces=True) for segment in regex.split(r"\s+", literal))
    pattern = r"\s*+".join(segments).replace(r"\{", r"\{\s*+").replace(r"\}", r"\s*+\}")
    return pattern.replace(r"\s*+\s*+", r"\s*+")


def _mark(words: str) -> str:
    """A mark of DeepSeek's models: full-width bars around words, with lower one eighth blocks for spaces."""
    return f"<\uff5c{words.replace(' ', chr(0x2581))}\uff5c>"


PLAIN = Thinking("<think>", "</think>")
HARMONY = Thinking(
    "<|channel|>analysis<|message|>",
    "<|end|>",
    after=r"<\|start\|>assistant",
    anywhere=True,
    say="<|channel|>final<|message|>",
    said=r"<\|channel\|>final ?(?:(?:<\|constrain\|>)?json)?<\|message\|>",
    silent=("<|start|>assistant", "<|channel|>commentary<|message|>", "<|return|>", "<|call|>"),
    headers=(("<|channel|>", "<|message|>"), ("<|start|>", "<|message|>")),
)
THINKING = {
    "openai_gptoss": HARMONY,
    "mistral": Thinking("[THINK]", "[/THINK]"),
    "qwen3": PLAIN,
    "deepseek_r1": PLAIN,
    "glm45": PLAIN,
}
"""Marks of thinking by name; "auto" takes the first that the chat template has."""

HERMES = CallForm(
    '<tool_call>\n{"name": "',
    '", "arguments": ',
    "}\n</tool_call>",
    trigger="<tool_call>",
    told_by=("<tool_call>",),
    untagged=True,
)
SPACE = r"\s{0,64}+"
"""White space inside a call without marks, bounded because text is held back as long as it may belong to a call."""
OBJECT = CallForm(
    '{"name": "',
    '", "arguments": ',
    "}",
    trigger="{",
    told_by=(),
    opening=rf"(?:\A{SPACE}|(?<=\n))",
    tail=rf'{SPACE}(?:,{SPACE}"(?:id|type)"{SPACE}:{SPACE}(?:"\w{{0,64}}+"|\d{{1,18}}+){SPACE}){{0,2}}+\}}',
)
FENCED = replace(OBJECT, around=("```json\n", "```"), opening=rf"```\w{{0,16}}+[ \t]{{0,64}}+\r?\n{SPACE}")
TO = r"to=functions\."
CHANNEL = r"<\|channel\|>(?:commentary|analysis)"
KIND = r"(?:<\|constrain\|>)?(?:json|code)?"
CALLS = {
    "openai": CallForm(
        "<|channel|>commentary to=functions.",
        " <|constrain|>json<|message|>",
        "",
        trigger="<|channel|>commentary to=",
        told_by=("<|channel|>commentary",),
        between=None,
        silent=HARMONY.marks,
        head=rf"(?:{CHANNEL} {TO}{NAME}| {TO}{NAME}{CHANNEL}) ?{KIND}<\|message\|>\s*+(?=\{{)",
    ),
    "deepseek_v3": CallForm(
        _mark("tool call begin") + "function" + _mark("tool sep"),
        "\n```json\n",
        "\n```" + _mark("tool call end"),
        trigger=_mark("tool calls begin"),
        told_by=(_mark("tool calls begin"), "```json"),
        around=(_mark("tool calls begin"), _mark("tool calls end")),
        template_writes_text=True,
    ),
    "deepseek_v31": CallForm(
        _mark("tool call begin"),
        _mark("tool sep"),
        _mark("tool call end"),
        trigger=_mark("tool calls begin"),
        told_by=(_mark("tool calls begin"),),
        around=(_mark("tool calls begin"), _mark("tool calls end")),
        template_writes_text=True,
        between="",
    ),
    "glm47": CallForm(
        "<tool_call>",
        "",
        "</tool_call>",
        trigger="<tool_call>",
        told_by=("<tool_call>", "</arg_key><arg_value>"),
        arguments="glm_xml",
        between="",
        head=rf"<tool_call>\s*+{NAME}\s*+(?=<arg_key>|</tool_call>)",
    ),
    "glm45": CallForm(
        "<tool_call>",
        "\n",
        "\n</tool_call>",
        trigger="<tool_call>",
        told_by=("<tool_call>", "<arg_key>"),
        arguments="glm_xml",
        head=rf"<tool_call>\s*+{NAME}\s*+(?=<arg_key>|</tool_call>)",
    ),
    "qwen3_coder": CallForm(
        "<tool_call>\n<function=",
        ">\n",
        "\n</function>\n</tool_call>",
        trigger="<tool_call>",
        told_by=("<tool_call>", "<function=", "<parameter="),
        arguments="qwen_xml",
    ),
    "hermes": HERMES,
    "mistral": CallForm(
        "[TOOL_CALLS]",
        "[ARGS]",
        "",
        trigger="[TOOL_CALLS]",
        told_by=("[TOOL_CALLS]", "[ARGS]"),
        between="",
        silent=("[CALL_ID]",),
        head=rf"\[TOOL_CALLS\]\s*+{NAME}(?:\[CALL_ID\]\w{{1,64}}+)?\[ARGS\]\s*+(?=\{{)",
    ),
    "mistral_list": CallForm(
        '{"name": "',
        '", "arguments": ',
        "}",
        trigger="[TOOL_CALLS]",
        told_by=("[TOOL_CALLS]",),
        around=("[TOOL_CALLS] [", "]"),
        between=", ",
        tail=r'\s*+(?:,\s*+"id":\s*+"\w{0,64}+"\s*+)?\}',
    ),
    "llama3_json": CallForm(
        '{"name": "',
        '", "parameters": ',
        "}",
        trigger='{"name": ',
        told_by=("ipython", '"parameters": '),
        between="; ",
        silent=("<|python_tag|>",),
        head=rf'(?:;\s*+)?\{{\s*+(?:"type":\s*+"function",\s*+)?"name":\s*+"{NAME}",\s*+'
        r'"(?:parameters|arguments)":\s*+(?=\{)',
        tail=r'\s*+(?:,\s*+"type":\s*+"function"\s*+)?\}',
    ),
}
"""Forms of tool calls by name; "auto" takes the first that the chat template has."""

AUTO, NONE = "auto", "none"
Kind = TypeVar("Kind", Thinking, CallForm)


def check_parsers(tool_parser: str, reasoning_parser: str) -> None:
    """Refuse unknown names of parsers.

    Raises:
        ConfigError: a name is unknown; the message lists the known ones.
    """
    for option, name, parsers in (
        ("--tool-parser", tool_parser, CALLS),
        ("--reasoning-parser", reasoning_parser, THINKING),
    ):
        if name not in (AUTO, NONE, *parsers):
            raise ConfigError(f"{option} is {name!r}; known: {AUTO}, {NONE}, {', '.join(sorted(parsers))}")


def choose(forms: Mapping[str, Kind], name: str, template: str) -> Kind | None:
    """The form with a name, or for "auto" the first that the chat template has; None if there is none."""
    if name == AUTO:
        return next((form for form in forms.values() if all(text in template for text in form.told_by)), None)
    return forms.get(name)
