"""Writes patterns of JSON schemas so that xgrammar keeps to them, and refuses those of which it would write no JSON.

xgrammar 0.2.8 cannot compile a pattern of a schema that repeats something more than 128 times, except with a compiler
without a cache, which then forgets that the text stands in a JSON string: it writes quotes, backslashes and control
characters as they are. It forgets the same of patterns that are too large for it, that have characters beyond ASCII,
or that match nothing without such characters.
"""

import functools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from drafttree.constraints.repetitions import count
from drafttree.constraints.xgrammar_library import load_xgrammar
from drafttree.core.errors import ConfigError

LONGEST = 128
"""Repetitions that xgrammar compiles as they are written."""
MAX_CHARACTERS = 4096
"""Characters that a part may repeat more than 128 times; xgrammar takes two seconds to read `[a-z]{0,4096}`."""
EXCLUDING = r'[^"\\\x00-\x1f]'
ESCAPED = "".join(map(chr, range(32))) + '"\\'
"""Characters that stand in a JSON string as escapes only."""
SPELLED = "".join(character for character in map(chr, range(32, 0xD800)) if character not in ESCAPED)
"""Other characters, as far as patterns are likely to have them."""
OPTIONAL = re.compile(r"[?*]|\{\s*0*\s*[,}]")
"""What stands behind a part that may be left out."""

TOKEN = re.compile(
    r"\\(?:u\{[^}]*\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[pP]\{[^}]*\}|c.|.)|\[(?:\\.|[^\]\\])*\]"
    r"|(?P<open>\((?:\?(?::|<\w+>))?)|(?P<close>\))"
    r"|(?P<repeat>\{\s*(?P<least>[0-9]+)\s*(?P<comma>,\s*(?P<most>[0-9]*)\s*)?\}\??+(?![*+?{]))|.",
    re.DOTALL,
)
HALVES = re.compile(
    r"\\u(?P<high>[dD][89abAB][0-9a-fA-F]{2})\\u(?P<low>[dD][c-fC-F][0-9a-fA-F]{2})"
    r"|(?P<half>\\u\{?[dD][89a-fA-F][0-9a-fA-F]{2}\}?)|\\.",
    re.DOTALL,
)
LOOKAROUND = re.compile(r"\(\?<?[=!]")
IGNORED = {r"\b": "the border of a word", r"\B": "the border of a word"}
IGNORED |= dict.fromkeys([r"\A", r"\Z", r"\z", r"\G"], "an end of the text: use ^ or $")
"""Escapes that xgrammar does not know."""


def join_halves(name: str, text: str) -> str:
    """A text in which escaped halves of surrogate pairs, as JavaScript writes them, are the characters they stand for.

    Args:
        name: of the text in the message.
        text: a regular expression or an EBNF grammar.

    Raises:
        ConfigError: it has only one half of a pair.
    """

    def joined(found: re.Match[str]) -> str:
        if found["half"]:
            raise ConfigError(f"invalid {name}: {found['half']} is half a surrogate pair, which no text has")
        return bytes.fromhex(found["high"] + found["low"]).decode("utf-16-be") if found["high"] else found[0]

    return HALVES.sub(joined, text)


def prepare_pattern(pattern: str) -> str:
    """Write a pattern so that no part of it is repeated more than 128 times; it matches the same texts.

    Raises:
        ConfigError: the pattern is too large, has half a surrogate pair, or matches what xgrammar would not escape; or
            xgrammar is not installed.
    """
    pattern = join_halves("JSON schema", pattern)
    groups: list[list[tuple[str, int]]] = [[]]
    spells_escaped = False
    for token in TOKEN.finditer(pattern):
        text, characters = token[0], 1
        match token.lastgroup:
            case "open":
                groups.append([(text, 0)])
                continue
            case "close" if len(groups) > 1:
                text, characters = _joined([*groups.pop(), (text, 0)])
            case "repeat" if groups[-1]:
                least = count(token["least"])
                most = least if token["comma"] is None else count(token["most"]) if token["most"] else None
                part, characters = groups[-1].pop()
                times = max(least, most or 1)
                characters *= times
                if times > LONGEST and (most is None or least <= most):
                    _check_size(pattern, characters)
                    text = _repeated(part, least, most)
                else:
                    text = part + text
            case None:
                spells_escaped = spells_escaped or _may_spell_escaped(text)
        groups[-1].append((text, characters))
    written, _ = _joined([part for group in groups for part in group])
    if spells_escaped and (_leads_nowhere(pattern) or not _read_as_json_string(written)):
        raise ConfigError(
            f"invalid JSON schema: xgrammar would not escape the quotes, backslashes or control characters that "
            f"pattern {pattern[:80]!r} matches; exclude them, as in {EXCLUDING}, or lower its bounds"
        )
    return written


def ignored_anchor(pattern: str) -> re.Match[str] | None:
    """The first anchor that something may stand outside of. xgrammar ignores anchors, as it matches whole texts."""
    tokens = list(TOKEN.finditer(pattern))
    opened, repeated = list[int](), set[int]()
    for token in tokens:
        if token.lastgroup == "open":
            opened.append(token.start())
        elif token.lastgroup == "close" and opened:
            group = opened.pop()
            if pattern[token.end() : token.end() + 1] in {*"*+{"}:
                repeated |= {group, token.start()}
    ignored = [*_inner_anchors("^", "open", tokens, repeated), *_inner_anchors("$", "close", tokens[::-1], repeated)]
    return min(ignored, key=re.Match.start, default=None)


