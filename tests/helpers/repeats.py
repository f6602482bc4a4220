"""Brute-force reference of the lookup drafters: it searches the whole text every time."""

import math
from collections import Counter
from collections.abc import Sequence

from hypothesis import strategies as st

texts = st.lists(st.integers(0, 2), min_size=1, max_size=18) | st.lists(st.integers(0, 5), min_size=1, max_size=24)
paths = st.lists(st.integers(0, 5), max_size=4)


def ends(text: Sequence[int], string: Sequence[int]) -> list[int]:
    """Positions after every occurrence of a string in a text."""
    size = len(string)
    return [end for end in range(size, len(text) + 1) if list(text[end - size : end]) == list(string)]


def followers(text: Sequence[int], string: Sequence[int]) -> Counter[int]:
    """Count the tokens that follow a string in a text."""
    return Counter(text[end] for end in ends(text, string) if end < len(text))


def longest(text: Sequence[int], path: Sequence[int], most: int = 1000) -> tuple[int, Counter[int]] | None:
    """The longest suffix of text and path, of at most `most` tokens, that is followed by something in the text."""
    whole = [*text, *path]
    for size in range(min(most, len(whole)), 0, -1):
        if found := followers(text, whole[-size:]):
            return size, found
    return None


def bucket(size: int, after: Counter[int]) -> tuple[int, int]:
    return min(math.floor(math.log2(size)) + 1, 6), min(len(after), 3)


def confidences(text: Sequence[int], most: int) -> dict[tuple[int, int], list[bool]]:
    """For every bucket of matches, whether each match predicted the next token."""
    tried: dict[tuple[int, int], list[bool]] = {}
    for place, token in enumerate(text):
        if match := longest(text[:place], [], most):
            tried.setdefault(bucket(*match), []).append(token in match[1])
    return tried


def row(text: Sequence[int], path: Sequence[int], most: int = 1000) -> dict[int, float]:
    """Probability of every proposed token after text and path, for texts too short for observations to fade."""
    prior = {1: 0.25, 2: 0.45, 3: 0.6, 4: 0.75, 5: 0.9, 6: 0.95}
    match = longest(text, path, most)
    if match is None:
        return {}
    held = confidences(text, most).get(bucket(*match), [])
    sure = (sum(held) + 2 * prior[bucket(*match)[0]]) / (len(held) + 2)
    return {token: sure * count / match[1].total() for token, count in match[1].items()}
