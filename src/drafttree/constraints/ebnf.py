"""Writes EBNF grammars in GBNF syntax (llama.cpp) in llguidance's, which follows Lark.

llguidance matches a text with an automaton where it can, and parses what the automata find. Rules that do not refer to
themselves, however indirectly, become automata.
"""

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
"""Rules of a grammar; llguidance follows them by recursion."""
LETTERS = {"n": "\n", "r": "\r", "t": "\t", "b": "\b", "f": "\f", **{each: each for each in "\"'\\[]/-^"}}


def ebnf_rules(given: object, made: Rules) -> str:
    """Add the rules of a grammar to others; the name of the first.

    Raises:
        ConfigError: it is malformed; the message names the line and column.
    """
    text = check_text(NAME, given)
    rules = dict[str, list[re.Match[str]]]()
    body: list[re.Match[str]] | None = None
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
    loops = {name: loop for name, body in rules.items() if (loop := _loop(name, body))}
    uses = {name: {token[0] for token in body if token.lastgroup == "name"} for name, body in rules.items()}
    for body in rules.values():
        for token in body:
            if token.lastgroup == "name" and token[0] not in rules:
                raise _wrong(text, token, f'the rule "{token[0]}" is not defined')
    plain_names = _without_circles(
        {name: used_names - {name} if name in loops else used_names for name, used_names in uses.items()}
    )
    names = {name: made.name(plain=name in plain_names) for name in rules}
    try:
        for name, tokens in rules.items():
            if name not in loops:
                made.define(names[name], _Body(text, tokens, names).written())
                continue
            groups = [
                [_Body(text, alternative, names).written() for alternative in alternatives]
                for alternatives in loops[name][1:]
            ]
            repetition = f"({' | '.join(groups[0])})"
            base = f"({' | '.join(groups[1])})"
            made.define(names[name], f"{repetition}* {base}" if loops[name].last else f"{base} {repetition}*")
    except RecursionError:
        raise ConfigError(f"invalid {NAME}: its parentheses are nested too deeply; name parts as rules") from None
    return names["root"]


class _Loop(NamedTuple):
    """A rule that only repeats itself.

    Attributes:
        last: whether it refers to itself at the end of its alternatives, else at their beginning.
        again: what stands beside that.
        once: the other alternatives.
    """

    last: bool
    again: list[list[re.Match[str]]]
    once: list[list[re.Match[str]]]


def _loop(name: str, tokens: list[re.Match[str]]) -> _Loop | None:
    """A rule such as `list ::= item list | ""` as a loop, which llguidance follows in less time; None for another."""
    alternatives = [[]]
    depth = 0
    for token in tokens:
        depth += (token[0] == "(") - (token[0] == ")")
        if token[0] == "|" and not depth:
            alternatives.append([])
        else:
            alternatives[-1].append(token)
    for at_end in (True, False):
        self_index = -1 if at_end else 0
        repetitions = list[list[re.Match[str]]]()
        bases = list[list[re.Match[str]]]()
        for alternative in alternatives:
            is_recursive = (
                len(alternative) > 1
                and alternative[self_index].lastgroup == "name"
                and alternative[self_index][0] == name
            )
            (repetitions if is_recursive else bases).append(
                (alternative[:-1] if at_end else alternative[1:]) if is_recursive else alternative
            )
        inner_tokens = [token for alternative in (*repetitions, *bases) for token in alternative]
        refers_elsewhere = any(token.lastgroup == "name" and token[0] == name for token in inner_tokens)
        if (
            repetitions
            and bases
            and not refers_elsewhere
            and not any(repetition[0]["repeat"] for repetition in repetitions)
        ):
            return _Loop(at_end, repetitions, bases)
    return None


class _Body:
    """The right side of a rule, read by descent."""

    def __init__(self, text: str, tokens: list[re.Match[str]], names: dict[str, str]) -> None:
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
                    expression = (
                        f"/{read_class(NAME, ESCAPE.sub(_hexadecimal, join_halves(NAME, token[0]))).in_rust()}/"
                    )
                case "any":
                    expression = r"/[^\n\r]/"
                case "name":
                    expression = self._names[token[0]]
                case _:
                    raise _wrong(self._text, token, f"{token[0]!r} repeats nothing")
            while self._at < len(self._tokens) and self._tokens[self._at]["repeat"]:
                expression = self._repeated(expression, self._tokens[self._at])
                self._at += 1
            yield expression

    def _repeated(self, part: str, token: re.Match[str]) -> str:
        if token["least"] is None:
            return f"({part}){token[0]}"
        if any(bound_of(digits) > LARGEST for digits in token.group("least", "most") if digits):
            message = f"{token[0][:40]!r} repeats more than {LARGEST} times; lower its bounds"
            raise _wrong(self._text, token, message)
        min_count = bound_of(token["least"])
        max_digits = token["most"]
        if max_digits and min_count > bound_of(max_digits):
            raise _wrong(self._text, token, f"{token[0]!r} ends below its beginning")
        return f"({part}){{{min_count},{min_count if max_digits is None else max_digits and bound_of(max_digits)}}}"

    def _spelled(self, token: re.Match[str]) -> str:
        """What a text in quotes stands for."""

        def character(found: re.Match[str]) -> str:
            if found[4] is None:
                code = int(found[1] or found[2] or found[3], 16)
                if code > sys.maxunicode or 0xD800 <= code < 0xE000:
                    raise _wrong(self._text, token, f"{found[0]} is no character")
                return chr(code)
            if found[4] not in LETTERS:
                raise _wrong(self._text, token, f"{found[0]!r} is no escape")
            return LETTERS[found[4]]

        return ESCAPE.sub(character, join_halves(NAME, token[0][1:-1]))


def _hexadecimal(found: re.Match[str]) -> str:
    return f"\\x{{{found[3]}}}" if found[3] else found[0]


def _without_circles(uses: dict[str, set[str]]) -> set[str]:
    """The rules from which no rule leads back to itself."""
    plain_names = set[str]()
    while resolved_names := {
        name for name, used_names in uses.items() if name not in plain_names and used_names <= plain_names
    }:
        plain_names |= resolved_names
    return plain_names


def _wrong(text: str, token: re.Match[str], what: str) -> ConfigError:
    prefix = text[: token.start()]
    line, column = prefix.count("\n") + 1, token.start() - prefix.rfind("\n")
    return ConfigError(f"invalid {NAME}: {what} at line {line}, column {column}")