def ignored_part(pattern: str) -> str | None:
    """What xgrammar would ignore in a pattern, or take for letters; None for nothing."""
    for token in TOKEN.finditer(pattern):
        if found := IGNORED.get(token[0]):
            return f"{token[0]} ({found})"
        if token.lastgroup == "open" and LOOKAROUND.match(pattern, token.start()):
            return "what looks ahead or behind"
    if anchor := ignored_anchor(pattern):
        return f"{anchor[0]!r} at position {anchor.start()}"
    return None


def _inner_anchors(
    anchor: str, opening: str, tokens: list[re.Match[str]], repeated: set[int]
) -> Iterator[re.Match[str]]:
    """Yield the anchors that something may stand before, in the order of the tokens, in which `opening` begins groups.

    `repeated` has the positions of both ends of groups that may follow themselves.
    """
    first, groups = True, list[bool]()
    for token in tokens:
        if token.lastgroup == opening:
            groups.append(first and token.start() not in repeated)
            first = groups[-1]
        elif token.lastgroup in ("open", "close"):
            first = False
            del groups[-1:]
        elif token[0] == "|":
            first = groups[-1] if groups else True
        elif token[0] != anchor:
            first = first and token[0] == "?"
        elif not first:
            yield token


def _check_size(pattern: str, characters: int) -> None:
    if characters > MAX_CHARACTERS:
        raise ConfigError(
            f"invalid JSON schema: pattern {pattern[:80]!r} repeats more than {MAX_CHARACTERS} characters; lower its "
            "bounds, or give 'minLength' and 'maxLength' in its place"
        )


def _may_spell_escaped(part: str) -> bool:
    """Whether a class, an escape or a character may match a character that JSON escapes."""
    return part not in {*"^$*+?|"} and _matches_one(part, ESCAPED)


@functools.lru_cache(maxsize=1024)
def _matches_one(part: str, characters: str) -> bool:
    """Whether a class, an escape or a character may match one of some characters."""
    readable = (
        re.sub(r"(?<!\\)[\[&|~]", r"\\\g<0>", part[1:]) if part[0] == "[" else part[1:]
    )  # as Python reads classes
    try:
        return re.search(part[0] + readable, characters, re.DOTALL) is not None
    except re.error:
        return True


@dataclass
class _Alternatives:
    """The alternatives of a group while they are read, each a sequence of parts.

    Attributes:
        begun: whether a character may have been written in the current one.
        blocked: whether nothing can be written from some part of it on.
        passable: whether one of those before can be written.
    """

    begun: bool = False
    blocked: bool = False
    passable: bool = False

    def end_one(self) -> None:
        """Begin the next one."""
        self.passable |= not self.blocked
        self.begun = self.blocked = False


def _leads_nowhere(pattern: str) -> bool:
    """Whether a part that only escaped characters match stands behind others.

    xgrammar leaves that part out and writes those before it, after which nothing can follow.
    """
    groups = [_Alternatives()]
    for token in TOKEN.finditer(pattern):
        if token.lastgroup == "open":
            groups.append(_Alternatives())
            continue
        if token[0] == "|":
            groups[-1].end_one()
            continue
        if token.lastgroup == "repeat" or token[0] in "^$*+?":
            continue
        if token.lastgroup == "close" and len(groups) > 1:
            group = groups.pop()
            group.end_one()
            blocks = not group.passable
        else:
            blocks = _may_spell_escaped(token[0]) and not _matches_one(token[0], SPELLED)
        here = groups[-1]
        if not blocks:
            here.begun |= not here.blocked
        elif not OPTIONAL.match(pattern, token.end()):
            if here.begun:
                return True
            here.blocked = True
    return False


def _read_as_json_string(pattern: str) -> bool:
    """Whether xgrammar escapes what a pattern matches; True also for one that it refuses, and gives its reason for."""
    try:
        grammar = load_xgrammar().Grammar.from_json_schema(json.dumps({"type": "string", "pattern": pattern}))
    except RuntimeError:
        return True
    return "json_string=true" in str(grammar)


def _joined(parts: list[tuple[str, int]]) -> tuple[str, int]:
    """The parts as one, which counts as a character at least, so that nothing is copied for ever."""
    return "".join(text for text, _ in parts), max(sum(characters for _, characters in parts), 1)


def _repeated(part: str, least: int, most: int | None) -> str:
    """`part{least,most}` in blocks of 128."""
    first = _exactly(part, least)
    if most is None:
        return f"(?:{first}{part}*)"
    blocks, rest = divmod(most - least, LONGEST)
    longest = f"{_exactly(part, blocks * LONGEST)}{part}{{0,{rest}}}"
    shorter = f"(?:{part}{{{LONGEST}}}){{0,{blocks - 1}}}{part}{{0,{LONGEST - 1}}}|" if blocks else ""
    return f"(?:{first}(?:{shorter}{longest}))"


def _exactly(part: str, times: int) -> str:
    blocks, rest = divmod(times, LONGEST)
    return (f"(?:{part}{{{LONGEST}}}){{{blocks}}}" if blocks else "") + (f"{part}{{{rest}}}" if rest else "")
