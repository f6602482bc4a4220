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
    loops = {name: found for name, body in rules.items() if (found := _loop(name, body))}
    uses = {name: {token[0] for token in body if token.lastgroup == "name"} for name, body in rules.items()}
    for body in rules.values():
        for token in body:
            if token.lastgroup == "name" and token[0] not in rules:
                raise _wrong(text, token, f'the rule "{token[0]}" is not defined')
    plain = _without_circles({name: used - {name} if name in loops else used for name, used in uses.items()})
    names = {name: made.name(plain=name in plain) for name in rules}
    try:
        for name, tokens in rules.items():
            if name not in loops:
                made.define(names[name], _Body(text, tokens, names).written())
                continue
            parts = [[_Body(text, each, names).written() for each in part] for part in loops[name][1:]]
            again, once = (f"({' | '.join(part)})" for part in parts)
            made.define(names[name], f"{again}* {once}" if loops[name].last else f"{once} {again}*")
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
    alternatives, depth = [[]], 0
    for token in tokens:
        depth += (token[0] == "(") - (token[0] == ")")
        if token[0] == "|" and not depth:
            alternatives.append([])
        else:
            alternatives[-1].append(token)
    for last in (True, False):
        own, again, once = -1 if last else 0, list[list[re.Match[str]]](), list[list[re.Match[str]]]()
        for each in alternatives:
            refers = len(each) > 1 and each[own].lastgroup == "name" and each[own][0] == name
            (again if refers else once).append((each[:-1] if last else each[1:]) if refers else each)
        inside = [token for each in (*again, *once) for token in each]
        other = any(token.lastgroup == "name" and token[0] == name for token in inside)
        if again and once and not other and not any(each[0]["repeat"] for each in again):
            return _Loop(last, again, once)
    return None


class _Body:
    """The right side of a rule, read by descent."""

    def __init__(self, text: str, tokens: list[re.Match[str]], names: dict[str, str]) -> None:
        self._text, self._tokens, self._names, self._at = text, tokens, names, 0

    def written(self) -> str:
        made = self._alternatives()
        if self._at < len(self._tokens):
            raise _wrong(self._text, self._tokens[self._at], f"unexpected {self._tokens[self._at][0]!r}")
        return made

    def _alternatives(self) -> str:
        parts = [self._sequence()]
        while self._at < len(self._tokens) and self._tokens[self._at][0] == "|":
            self._at += 1
            parts.append(self._sequence())
        return " | ".join(parts)

    def _sequence(self) -> str:
        return " ".join(self._elements()) or '""'

    def _elements(self) -> Iterator[str]:
        while self._at < len(self._tokens) and self._tokens[self._at][0] not in ("|", ")"):
            token = self._tokens[self._at]
            self._at += 1
            match token.lastgroup:
                case "mark":
                    made = f"({self._alternatives()})"
                    if self._at == len(self._tokens):
                        raise _wrong(self._text, token, "a parenthesis is not closed")
                    self._at += 1
                case "text":
                    made = literal(self._spelled(token))
                case "class":
                    made = f"/{read_class(NAME, ESCAPE.sub(_hexadecimal, join_halves(NAME, token[0]))).in_rust()}/"
                case "any":
                    made = r"/[^\n\r]/"
                case "name":
                    made = self._names[token[0]]
                case _:
                    raise _wrong(self._text, token, f"{token[0]!r} repeats nothing")
            while self._at < len(self._tokens) and self._tokens[self._at]["repeat"]:
                made = self._repeated(made, self._tokens[self._at])
                self._at += 1
            yield made

    def _repeated(self, part: str, token: re.Match[str]) -> str:
        if token["least"] is None:
            return f"({part}){token[0]}"
        if any(bound_of(each) > LARGEST for each in token.group("least", "most") if each):
            message = f"{token[0][:40]!r} repeats more than {LARGEST} times; lower its bounds"
            raise _wrong(self._text, token, message)
        least, most = bound_of(token["least"]), token["most"]
        if most and least > bound_of(most):
            raise _wrong(self._text, token, f"{token[0]!r} ends below its beginning")
        return f"({part}){{{least},{least if most is None else most and bound_of(most)}}}"

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
    plain = set[str]()
    while found := {name for name, used in uses.items() if name not in plain and used <= plain}:
        plain |= found
    return plain


def _wrong(text: str, token: re.Match[str], what: str) -> ConfigError:
    before = text[: token.start()]
    line, column = before.count("\n") + 1, token.start() - before.rfind("\n")
    return ConfigError(f"invalid {NAME}: {what} at line {line}, column {column}")
