"""Translates regular expressions from the dialect of JSON Schema (ECMA-262) to that of llguidance (Rust).

Rust's dialect has nested classes, flags, and Unicode digits and letters. In ECMA-262, `[[a]` is a class of two
characters, `\\d` and `\\w` are ASCII, and `.` matches no line end. In a JSON text, a pattern must match all
spellings of the text it describes.
"""

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

from drafttree.constraints.characters import (
    EVERY,
    Characters,
    join,
    json_spelling,
    json_spellings,
    only,
    others,
    rust_class,
)
from drafttree.constraints.lark import ANY_TEXT, EMPTY, LARGEST, Rules, matching, repeated
from drafttree.core.errors import ConfigError

ESCAPE = r"\\(?:u\{[0-9a-fA-F]{1,6}\}|u[0-9a-fA-F]{4}|x\{[0-9a-fA-F]{1,6}\}|x[0-9a-fA-F]{2}|[pP](?:\{[^}]*\}|[A-Z])|.)"
TOKEN = re.compile(
    rf"(?P<escape>{ESCAPE})"
    r"|(?P<class>\[\^?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?(?:P?<\w+>|(?P<special>[^:)]{1,3}\)?)|:))?)|(?P<close>\))"
    r"|(?P<bar>\|)|(?P<repeat>(?:[*+?]|\{\s*(?P<least>[0-9]+)\s*(?:,\s*(?P<most>[0-9]*)\s*)?\})(?P<lazy>\?)?)"
    r"|(?P<anchor>[$^])|(?P<dot>\.)|(?P<character>.)",
    re.DOTALL,
)
IN_CLASS = re.compile(rf"{ESCAPE}|.", re.DOTALL)
CONTROLS = {"n": "\n", "r": "\r", "t": "\t", "f": "\f", "v": "\v", "a": "\a"}
DIGITS = join((0x30, 0x39))
WORD = join((0x30, 0x39), (0x41, 0x5A), (0x5F, 0x5F), (0x61, 0x7A))
WHITE = (0x09, 0x0D), (0x20, 0x20), (0x85, 0x85), (0xA0, 0xA0), (0x1680, 0x1680), (0x2000, 0x200A), (0x2028, 0x2029)
WHITE = *WHITE, (0x202F, 0x202F), (0x205F, 0x205F), (0x3000, 0x3000), (0xFEFF, 0xFEFF)
SETS: dict[str, Characters] = {
    "d": DIGITS,
    "w": WORD,
    "s": join(*WHITE),
    "D": others(DIGITS),
    "W": others(WORD),
    "S": others(join(*WHITE, (0x1C, 0x1F))),  # neither what ECMA-262 nor what Python takes for white space
}
LINE_ENDS = join((0x0A, 0x0A), (0x0D, 0x0D), (0x2028, 0x2029))
ASCII = 128
IN_GRAMMARS = {"/": r"\/", "\n": r"\n", "\r": r"\r"}
"""Characters that would end a pattern, or its line, in an llguidance grammar, with their escapes."""
BEGIN, END = "^", "$"
HALVES = re.compile(
    r"\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<half>\\u\{?[dD][89a-fA-F][0-9a-fA-F]{2}\}?)|\\.",
    re.DOTALL,
)


class CharacterClass(NamedTuple):
    """A class of characters, of which a pattern matches one.

    Attributes:
        ranges: first and last code points of its ranges.
        properties: Unicode properties, such as `\\p{Lu}`, whose characters belong to it too.
        negated: whether it matches all other characters instead.
    """

    ranges: tuple[tuple[int, int], ...]
    properties: tuple[str, ...] = ()
    negated: bool = False

    def in_rust(self) -> str:
        """The class in Rust's syntax."""
        return f"[{'^' * self.negated}{rust_class(self.ranges)[1:-1]}{''.join(self.properties)}]"


def regex_texts(pattern: object) -> str:
    """The expression of the texts that match a regular expression as a whole.

    Raises:
        ConfigError: a part of it is unknown, or would mean something else to llguidance.
    """
    return f"/{rust_pattern('regex', check_text('regex', pattern)) or '(?:)'}/"


