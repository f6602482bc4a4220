"""What lookup drafters must find, by looking through the whole text every time."""

import math
from collections import Counter
from collections.abc import Sequence

from hypothesis import strategies as st

texts = st.lists(st.integers(0, 2), min_size=1, max_size=18) | st.lists(st.integers(0, 5), min_size=1, max_size=24)
paths = st.lists(st.integers(0, 5), max_size=4)


def ends(text: Sequence[int], string: Sequence[int]) -> list[int]:
    """Where a string ends in a text."""
    size = len(string)
    return [end for end in range(size, len(text) + 1) if list(text[end - size : end]) == list(string)]


def followers(text: Sequence[int], string: Sequence[int]) -> Counter[int]:
    """How often each token follows a string in a text."""
    return Counter(text[end] for end in ends(text, string) if end < len(text))


def longest(text: Sequence[int], path: Sequence[int], most: int = 1000) -> tuple[int, Counter[int]] | None:
    """The longest end of text and path, of `most` tokens at most, that something follows in the text."""
    whole = [*text, *path]
    for size in range(min(most, len(whole)), 0, -1):
        if found := followers(text, whole[-size:]):
            return size, found
    return None


def kind(size: int, after: Counter[int]) -> tuple[int, int]:
    return min(math.floor(math.log2(size)) + 1, 6), min(len(after), 3)


def confidences(text: Sequence[int], most: int) -> dict[tuple[int, int], list[bool]]:
    """For every kind of match, whether it held, each time there was one."""
    tried: dict[tuple[int, int], list[bool]] = {}
    for place, token in enumerate(text):
        if match := longest(text[:place], [], most):
            tried.setdefault(kind(*match), []).append(token in match[1])
    return tried


def row(text: Sequence[int], path: Sequence[int], most: int = 1000) -> dict[int, float]:
    """The probability of every token that is proposed after text and path; for texts too short to be forgotten."""
    prior = {1: 0.25, 2: 0.45, 3: 0.6, 4: 0.75, 5: 0.9, 6: 0.95}
    match = longest(text, path, most)
    if match is None:
        return {}
    held = confidences(text, most).get(kind(*match), [])
    sure = (sum(held) + 2 * prior[kind(*match)[0]]) / (len(held) + 2)
    return {token: sure * count / match[1].total() for token, count in match[1].items()}
