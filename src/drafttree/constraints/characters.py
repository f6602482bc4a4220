"""Sets of characters, and the ways in which JSON may spell each: as it is, after a backslash, or as `\\uXXXX`.

A character beyond U+FFFF is two `\\uXXXX`, the halves of a surrogate pair. Half a pair alone is not text.
"""

import functools
import sys
from collections import defaultdict

Characters = tuple[tuple[int, int], ...]
"""First and last code point of each range, sorted and not adjacent, without surrogates."""
EVERY: Characters = ((0, 0xD7FF), (0xE000, sys.maxunicode))
MUST_ESCAPE: Characters = ((0, 0x1F), (0x22, 0x22), (0x5C, 0x5C))
SHORT = {0x22: '"', 0x5C: "\\\\", 0x2F: r"\/", 0x08: "b", 0x0C: "f", 0x0A: "n", 0x0D: "r", 0x09: "t"}
"""By code point, the character after the backslash in its short escape, as written in a class of a pattern."""
BEYOND = 0x10000
"""The first code point that takes two `\\uXXXX`."""
HALF = 0x400


def only(character: str) -> Characters:
    """The set of one character."""
    return ((ord(character), ord(character)),)


def join(*ranges: tuple[int, int]) -> Characters:
    """The characters of some ranges."""
    merged_ranges: list[tuple[int, int]] = []
    for first_code, last_code in sorted(ranges):
        if merged_ranges and first_code <= merged_ranges[-1][1] + 1:
            merged_ranges[-1] = merged_ranges[-1][0], max(last_code, merged_ranges[-1][1])
        else:
            merged_ranges.append((first_code, last_code))
    return overlap(tuple(merged_ranges), EVERY)


def overlap(characters: Characters, other_characters: Characters) -> Characters:
    """The characters of both sets."""
    shared_ranges = []
    for first_code, last_code in characters:
        for other_first_code, other_last_code in other_characters:
            begin = max(first_code, other_first_code)
            end = min(last_code, other_last_code)
            if begin <= end:
                shared_ranges.append((begin, end))
    return tuple(shared_ranges)


def others(characters: Characters) -> Characters:
    """The characters that are not in a set."""
    gaps = []
    gap_begin = 0
    for first_code, last_code in characters:
        gaps.append((gap_begin, first_code - 1))
        gap_begin = last_code + 1
    gaps.append((gap_begin, sys.maxunicode))
    return overlap(tuple(gaps), EVERY)


def json_spelling(text: str) -> str:
    """A pattern, in Rust's syntax, of a text whose characters may be spelled in any way that JSON allows."""
    return "".join(map(_one_spelling, text))


@functools.lru_cache(maxsize=1024)
def json_spellings(characters: Characters) -> str:
    """A pattern, in Rust's syntax, of all spellings of one character of a set."""
    spellings = []
    if plain := overlap(characters, others(MUST_ESCAPE)):
        spellings.append(rust_class(plain))
    short_escapes = [letter for code, letter in SHORT.items() if overlap(characters, only(chr(code)))]
    if short_escapes:
        spellings.append(rf"\\[{''.join(short_escapes)}]")
    codes = []
    if basic_plane := overlap(characters, ((0, BEYOND - 1),)):
        codes.append(_hexadecimal(basic_plane))
    for high, low in _halves(overlap(characters, ((BEYOND, sys.maxunicode),))):
        codes.append(rf"{_hexadecimal((high,))}\\u{_hexadecimal((low,))}")
    return "|".join([*spellings, rf"\\u(?:{'|'.join(codes)})"])


def rust_class(characters: Characters) -> str:
    """A class of characters in Rust's syntax."""
    ranges = []
    for first_code, last_code in characters:
        ranges.append(_escaped(first_code))
        if last_code > first_code:
            ranges.append(f"-{_escaped(last_code)}")
    return f"[{''.join(ranges)}]"


@functools.lru_cache(maxsize=4096)
def _one_spelling(character: str) -> str:
    code = ord(character)
    high, low = divmod(code - BEYOND, HALF)
    code_units = [code] if code < BEYOND else [0xD800 + high, 0xDC00 + low]
    escapes = [rf"\\u{_hexadecimal(((code_unit, code_unit),))}" for code_unit in code_units]
    spellings = ["".join(escapes)]
    if not overlap(MUST_ESCAPE, only(character)):
        spellings.append(_escaped(code))
    if code in SHORT:
        spellings.append(rf"\\[{SHORT[code]}]")
    return f"(?:{'|'.join(spellings)})"


def _escaped(code: int) -> str:
    return chr(code) if chr(code).isalnum() else f"\\x{{{code:x}}}"


def _halves(characters: Characters) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Surrogate pairs of some characters, as ranges of first and of second halves that combine freely."""
    half_ranges = []

    def add(high: int, last_high: int, low: int, last_low: int) -> None:
        half_ranges.append(((0xD800 + high, 0xD800 + last_high), (0xDC00 + low, 0xDC00 + last_low)))

    for first_code, last_code in characters:
        high, low = divmod(first_code - BEYOND, HALF)
        last_high, last_low = divmod(last_code - BEYOND, HALF)
        if low and high < last_high:
            add(high, high, low, HALF - 1)
            high += 1
            low = 0
        if last_low < HALF - 1 and high < last_high:
            add(last_high, last_high, 0, last_low)
            last_high -= 1
            last_low = HALF - 1
        add(high, last_high, low, last_low)
    return half_ranges


@functools.lru_cache(maxsize=4096)
def _hexadecimal(ranges: tuple[tuple[int, int], ...], digits: int = 4) -> str:
    """A pattern of the numbers in some ranges, each written with `digits` hexadecimal digits."""
    size = 16 ** (digits - 1)
    if ranges == ((0, 16 * size - 1),):
        return f"[0-9a-fA-F]{{{digits}}}"
    digits_by_tail = defaultdict[str, list[int]](list)
    for digit in range(16):
        subranges = overlap(ranges, ((digit * size, digit * size + size - 1),))
        if subranges:
            tail_ranges = tuple((start - digit * size, end - digit * size) for start, end in subranges)
            tail = _hexadecimal(tail_ranges, digits - 1) if digits > 1 else ""
            digits_by_tail[tail].append(digit)
    branches = [_digit_class(leading_digits) + tail for tail, leading_digits in digits_by_tail.items()]
    return branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})"


def _digit_class(digits: list[int]) -> str:
    hex_digits = ""
    for digit in digits:
        hex_digits += f"{digit:x}" if digit < 10 else f"{digit:x}{digit:X}"
    return hex_digits if len(hex_digits) == 1 else f"[{hex_digits}]"
