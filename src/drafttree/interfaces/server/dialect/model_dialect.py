"""The dialect of one model, from its chat template or the server's options."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import regex

from drafttree.interfaces.server.dialect.families import AUTO, CALLS, HERMES, NONE, THINKING, CallForm, Thinking, choose
from drafttree.interfaces.server.dialect.reader import Thinks
from drafttree.text.detokenizer import special_tokens
from drafttree.text.stop_scope import Stretch

PROMPT_END = 32
"""The number of last tokens of a prompt in which marks of thinking are looked for."""
THOUGHT_NAMES = ("reasoning_content", "thinking", "reasoning")
"""The fields of a message from which chat templates read thinking."""
SWITCHES = ("enable_thinking", "thinking")
"""The variables with which chat templates turn thinking on and off."""


@dataclass(frozen=True)
class Dialect:
    """How a model writes its answers.

    Attributes:
        thinking: the marks of its thinking; None to read no thinking.
        calls: the form of its tool calls; None to read no calls.
        template: its chat template; several are joined; "" for none.
    """

    thinking: Thinking | None
    calls: CallForm | None
    template: str = ""

    @classmethod
    def of(cls, tokenizer: Any, tool_parser: str = AUTO, reasoning_parser: str = AUTO) -> Self:
        """The dialect of a model.

        Args:
            tokenizer: the model's tokenizer, with its chat template.
            tool_parser: name of the form of tool calls; "auto" to detect it, "none" to read none.
            reasoning_parser: name of the marks of thinking; "auto" and "none" as for `tool_parser`.
        """
        chat_template = getattr(tokenizer, "chat_template", None) or ""
        template = "\n".join(chat_template.values()) if isinstance(chat_template, dict) else str(chat_template)
        calls = choose(CALLS, tool_parser, template)
        return cls(
            thinking=choose(THINKING, reasoning_parser, template),
            calls=HERMES if calls is None and tool_parser != NONE else calls,
            template=template,
        )

    @cached_property
    def native(self) -> CallForm | None:
        """The form of tool calls if the chat template itself renders tools, calls and results; else None."""
        return choose(CALLS, AUTO, self.template) if self.reads("tools") else None

    @cached_property
    def thought_name(self) -> str | None:
        """The field of a message from which the chat template reads thinking; None if it reads none."""
        names = "|".join(THOUGHT_NAMES)
        pattern = rf"""\.({names})\b|\[['"]({names})['"]\]|['"]({names})['"] in """
        name_match = regex.search(pattern, _code(self.template))
        return next(filter(None, name_match.groups())) if name_match else None

    @property
    def one_call(self) -> bool:
        """Whether an answer has at most one call, because some chat templates, such as Llama's, cannot render more."""
        return (self.calls is not None and self.calls.between is None) or "single tool-call" in self.template

    @cached_property
    def takes_effort(self) -> bool:
        """Whether the chat template has a variable for the reasoning effort, or one that turns thinking on and off."""
        return any(self.reads(name) for name in ("reasoning_effort", *SWITCHES))

    def reads(self, name: str) -> bool:
        """Whether the chat template uses a variable."""
        code = regex.sub(r"""'(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*\"""", "''", _code(self.template))
        return regex.search(rf"(?<![.\w]){name}\b", code) is not None

    def thinks(self, tokenizer: Any, prompt: list[int]) -> Thinks:
        """Whether an answer to a prompt begins with thinking."""
        if self.thinking is None:
            return "no"
        end = tokenizer.decode(prompt[-PROMPT_END:]).rstrip()
        if end.endswith(self.thinking.begin):
            return "begun"
        return "no" if end.endswith(self.thinking.end) else "perhaps"

    def unstopped(self, thinks: Thinks) -> list[Stretch]:
        """The stretches of an answer in which stop strings do not apply: thinking and headers.

        Args:
            thinks: whether the answer begins with thinking.
        """
        thinking = self.thinking
        if thinking is None:
            return []
        headers = [Stretch(begin, end, anywhere=True) for begin, end in thinking.headers]
        if thinks == "no" and not thinking.anywhere:
            return headers
        is_thinking = thinks == "begun"
        return [Stretch(thinking.begin, thinking.end, opened=is_thinking, anywhere=thinking.anywhere), *headers]

    def spelled_tokens(self, tokenizer: Any, vocab_size: int, *, calls: bool) -> list[int]:
        """The special tokens that are marks of thinking and, if `calls`, of tool calls."""
        forms = [self.thinking, self.calls if calls else None]
        marks = "\n".join(mark for form in forms if form for mark in form.marks)
        return [token for token, text in special_tokens(tokenizer).items() if text in marks and token < vocab_size]

    def call_id(self, original_id: str) -> str:
        """The id of a tool call in a form that the chat template accepts: Mistral's need nine letters or digits."""
        if "length 9" not in self.template or regex.fullmatch("[a-zA-Z0-9]{9}", original_id):
            return original_id
        return hashlib.sha256(original_id.encode(errors="replace")).hexdigest()[:9]


def _code(template: str) -> str:
    """The statements and expressions of a chat template."""
    return "\n".join(regex.findall(r"\{[%{](.*?)[%}]\}", template, regex.DOTALL))