def check_text(name: str, text: object) -> str:
    """Return a text as it is.

    Raises:
        ConfigError: `text` is of another type, or has a lone surrogate.
    """
    if not isinstance(text, str):
        raise ConfigError(f"the {name} is of type {type(text).__name__}; give a string")
    if re.search("[\ud800-\udfff]", text):
        raise ConfigError(f"invalid {name}: it has a lone surrogate, which no text can have")
    return text


@functools.lru_cache(maxsize=256)
def rust_pattern(name: str, pattern: str) -> str:
    """Translate a pattern to Rust's syntax; llguidance itself refuses what Rust does not support.

    Args:
        name: what has the pattern, for error messages.
        pattern: the pattern, in the dialect of JSON Schema.

    Raises:
        ConfigError: a part of it is unknown, or would mean something else to llguidance.
    """
    pieces = []
    for token in _tokens(name, pattern):
        match token.lastgroup:
            case "class":
                pieces.append(read_class(name, token[0]).in_rust())
            case "escape" if token[0][1] in SETS:
                pieces.append(rust_class(SETS[token[0][1]]))
            case "escape" if token[0] in (r"\<", r"\>"):
                pieces.append(token[0][1])  # ends of words in Rust
            case "dot":
                pieces.append(CharacterClass(LINE_ENDS, negated=True).in_rust())
            case "open":
                pieces.append("(?:")
            case "repeat":
                pieces.append(_repetition(token))
            case "escape":
                pieces.append(token[0])
            case _:
                pieces.append(IN_GRAMMARS.get(token[0], token[0]))
    return "".join(pieces)


def texts_with(name: str, pattern: str, rules: Rules, *, as_json: bool) -> str:
    """The expression, for an automaton, of the texts in which a pattern matches some part, as in JSON Schema.

    Args:
        name: what has the pattern, for error messages.
        pattern: the pattern, in the dialect of JSON Schema; llguidance must accept it (`rust_pattern`).
        rules: the grammar's rules, to which this may add some.
        as_json: whether to match the spellings of a text inside a JSON string, without quotes, or the text itself.

    Raises:
        ConfigError: a part of the pattern is unknown, or it has an anchor inside.
    """
    groups: list[_Group] = [_Group()]
    for token in _tokens(name, pattern):
        sequence = groups[-1].alternatives[-1]
        match token.lastgroup:
            case "open":
                groups.append(_Group())
            case "close":
                group = groups.pop()
                groups[-1].alternatives[-1].append(group if group.has_anchors() else group.written())
            case "bar":
                groups[-1].alternatives.append([])
            case "repeat":
                if not isinstance(sequence[-1], str) or sequence[-1] in (BEGIN, END):
                    raise _refused(name, token, "repeats an anchor")
                sequence[-1] = _repeated(sequence[-1], token)
            case "anchor":
                sequence.append(token[0])
            case "escape" if token[0] in (r"\A", r"\z"):
                sequence.append(BEGIN if token[0] == r"\A" else END)
            case _:
                sequence.append(_character_texts(name, token, rules, as_json=as_json))
    any_text = f"/(?:{json_spellings(EVERY)})*/" if as_json else f"/{ANY_TEXT}/"
    return groups[0].searched(name, any_text, at_begin=True, at_end=True)


def join_halves(name: str, text: str) -> str:
    """Replace escaped surrogate pairs, as JavaScript writes them, by the characters that they encode.

    Raises:
        ConfigError: the text has only one half of a pair.
    """

    def joined(escape: re.Match[str]) -> str:
        if escape["half"]:
            raise ConfigError(f"invalid {name}: {escape['half']} is half a surrogate pair, which no text can contain")
        return bytes.fromhex(escape["high"] + escape["low"]).decode("utf-16-be") if escape["high"] else escape[0]

    return HALVES.sub(joined, text)


