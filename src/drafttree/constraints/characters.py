"""Sets of characters, and how JSON may spell each: as it is, behind a backslash, or as `\\uXXXX`.

A character beyond U+FFFF has two `\\uXXXX`, the halves of a surrogate pair. Half a pair alone is no text.
"""

import functools
import sys
from collections import defaultdict

Characters = tuple[tuple[int, int], ...]
"""First and last code point of each range, in order and apart; none is half of a surrogate pair."""
EVERY: Characters = ((0, 0xD7FF), (0xE000, sys.maxunicode))
MUST_ESCAPE: Characters = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
SHORT = {0x22: '"', 0x5C: "\\\\", 0x2F: r"\/", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
"""What may stand behind the backslash, as in a class of a pattern."""
BEYOND = 0x10000
"""The first character of two halves."""
HALF = 0x400


def only(character: str) -> Characters:
    """The set of one character."""
    return ((ord(character), ord(character)),)


def join(*ranges: tuple[int, int]) -> Characters:
    """The characters of some ranges."""
    joined: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if joined and first <= joined[-1][1] + 1:
            joined[-1] = joined[-1][0], max(last, joined[-1][1])
        else:
            joined.append((first, last))
    return overlap(tuple(joined), EVERY)


def overlap(one: Characters, other: Characters) -> Characters:
    """The characters of both sets."""
    bounds = ((max(a, c), min(b, d)) for a, b in one for c, d in other)
    return tuple((first, last) for first, last in bounds if first <= last)


def others(characters: Characters) -> Characters:
    """The characters that are not in a set."""
    firsts, lasts = zip(*characters, strict=True) if characters else ((), ())
    starts, ends = [0, *(last + 1 for last in lasts)], [*(first - 1 for first in firsts), sys.maxunicode]
    return overlap(tuple(zip(starts, ends, strict=True)), EVERY)


def json_spelling(text: str) -> str:
    """A pattern of a text each character of which may be spelled in any way that JSON allows, in Rust's syntax."""
    return "".join(map(_one_spelling, text))


@functools.lru_cache(maxsize=1024)
def json_spellings(characters: Characters) -> str:
    """A pattern of the spellings that JSON allows of each character of a set, in Rust's syntax."""
    spellings = []
    if plain := overlap(characters, others(MUST_ESCAPE)):
        spellings.append(rust_class(plain))
    if short := "".join(letter for code, letter in SHORT.items() if overlap(characters, only(chr(code)))):
        spellings.append(rf"\\[{short}]")
    codes = []
    if single := overlap(characters, ((0, BEYOND - 1),)):
        codes.append(_hexadecimal(single))
    for high, low in _halves(overlap(characters, ((BEYOND, sys.maxunicode),))):
        codes.append(rf"{_hexadecimal((high,))}\\u{_hexadecimal((low,))}")
    return "|".join([*spellings, rf"\\u(?:{'|'.join(codes)})"])


def rust_class(characters: Characters) -> str:
    """A class of characters in Rust's syntax."""
    ranges = (_escaped(first) + (f"-{_escaped(last)}" if last > first else "") for first, last in characters)
    return f"[{''.join(ranges)}]"


@functools.lru_cache(maxsize=4096)
def _one_spelling(character: str) -> str:
    code = ord(character)
    high, low = divmod(code - BEYOND, HALF)
    halves = [code] if code < BEYOND else [0xD800 + high, 0xDC00 + low]
    spellings = [
        "".join(rf"\\u{''.join(_digit_class([int(digit, 16)]) for digit in f'{half:04x}')}" for half in halves)
    ]
    if not overlap(MUST_ESCAPE, only(character)):
        spellings.append(_escaped(code))
    if code in SHORT:
        spellings.append(rf"\\[{SHORT[code]}]")
    return f"(?:{'|'.join(spellings)})"


def _escaped(code: int) -> str:
    return chr(code) if chr(code).isalnum() else f"\\x{{{code:x}}}"


def _halves(beyond: Characters) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Ranges of first halves with ranges of second halves, each of which may stand behind each of the first."""
    pairs = []
    for first, last in beyond:
        (high, low), (last_high, last_low) = divmod(first - BEYOND, HALF), divmod(last - BEYOND, HALF)
        if low and high < last_high:
            pairs.append((high, high, low, HALF - 1))
            high, low = high + 1, 0
        if last_low < HALF - 1 and high < last_high:
            pairs.append((last_high, last_high, 0, last_low))
            last_high, last_low = last_high - 1, HALF - 1
        pairs.append((high, last_high, low, last_low))
    return [((0xD800 + a, 0xD800 + b), (0xDC00 + c, 0xDC00 + d)) for a, b, c, d in pairs]


@functools.lru_cache(maxsize=4096)
def _hexadecimal(ranges: tuple[tuple[int, int], ...], digits: int = 4) -> str:
    """A pattern of the numbers in some ranges, written in so many hexadecimal digits."""
    size = 16 ** (digits - 1)
    if ranges == ((0, 16 * size - 1),):
        return f"[0-9a-fA-F]{{{digits}}}"
    leading = defaultdict[str, list[int]](list)
    for digit in range(16):
        below = overlap(ranges, ((digit * size, digit * size + size - 1),))
        if below:
            shifted = tuple((first - digit * size, last - digit * size) for first, last in below)
            leading[_hexadecimal(shifted, digits - 1) if digits > 1 else ""].append(digit)
    branches = [_digit_class(digits_before) + tail for tail, digits_before in leading.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _digit_class(digits: list[int]) -> str:
    written = "".join(f"{digit:x}" if digit < 10 else f"{digit:x}{digit:X}" for digit in digits)
    return written if len(written) == 1 else f"[{written}]"
