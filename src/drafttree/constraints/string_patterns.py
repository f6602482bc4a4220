"""Writes patterns of JSON schemas so that xgrammar keeps to them, and refuses those of which it would write no JSON.

xgrammar 0.2.8 cannot compile a pattern of a schema that repeats something more than 128 times, except with a compiler
without a cache, which then forgets that the text stands in a JSON string: it writes quotes, backslashes and control
characters as they are. It forgets the same of patterns that are too large for it, that have characters beyond ASCII,
or that match nothing without such characters.
"""

import json
import re
from collections.abc import Iterator

from drafttree.constraints.repetitions import count
from drafttree.constraints.xgrammar_library import load_xgrammar
from drafttree.core.errors import ConfigError

LONGEST = 128
"""Repetitions that xgrammar compiles as they are written."""
MAX_CHARACTERS = 4096
"""Characters that a part may repeat more than 128 times; xgrammar takes two seconds to read `[a-z]{0,4096}`."""
EXCLUDING = r'[^"\\\x00-\x1f]'
ESCAPED = [*'"\\', *map(chr, range(32))]
"""Characters that stand in a JSON string as escapes only."""

TOKEN = re.compile(
    r"\\(?:u\{[^}]*\}|u[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[pP]\{[^}]*\}|c.|.)|\[(?:\\.|[^\]\\])*\]"
    r"|(?P<open>\((?:\?(?::|<\w+>))?)|(?P<close>\))"
    r"|(?P<repeat>\{\s*(?P<least>[0-9]+)\s*(?P<comma>,\s*(?P<most>[0-9]*)\s*)?\}\??+(?![*+?{]))|.",
    re.DOTALL,
)


def prepare_pattern(pattern: str) -> str:
    """Write a pattern so that no part of it is repeated more than 128 times; it matches the same texts.

    Raises:
        ConfigError: the pattern is too large, or xgrammar would not escape what it matches or is not installed.
    """
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
    if spells_escaped and not _read_as_json_string(written):
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
    if part in "^$*+?|":
        return False
    readable = (
        re.sub(r"(?<!\\)[\[&|~]", r"\\\g<0>", part[1:]) if part[0] == "[" else part[1:]
    )  # as Python reads classes
    try:
        return any(re.fullmatch(part[0] + readable, character, re.DOTALL) for character in ESCAPED)
    except re.error:
        return True


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