@functools.lru_cache(maxsize=1024)
def read_class(name: str, text: str) -> CharacterClass:
    """Parse a class such as `[^a-z]`.

    Raises:
        ConfigError: a part of the class is unknown, or dialects disagree on its meaning.
    """
    negated = text[1] == "^"
    items = IN_CLASS.findall(text[1 + negated : -1])
    if not items:
        raise ConfigError(f"invalid {name}: {text!r} is ambiguous among regex dialects; write (?:) or [\\s\\S]")
    ranges = list[tuple[int, int]]()
    properties = list[str]()
    index = 0
    while index < len(items):
        item = items[index]
        index += 1
        if item[0] == "\\" and item[1] in SETS:
            ranges += SETS[item[1]]
        elif item[0] == "\\" and item[1] in "pP":
            properties.append(item)
        else:
            first_code = last_code = _code(name, item)
            begins_range = items[index : index + 1] == ["-"] and index + 1 < len(items)
            if begins_range and not _is_set(items[index + 1]):
                if "-" in (item, items[index + 1]):
                    raise ConfigError(
                        f"invalid {name}: {text!r} is ambiguous among regex dialects; escape the hyphens as \\-"
                    )
                last_code = _code(name, items[index + 1])
                index += 2
            if last_code < first_code:
                raise ConfigError(f"invalid {name}: the range {item}-{items[index - 1]} of {text!r} ends too early")
            ranges.append((first_code, last_code))
    return CharacterClass(tuple(join(*ranges)), tuple(properties), negated)


def bound_of(digits: str) -> int:
    """Parse a bound of a repetition; of many digits, only the first 11 are read, which is too large anyway."""
    return int(digits.lstrip("0")[:11] or "0")


class _Group:
    """The alternatives of a group, each a sequence of expressions, anchors, and groups with anchors inside."""

    def __init__(self) -> None:
        self.alternatives: list[list[str | _Group]] = [[]]

    def has_anchors(self) -> bool:
        elements = (element for alternative in self.alternatives for element in alternative)
        return any(not isinstance(element, str) or element in (BEGIN, END) for element in elements)

    def written(self) -> str:
        """The expression of a group without anchors."""
        return _either(map(str, alternative) for alternative in self.alternatives)

    def searched(self, name: str, any_text: str, *, at_begin: bool, at_end: bool) -> str:
        """The expression of the texts in which a group matches some part.

        Args:
            name: what has the pattern, for error messages.
            any_text: the expression of any text.
            at_begin: whether the group begins the pattern, so that any text may precede it unless it has an anchor.
            at_end: whether the group ends the pattern, likewise.

        Raises:
            ConfigError: an anchor stands inside the pattern.
        """
        alternatives = []
        for alternative in self.alternatives:
            elements = [*alternative]
            opens = at_begin
            closes = at_end
            while at_begin and elements[:1] == [BEGIN]:
                elements = elements[1:]
                opens = False
            while at_end and elements[-1:] == [END]:
                elements = elements[:-1]
                closes = False
            expressions = []
            for index, element in enumerate(elements):
                opens_here = opens and index == 0
                closes_here = closes and index == len(elements) - 1
                if isinstance(element, _Group):
                    expressions.append(element.searched(name, any_text, at_begin=opens_here, at_end=closes_here))
                    continue
                if element in (BEGIN, END):
                    raise ConfigError(
                        f"invalid {name}: {element!r} stands inside a pattern, which a grammar cannot express"
                    )
                if opens_here:
                    expressions.append(any_text)
                expressions.append(element)
                if closes_here:
                    expressions.append(any_text)
            if not elements and (opens or closes):
                expressions.append(any_text)
            alternatives.append(expressions)
        return _either(alternatives)


