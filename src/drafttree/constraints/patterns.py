"""Writes regular expressions in the dialect of JSON Schema (ECMA-262) as llguidance's Rust library reads them right.

Rust knows classes inside classes, flags and Unicode's digits and letters; in ECMA-262 `[[a]` is a class of two
characters, `\\d` and `\\w` are ASCII, and `.` is no line end.
"""

import re

from drafttree.constraints.lark import ANY_TEXT
from drafttree.core.errors import ConfigError

LARGEST = 2**31 - 1
"""The largest bound of a repetition; Rust counts in 32 bits."""
TOKEN = re.compile(
    r"(?P<escape>\\(?:u\{[0-9a-fA-F]{1,6}\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[pP]\{[^}]*\}|.))"
    r"|(?P<class>\[\^?(?:\\.|[^\]\\])*\])|(?P<open>\((?:\?(?:P?<\w+>|(?P<special>[^:)]{1,3}\)?)|:))?)|(?P<close>\))"
    r"|(?P<bar>\|)|(?P<repeat>(?:[*+?]|\{\s*(?P<least>[0-9]+)\s*(?:,\s*(?P<most>[0-9]*)\s*)?\})(?P<lazy>\?)?)|(?P<dot>\.)|.",
    re.DOTALL,
)
IN_CLASS = re.compile(r"\\(?:u\{[0-9a-fA-F]{1,6}\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[pP]\{[^}]*\}|.)|.", re.DOTALL)
ASCII = {
    "d": "0-9",
    "w": "0-9A-Za-z_",
    "s": r"\s\x{feff}",
    "D": "^0-9",
    "W": "^0-9A-Za-z_",
    "S": r"^\s\x{1c}-\x{1f}\x{feff}",  # neither what ECMA-262 nor what Python takes for white space
}
IN_GRAMMARS = {"/": r"\/", "\n": r"\n", "\r": r"\r"}
"""Characters that end a pattern in a grammar of llguidance, or a line of it."""
LINE = r"[^\n\r\x{2028}\x{2029}]"
HALVES = re.compile(
    r"\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<half>\\u\{?[dD][89a-fA-F][0-9a-fA-F]{2}\}?)|\\.",
    re.DOTALL,
)


def regex_texts(pattern: object) -> str:
    """The expression of the texts that match a regular expression as a whole.

    Raises:
        ConfigError: a part of it is unknown, or would mean something else.
    """
    return f"/{rust_pattern('regex', check_text('regex', pattern)) or '(?:)'}/"


def check_text(name: str, text: object) -> str:
    """Refuse what is no text.

    Raises:
        ConfigError: it is of another type, or has a lone surrogate.
    """
    if not isinstance(text, str):
        raise ConfigError(f"the {name} is of type {type(text).__name__}; give a string")
    if re.search("[\ud800-\udfff]", text):
        raise ConfigError(f"invalid {name}: it has a lone surrogate, which no text can have")
    return text


def rust_pattern(name: str, pattern: str) -> str:
    """A pattern in Rust's syntax. What Rust does not know, such as anchors inside, llguidance refuses by itself.

    Args:
        name: what the pattern is of, in the message.
        pattern: in the dialect of JSON Schema.

    Raises:
        ConfigError: a part of it is unknown, or would mean something else.
    """
    return "".join(_rust_parts(name, pattern))


def whole_pattern(pattern: str) -> str:
    """A pattern for whole texts, of one in Rust's syntax that matches a part of them where it has no anchors."""
    alternatives, depth, in_class = [[]], 0, 0
    for part in re.findall(r"\\.|.", pattern, re.DOTALL):
        in_class += (part == "[") - (part == "]")
        depth += (part == "(" and not in_class) - (part == ")" and not in_class)
        if part == "|" and not depth and not in_class:
            alternatives.append([])
        else:
            alternatives[-1].append(part)
    for parts in alternatives:
        parts[:1] = parts[:1][1:] if parts[:1] == ["^"] else [ANY_TEXT, *parts[:1]]
        parts[-1:] = [] if parts[-1:] == ["$"] else [*parts[-1:], ANY_TEXT]
    return "|".join(map("".join, alternatives))


def join_halves(name: str, text: str) -> str:
    """A text in which escaped halves of surrogate pairs, as JavaScript writes them, are the characters they stand for.

    Raises:
        ConfigError: it has only one half of a pair.
    """

    def joined(found: re.Match[str]) -> str:
        if found["half"]:
            raise ConfigError(f"invalid {name}: {found['half']} is half a surrogate pair, which no text has")
        return bytes.fromhex(found["high"] + found["low"]).decode("utf-16-be") if found["high"] else found[0]

    return HALVES.sub(joined, text)


def rust_class(name: str, text: str) -> str:
    """A class of characters such as `[^a-z]` in Rust's syntax."""
    body = text[2 if text[1] == "^" else 1 : -1]
    if not body:
        raise ConfigError(f"invalid {name}: {text!r} is read in several ways; write (?:) or [\\s\\S]")
    parts, items = [], IN_CLASS.findall(body)
    for place, item in enumerate(items):
        sets = [each[1:2] in ASCII and each[:1] == "\\" for each in items[max(place - 1, 0) : place + 2]]
        if item[0] == "\\" and item[1:] in ASCII:
            parts.append(f"[{ASCII[item[1]]}]" if item[1] in "DWS" else ASCII[item[1]])
        elif item in "[&~^" or (item == "-" and (any(sets) or place in (0, len(items) - 1))):
            parts.append("\\" + item)
        elif item == "-" and items[place + 1] == "-":
            raise ConfigError(f"invalid {name}: {text!r} is read in several ways; escape the hyphens as \\-")
        else:
            parts.append(IN_GRAMMARS.get(item, item))
    return f"[{'^' * (text[1] == '^')}{''.join(parts)}]"


def _rust_parts(name: str, pattern: str) -> list[str]:
    parts, repeats = [], False
    for token in TOKEN.finditer(join_halves(name, pattern)):
        text, kind = token[0], token.lastgroup
        match kind:
            case "escape" if text[1] in ASCII:
                text = f"[{ASCII[text[1]]}]"
            case "escape" if text in (r"\<", r"\>"):
                text = text[1]  # ends of words in Rust
            case "class":
                text = rust_class(name, text)
            case "dot":
                text = LINE
            case None:
                text = IN_GRAMMARS.get(text, text)
            case _ if token["special"]:
                raise ConfigError(
                    f"invalid {name}: {text!r} at position {token.start()} looks ahead or behind, or sets flags, "
                    "which no grammar does; leave it out"
                )
            case _ if token["repeat"]:
                if repeats:
                    raise ConfigError(f"invalid {name}: {text!r} at position {token.start()} repeats a repetition")
                if any(bound_of(each) > LARGEST for each in token.group("least", "most") if each):
                    message = f"invalid {name}: {text[:40]!r} repeats more than {LARGEST} times; lower its bounds"
                    raise ConfigError(message)
                text = text.removesuffix("?") if token["lazy"] else text  # as many texts match
        repeats = bool(token["repeat"])
        parts.append(text)
    return parts


def bound_of(digits: str) -> int:
    """A bound of a repetition; one of more than ten digits as some number that is too large."""
    return int(digits.lstrip("0")[:11] or "0")
