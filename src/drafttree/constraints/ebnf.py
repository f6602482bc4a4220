"""Translates EBNF grammars from GBNF syntax (llama.cpp) to llguidance's, which follows Lark.

llguidance reads a text with automata and parses what they find. Rules that refer to themselves neither directly nor
through others become automata, which are faster.
"""

import itertools
import re
import sys
from collections.abc import Iterator
from typing import NamedTuple

from drafttree.constraints.lark import LARGEST, Rules, literal
from drafttree.constraints.patterns import bound_of, check_text, join_halves, read_class
from drafttree.core.errors import ConfigError

NAME = "EBNF grammar"
TOKEN = re.compile(
    r"(?P<space>(?:\s|#[^\n]*)+)|(?P<begin>[A-Za-z_][\w.-]*)(?=(?:\s|#[^\n]*)*::=)|(?P<name>[A-Za-z_][\w.-]*)|(?P<is>::=)"
    r'|(?P<text>"(?:\\.|[^"\\\n])*")|(?P<class>\[(?:\\.|[^\]\\\n])*\])|(?P<any>\.)'
    r"|(?P<repeat>[*+?]|\{\s*(?P<least>[0-9]+)\s*(?:,\s*(?P<most>[0-9]*)\s*)?\})|(?P<mark>[()|])|(?P<wrong>.)",
    re.DOTALL | re.ASCII,
)
ESCAPE = re.compile(r"\\(?:x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
MAX_RULES = 5_000
"""The most rules of a grammar: llguidance follows references between rules by recursion."""
LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", **{each: each for each in "\"'\\[]/-^"}}


Tokens = list[re.Match[str]]
"""Matches of `TOKEN`, without spaces and comments."""


def ebnf_rules(grammar: object, rules: Rules) -> str:
    """Add the rules of a GBNF grammar to those of an llguidance grammar; return the new name of its rule "root".

    Raises:
        ConfigError: the grammar is malformed; the message gives the line and column of a wrong token.
    """
    text = check_text(NAME, grammar)
    bodies = _read_rules(text)
    uses = _uses(text, bodies)
    loops = dict[str, _Loop]()
    for name, body in bodies.items():
        if loop := _loop(name, body):
            loops[name] = loop
            uses[name].discard(name)  # it becomes a repetition
    plain_names = _without_circles(uses)
    names = {name: rules.name(plain=name in plain_names) for name in bodies}
    try:
        for name, body in bodies.items():
            loop = loops.get(name)
            expression = _repetition(text, loop, names) if loop else _Body(text, body, names).written()
            rules.define(names[name], expression)
    except RecursionError:
        raise ConfigError(f"invalid {NAME}: its parentheses are nested too deeply; name parts as rules") from None
    return names["root"]


def _read_rules(text: str) -> dict[str, Tokens]:
    """Split a grammar into rules: the tokens on the right side of each, by its name.

    Raises:
        ConfigError: a rule is defined twice, tokens stand outside of any rule, a character begins no token, there are
            too many rules, or none is named "root".
    """
    rules = dict[str, Tokens]()
    body: Tokens | None = None
    for token in TOKEN.finditer(text):
        match token.lastgroup:
            case "begin" if token[0] in rules:
                raise _wrong(text, token, f"the rule {token[0]} is there twice")
            case "begin":
                body = rules[token[0]] = []
            case "is" | "space":
                continue
            case _ if body is None:
                raise _wrong(text, token, f"expected a rule such as root ::= ..., not {token[0][:20]!r}")
            case "name" | "text" | "class" | "any" | "repeat" | "mark":
                body.append(token)
            case _:
                raise _wrong(text, token, f"unexpected {token[0]!r}")
    if len(rules) > MAX_RULES:
        raise ConfigError(f"invalid {NAME}: it has more than {MAX_RULES} rules; write some as alternatives of others")
    if "root" not in rules:
        raise ConfigError(f'invalid {NAME}: the rule "root" is not found; the grammar begins with it')
    return rules


def _uses(text: str, rules: dict[str, Tokens]) -> dict[str, set[str]]:
    """The names of the rules that each rule refers to directly.

    Raises:
        ConfigError: a rule refers to one that is not defined.
    """
    uses: dict[str, set[str]] = {name: set() for name in rules}
    for name, body in rules.items():
        for token in body:
            if token.lastgroup != "name":
                continue
            if token[0] not in rules:
                raise _wrong(text, token, f'the rule "{token[0]}" is not defined')
            uses[name].add(token[0])
    return uses


class _Loop(NamedTuple):
    """A rule that refers to itself only at one end of its alternatives.

    Attributes:
        at_end: whether it does so at their end, else at their beginning.
        repetitions: the alternatives that refer to the rule, without that reference.
        bases: the other alternatives.
    """

    at_end: bool
    repetitions: list[Tokens]
    bases: list[Tokens]


def _loop(name: str, body: Tokens) -> _Loop | None:
    """A rule such as `list ::= item list | ""` as a loop, which llguidance matches faster; None for another rule."""
    alternatives = _split_alternatives(body)
    for at_end in (True, False):
        self_index = -1 if at_end else 0
        repetitions = list[Tokens]()
        bases = list[Tokens]()
        for alternative in alternatives:
            if len(alternative) > 1 and _is_reference(alternative[self_index], name):
                repetitions.append(alternative[:-1] if at_end else alternative[1:])
            else:
                bases.append(alternative)
        inner_tokens = itertools.chain(*repetitions, *bases)
        refers_elsewhere = any(_is_reference(token, name) for token in inner_tokens)
        repeats_itself = any(repetition[0]["repeat"] for repetition in repetitions)  # such as `list ::= list* item`
        if repetitions and bases and not refers_elsewhere and not repeats_itself:
            return _Loop(at_end, repetitions, bases)
    return None