@functools.lru_cache(maxsize=256)
def _tokens(name: str, pattern: str) -> tuple[re.Match[str], ...]:
    """Split a pattern into tokens.

    Raises:
        ConfigError: a token is not supported; the message names it.
    """
    tokens = (*TOKEN.finditer(join_halves(name, pattern)),)
    for previous_token, token in zip([None, *tokens], tokens, strict=False):
        if token["special"]:
            raise _refused(
                name, token, "looks ahead or behind or sets flags, which a grammar cannot express; leave it out"
            )
        if token["repeat"] and previous_token and previous_token["repeat"]:
            raise _refused(name, token, "repeats a repetition")
        if any(bound_of(digits) > LARGEST for digits in token.group("least", "most") if digits):
            raise ConfigError(f"invalid {name}: {token[0][:40]!r} repeats more than {LARGEST} times; lower its bounds")
    return tokens


def _either(sequences: Iterable[Iterable[str]]) -> str:
    """The expression of a choice among sequences, which may be empty."""
    alternatives = [" ".join([EMPTY, *sequence]) for sequence in sequences]
    return f"({' | '.join(alternatives)})"


def _refused(name: str, token: re.Match[str], why: str) -> ConfigError:
    return ConfigError(f"invalid {name}: {token[0][:40]!r} at position {token.start()} {why}")


def _repetition(token: re.Match[str]) -> str:
    return token[0].removesuffix("?") if token["lazy"] else token[0]  # as many texts match


def _repeated(texts: str, token: re.Match[str]) -> str:
    """The expression of a repetition of `texts`, as often as a token says."""
    if token["least"] is None:
        return f"({texts}){_repetition(token)}"
    min_count = bound_of(token["least"])
    max_digits = token["most"]
    if max_digits is None:  # as in {3}
        return repeated(texts, min_count, min_count)
    return repeated(texts, min_count, bound_of(max_digits) if max_digits else None)


def _character_texts(name: str, token: re.Match[str], rules: Rules, *, as_json: bool) -> str:
    """The expression of the characters that a token matches.

    Raises:
        ConfigError: the token matches no character.
    """
    text = token[0]
    match token.lastgroup:
        case "class":
            characters = read_class(name, text)
        case "dot":
            characters = CharacterClass(LINE_ENDS, negated=True)
        case "escape" if _is_set(text):
            characters = CharacterClass(SETS[text[1]]) if text[1] in SETS else CharacterClass((), (text,))
        case _:
            character = chr(_code(name, text))
            return f"/{json_spelling(character) if as_json else rust_class(only(character))}/"
    pattern = _in_json(characters) if as_json else characters.in_rust()
    if not pattern:
        raise _refused(name, token, "matches no character")
    return rules.add(f"/{pattern}/", plain=True)


@functools.lru_cache(maxsize=1024)
def _in_json(characters: CharacterClass) -> str:
    """A pattern of all spellings of a class's characters in a JSON text; "" if it has no characters.

    Of Unicode properties, which have thousands of characters, only the ASCII ones may be escaped.
    """
    if not characters.properties:
        ranges = join(*characters.ranges)
        if characters.negated:
            ranges = others(ranges)
        return json_spellings(ranges) if ranges else ""
    rules = Rules()
    letters = [chr(code) for code in range(ASCII)]
    letter_matches = matching(rules.grammar(rules.add(f"/{characters.in_rust()}/", plain=True)), letters)
    ascii_ranges = [(code, code) for code in range(ASCII) if letter_matches[code]]
    non_ascii_class = f"[{characters.in_rust()}&&{rust_class(others(((0, ASCII - 1),)))}]"
    if not ascii_ranges:
        return non_ascii_class
    return f"{non_ascii_class}|{json_spellings(join(*ascii_ranges))}"


def _is_set(item: str) -> bool:
    return item[0] == "\\" and item[1] in {*SETS, "p", "P"}


def _code(name: str, item: str) -> int:
    """The code point of a character, or of an escape of one.

    Raises:
        ConfigError: the escape is unknown.
    """
    if len(item) == 1:
        return ord(item)
    letter = item[1]
    if letter in "ux" and len(item) > 2:
        return int(item[2:].strip("{}"), 16)
    if letter in CONTROLS:
        return ord(CONTROLS[letter])
    if letter.isalnum() or not letter.isascii():
        raise ConfigError(f"invalid {name}: {item!r} is an unrecognized escape; escape the backslash, or leave it out")
    return ord(letter)
