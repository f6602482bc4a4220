"""Prompt lookup: drafts from an n-gram table of the text so far."""

import sys

import torch

from drafttree.core.errors import ConfigError
from drafttree.drafters.match_index import LookupDrafter, Match, MatchIndex, count_follower

Gram = tuple[int, ...]


class PromptLookupDrafter(LookupDrafter):
    """Proposes the tokens that followed earlier occurrences of the longest n-gram at the end of the text.

    Every earlier occurrence is counted, so several different continuations make a tree.

    Source: prompt lookup decoding (Saxena 2023) and LLMA (Yang et al. 2023), which copy one occurrence as a chain.

    Args:
        vocab_size: the vocab size of the target.
        device: the device of the target's tensors.
        max_ngram: length of the longest n-gram that is matched.

    Raises:
        ConfigError: `max_ngram` is below 1.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu", max_ngram: int = 8) -> None:
        super().__init__(vocab_size, device)
        if max_ngram < 1:
            raise ConfigError(f"max_ngram is {max_ngram}; it must be at least 1")
        self.max_ngram = max_ngram

    def new_index(self) -> MatchIndex:
        """Return an empty n-gram table."""
        return NgramIndex(self.max_ngram)


class NgramIndex:
    """Counts of the tokens that followed every n-gram of a text, n from 1 to `max_ngram`.

    A cursor is the last `max_ngram` tokens of a text. Appending a token updates at most `max_ngram` counts, however
    long the text is.
    """

    def __init__(self, max_ngram: int) -> None:
        self._max_ngram = max_ngram
        self._followers: dict[Gram, dict[int, int]] = {}
        self._end: Gram = ()

    @property
    def nbytes(self) -> int:
        tables = [self._followers, *self._followers, *self._followers.values()]
        return sum(map(sys.getsizeof, tables))

    def append(self, token: int) -> None:
        for length in range(1, len(self._end) + 1):
            count_follower(self._followers.setdefault(self._end[-length:], {}), token)
        self._end = self.step(self._end, token)

    def end(self) -> Gram:
        """Return the last tokens of the text."""
        return self._end

    def step(self, cursor: Gram, token: int) -> Gram:
        return (*cursor, token)[-self._max_ngram :]

    def match(self, cursor: Gram) -> Match | None:
        """Return the longest n-gram at the cursor that was followed by something."""
        for length in range(len(cursor), 0, -1):
            if followers := self._followers.get(cursor[-length:]):
                return Match(length, followers)
        return None
