"""Grammars in llguidance's syntax, which follows Lark: rules with lower-case names are parsed, others are automata.

An automaton takes the longest text that it can, so it must not be able to take what follows it.
"""

import functools
import json
import re
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from drafttree.core.errors import ConfigError
from drafttree.core.requirements import check_requirements

ALL_SPELLINGS = '%llguidance {"no_forcing": true}'
"""Allows any tokens that spell a text, not only those of the tokenizer."""
ANY_TEXT = "(?s:.)*"
EMPTY = '""'
LARGEST = 2**31 - 1
"""The largest bound of a repetition that llguidance accepts."""

NO_TOKEN = "NoExtensionBias"
"""llguidance's error if no token of the vocabulary can continue the text."""
LIMITS = {
    "max_items_in_row": 4_000,
    "step_max_items": 5_000,
    "step_lexer_fuel": 100_000,
    "initial_lexer_fuel": 1_000_000,
    "max_lexer_states": 20_000,
    "max_grammar_size": 200_000,
}
"""Limits of the work for one mask and for a whole grammar; the names are llguidance's."""
STACK = 256 * 2**20
"""Stack size, in bytes: llguidance follows references between rules and schemas by recursion, and thousands of them
overflow a usual stack, which ends the process."""


class Rules:
    """The rules of a grammar."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[tuple[str, bool, bool], str] = {}

    def add(self, expression: str, *, plain: bool = False, lazy: bool = False) -> str:
        """Add a rule unless there is an equal one; return its name.

        Args:
            expression: the right side of the rule.
            plain: whether it is an automaton.
            lazy: whether it takes the shortest possible text; other automata take the longest.
        """
        key = expression, plain, lazy
        if key not in self._names:
            self._names[key] = name = self.name(plain=plain)
            self.define(name + "[lazy]" * lazy, expression)
        return self._names[key]

    def circular(self, key_text: str, expression: Callable[[str], str]) -> str:
        """Add a rule that may refer to itself, unless it exists; return its name.

        Args:
            key_text: identifies the rule.
            expression: makes its right side, from its name.
        """
        if (key := (key_text, False, False)) not in self._names:
            self._names[key] = name = self.name()
            self.define(name, expression(name))
        return self._names[key]

    def name(self, *, plain: bool = False) -> str:
        """A name for a rule that is defined later."""
        self._lines.append("")
        return f"{'R' if plain else 'r'}{len(self._lines)}"

    def define(self, name: str, expression: str) -> None:
        """Add the right side of a named rule."""
        self._lines.append(f"{name}: {expression}")

    def grammar(self, expression: str) -> str:
        """The text of the grammar whose start rule is an expression."""
        return "\n".join([ALL_SPELLINGS, f"start: {expression}", *filter(None, self._lines)])


def literal(text: str) -> str:
    """The expression of a single text."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", r"\u007f")


def until(mark: str) -> str:
    """The expression, for a lazy rule, of any text up to the first occurrence of a mark, which is included."""
    return f"/{ANY_TEXT}/ {literal(mark)}"


def without(*marks: str) -> str:
    """The expression, for an automaton, of the texts in which none of the marks occurs."""
    texts_with_mark = [f"/{ANY_TEXT}/ {literal(mark)} /{ANY_TEXT}/" for mark in marks]
    return " & ".join([f"/{ANY_TEXT}/", *(f"~({texts})" for texts in texts_with_mark)])


def json_texts(schema: Any) -> str:
    """The expression of the JSON texts of a schema as llguidance reads it, without white space between elements."""
    library_schema = {"x-guidance": {"whitespace_flexible": False}, **schema} if isinstance(schema, dict) else schema
    return f"%json {json.dumps(library_schema)}"


def repeated(expression: str, min_count: int, max_count: int | None = None) -> str:
    """The expression of at least `min_count` and at most `max_count` repetitions; None for no limit."""
    if max_count == 0:
        return EMPTY
    if max_count is None or max_count > LARGEST:
        return f"({expression}){{{min(min_count, LARGEST)},}}" if min_count else f"({expression})*"
    return f"({expression}){{{min(min_count, LARGEST)},{max_count}}}"


def has_texts(grammar: str) -> bool:
    """Whether a grammar has any text.

    Args:
        grammar: the grammar, whose first rule is an automaton.

    Raises:
        ConfigError: finding out exceeds llguidance's limits.
    """
    matcher = _bytes_matcher(grammar)
    mask = np.frombuffer(matcher.compute_bitmask(), np.uint8)
    if matcher.is_error() and one_line(matcher.get_error()) == NO_TOKEN:
        return False
    _check_followed(matcher)
    return bool(mask.any())


def matching(grammar: str, texts: Iterable[str]) -> list[bool]:
    """Whether each text belongs to a grammar.

    Raises:
        ConfigError: finding out exceeds llguidance's limits.
    """
    start_matcher = _bytes_matcher(grammar)
    verdicts = list[bool]()
    for text in texts:
        matcher = start_matcher.deep_copy()
        text_bytes = [*text.encode()]
        verdicts.append(matcher.try_consume_tokens(text_bytes) == len(text_bytes) and matcher.is_accepting())
        _check_followed(matcher)
    return verdicts


def problem_of(grammar: str) -> str:
    """llguidance's error for a grammar; "" if it accepts the grammar.

    Raises:
        ConfigError: llguidance is not installed.
    """
    library = load_library()
    return one_line(with_stack(lambda: library.LLMatcher.validate_grammar(grammar, limits=limits())))


def with_stack(call: Callable[[], Any]) -> Any:
    """Call a function in a thread with a stack of `STACK` bytes; return its result."""
    with ThreadPoolExecutor(1) as pool:
        previous_size = threading.stack_size(STACK)
        try:
            future = pool.submit(call)
        finally:
            threading.stack_size(previous_size)
        return future.result()


def limits() -> Any:
    """`LIMITS` as an object of llguidance."""
    return load_library().LLParserLimits(**LIMITS)


def one_line(error: object) -> str:
    """An error of llguidance in one line, without its place in a grammar that users do not see."""
    message = re.split(r"\n\s+\d+ \| |\n<state>", str(error))[0]
    message = re.sub(r"^at \d+\(\d+\): |^\d+\(\d+\): |failed to compile JSON schema: ", "", message)
    return " ".join(message.split())[:300]


def _check_followed(matcher: Any) -> None:
    """Raise the error of a matcher that failed.

    Raises:
        ConfigError: the matcher has exceeded llguidance's limits.
    """
    if matcher.is_error():
        problem = one_line(matcher.get_error())
        raise ConfigError(
            f"invalid JSON schema: a pattern is too complex to be tested for matches ({problem}); make it simpler"
        )


def _bytes_matcher(grammar: str) -> Any:
    """A matcher of a grammar for a vocabulary of bytes."""
    library = load_library()
    tokenizer = _bytes_tokenizer()
    return with_stack(lambda: library.LLMatcher(tokenizer, grammar, log_level=0, limits=limits()))


@functools.cache
def _bytes_tokenizer() -> Any:
    return load_library().LLTokenizer("byte")


def load_library() -> Any:
    """Import llguidance.

    Raises:
        ConfigError: llguidance is not installed.
    """
    check_requirements("a grammar", "grammar")
    import llguidance

    return llguidance