def _split_alternatives(body: Tokens) -> list[Tokens]:
    """The alternatives of a rule, split at each "|" outside of parentheses."""
    alternatives: list[Tokens] = [[]]
    depth = 0
    for token in body:
        depth += (token[0] == "(") - (token[0] == ")")
        if token[0] == "|" and not depth:
            alternatives.append([])
        else:
            alternatives[-1].append(token)
    return alternatives


def _is_reference(token: re.Match[str], name: str) -> bool:
    return token.lastgroup == "name" and token[0] == name


def _repetition(text: str, loop: _Loop, names: dict[str, str]) -> str:
    """The expression of a loop, for example `(item)* ("")` for `list ::= item list | ""`."""
    repeated = _choice(text, loop.repetitions, names)
    base = _choice(text, loop.bases, names)
    return f"{repeated}* {base}" if loop.at_end else f"{base} {repeated}*"


def _choice(text: str, alternatives: list[Tokens], names: dict[str, str]) -> str:
    """The expression of alternatives, in parentheses."""
    expressions = [_Body(text, alternative, names).written() for alternative in alternatives]
    return f"({' | '.join(expressions)})"


class _Body:
    """Recursive-descent parser that translates the right side of a rule.

    Args:
        text: the grammar, for the places in error messages.
        tokens: the tokens of the right side.
        names: new names of rules, by their names in the grammar.
    """

    def __init__(self, text: str, tokens: Tokens, names: dict[str, str]) -> None:
        self._text = text
        self._tokens = tokens
        self._names = names
        self._at = 0

    def written(self) -> str:
        expression = self._alternatives()
        if self._at < len(self._tokens):
            raise _wrong(self._text, self._tokens[self._at], f"unexpected {self._tokens[self._at][0]!r}")
        return expression

    def _alternatives(self) -> str:
        sequences = [self._sequence()]
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "|":
            self._at += 1
            sequences.append(self._sequence())
        return " | ".join(sequences)

    def _sequence(self) -> str:
        return " ".join(self._elements()) or '""'

    def _elements(self) -> Iterator[str]:
        while self._at < len(self._tokens) and self._tokens[self._at][0] not in ("|", ")"):
            token = self._tokens[self._at]
            self._at += 1
            match token.lastgroup:
                case "mark":
                    expression = f"({self._alternatives()})"
                    if self._at == len(self._tokens):
                        raise _wrong(self._text, token, "a parenthesis is not closed")
                    self._at += 1
                case "text":
                    expression = literal(self._spelled(token))
                case "class":
                    class_text = ESCAPE.sub(_hexadecimal, join_halves(NAME, token[0]))
                    expression = f"/{read_class(NAME, class_text).in_rust()}/"
                case "any":
                    expression = r"/[^\n\r]/"
                case "name":
                    expression = self._names[token[0]]
                case _:
                    raise _wrong(self._text, token, f"{token[0]!r} has nothing before it to repeat")
            while self._at < len(self._tokens) and self._tokens[self._at]["repeat"]:
                expression = self._repeated(expression, self._tokens[self._at])
                self._at += 1
            yield expression

    def _repeated(self, expression: str, token: re.Match[str]) -> str:
        if token["least"] is None:
            return f"({expression}){token[0]}"
        if any(bound_of(digits) > LARGEST for digits in token.group("least", "most") if digits):
            message = f"{token[0][:40]!r} repeats more than {LARGEST} times; lower its bounds"
            raise _wrong(self._text, token, message)
        min_count = bound_of(token["least"])
        max_digits = token["most"]
        if max_digits is None:  # as in {3}
            return f"({expression}){{{min_count},{min_count}}}"
        if not max_digits:  # as in {3,}
            return f"({expression}){{{min_count},}}"
        max_count = bound_of(max_digits)
        if min_count > max_count:
            raise _wrong(self._text, token, f"{token[0]!r} ends before it begins")
        return f"({expression}){{{min_count},{max_count}}}"

    def _spelled(self, token: re.Match[str]) -> str:
        """The text of a quoted string, with its escapes replaced."""

        def character(escape: re.Match[str]) -> str:
            if escape[4] is None:
                code = int(escape[1] or escape[2] or escape[3], 16)
                if code > sys.maxunicode or 0xD800 <= code < 0xE000:
                    raise _wrong(self._text, token, f"{escape[0]} is not a character")
                return chr(code)
            if escape[4] not in LETTERS:
                raise _wrong(self._text, token, f"{escape[0]!r} is not an escape")
            return LETTERS[escape[4]]

        return ESCAPE.sub(character, join_halves(NAME, token[0][1:-1]))


def _hexadecimal(escape: re.Match[str]) -> str:
    return f"\\x{{{escape[3]}}}" if escape[3] else escape[0]


def _without_circles(uses: dict[str, set[str]]) -> set[str]:
    """The rules that refer, directly or through others, to no rule that leads back to itself.

    Args:
        uses: names of the rules that each rule refers to directly.
    """
    plain_names = set[str]()
    pending_uses = {**uses}
    while True:
        resolved_names = {name for name, used_names in pending_uses.items() if used_names <= plain_names}
        if not resolved_names:
            return plain_names
        plain_names |= resolved_names
        for name in resolved_names:
            del pending_uses[name]


def _wrong(text: str, token: re.Match[str], problem: str) -> ConfigError:
    prefix = text[: token.start()]
    line = prefix.count("\n") + 1
    column = token.start() - prefix.rfind("\n")
    return ConfigError(f"invalid {NAME}: {problem} at line {line}, column {column}")
