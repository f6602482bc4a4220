"""Grammars in llguidance's syntax, which follows Lark: rules with small letters are parsed, others are automata.

An automaton takes the longest text that it can, so what may follow it must not be a part of it.
"""

import json
import re
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from drafttree.core.requirements import check_requirements

ALL_SPELLINGS = '%llguidance {"no_forcing": true}'
"""A text may be spelled by any tokens, not only by those the tokenizer would take."""
ANY_TEXT = "(?s:.)*"

LIMITS = {
    "max_items_in_row": 4_000,
    "step_max_items": 5_000,
    "step_lexer_fuel": 100_000,
    "initial_lexer_fuel": 1_000_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 200_000,
}
"""What one mask, and a grammar as a whole, may take; the names are llguidance's."""
STACK = 256 * 2**20
"""Bytes, for the rules or schemas that refer to each other, which llguidance reads by recursion: where thousands do,
the usual stack of a thread is too small, which ends the process."""


class Rules:
    """The rules of a grammar."""

    def __init__(self) -> None:
        self._lines: list[str] = []

    def add(self, expression: str, *, plain: bool = False, lazy: bool = False) -> str:
        """Add a rule; its name.

        Args:
            expression: what it stands for.
            plain: whether it is an automaton.
            lazy: whether it ends where it can, as an automaton otherwise does not.
        """
        name = self.name(plain=plain)
        self.define(name + "[lazy]" * lazy, expression)
        return name

    def name(self, *, plain: bool = False) -> str:
        """A name for a rule that is defined later."""
        self._lines.append("")
        return f"{'R' if plain else 'r'}{len(self._lines)}"

    def define(self, name: str, expression: str) -> None:
        """Say what a named rule stands for."""
        self._lines.append(f"{name}: {expression}")

    def grammar(self, expression: str) -> str:
        """The grammar of the texts of an expression."""
        return "\n".join([ALL_SPELLINGS, f"start: {expression}", *filter(None, self._lines)])


def literal(text: str) -> str:
    """An expression of one text."""
    return json.dumps(text, ensure_ascii=False)


def until(mark: str) -> str:
    """The expression, for a lazy rule, of any text up to and with the first occurrence of a mark."""
    return f"/{ANY_TEXT}/ {literal(mark)}"


def without(*marks: str) -> str:
    """The expression of an automaton for texts in which no mark occurs."""
    return " & ".join([f"/{ANY_TEXT}/", *(f"~(/{ANY_TEXT}/ {literal(mark)} /{ANY_TEXT}/)" for mark in marks)])


def json_texts(schema: Any, *, any_whitespace: bool = False, escapes_names: bool = True) -> str:
    """The expression of the JSON texts of a schema as llguidance reads it.

    Args:
        schema: the schema.
        any_whitespace: whether any white space may stand between elements, else only that of `json.dumps`.
        escapes_names: whether `\\u0061` may be written in strings, as names too.
    """
    options: dict[str, Any] = {} if escapes_names else {"json_allowed_escapes": 'nrbtf\\"'}
    if not any_whitespace:
        options |= {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
    written = {"x-guidance": options, **schema} if isinstance(schema, dict) else schema
    return f"%json {json.dumps(written)}"


def problem_of(grammar: str) -> str:
    """What llguidance refuses in a grammar, "" for nothing.

    Raises:
        ConfigError: it is not installed.
    """
    library = load_library()
    return one_line(with_stack(lambda: library.LLMatcher.validate_grammar(grammar, limits=limits())))


def with_stack(call: Callable[[], Any]) -> Any:
    """Call in a thread that has `STACK`."""
    with ThreadPoolExecutor(1) as pool:
        usual = threading.stack_size(STACK)
        try:
            called = pool.submit(call)
        finally:
            threading.stack_size(usual)
        return called.result()


def limits() -> Any:
    """`LIMITS` as llguidance takes them."""
    return load_library().LLParserLimits(**LIMITS)


def one_line(error: object) -> str:
    """An error in one line, without where llguidance finds it in a grammar that users do not see."""
    said = re.split(r"\n\s+\d+ \| |\n<state>", str(error))[0]
    said = re.sub(r"^at \d+\(\d+\): |^\d+\(\d+\): |failed to compile JSON schema: ", "", said)
    return " ".join(said.split())[:300]


def load_library() -> Any:
    """Import llguidance.

    Raises:
        ConfigError: it is not installed.
    """
    check_requirements("a grammar", "grammar")
    import llguidance

    return llguidance
