"""Prompt lookup: what followed the last few tokens before."""

import sys

import torch

from drafttree.core.errors import ConfigError
from drafttree.drafters.match_index import LookupDrafter, Match, MatchIndex, note

Gram = tuple[int, ...]


class PromptLookupDrafter(LookupDrafter):
    """Proposes what followed the longest n-gram at the end of the text that occurred before.

    Every earlier occurrence is counted, so where the text went on in several ways there is a tree of them.

    Source: prompt lookup decoding (Saxena 2023) and LLMA (Yang et al. 2023), which copy one occurrence as a chain.

    Args:
        vocab_size: of the target.
        device: where the target's tensors live.
        max_ngram: tokens that are matched at most.

    Raises:
        ConfigError: `max_ngram` is below 1.
    """

    def __init__(self, vocab_size: int, device: torch.device | str = "cpu", max_ngram: int = 8) -> None:
        super().__init__(vocab_size, device)
        if max_ngram < 1:
            raise ConfigError(f"max_ngram is {max_ngram}; it must be at least 1")
        self.max_ngram = max_ngram

    def new_index(self) -> MatchIndex:
        """An empty table of n-grams."""
        return NgramIndex(self.max_ngram)


class NgramIndex:
    """What followed every n-gram of a text, n from 1 to `longest`; a place is the last `longest` tokens.

    Appending a token counts it after `longest` n-grams at most, however long the text is.
    """

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._followers: dict[Gram, dict[int, int]] = {}
        self._end: Gram = ()

    @property
    def nbytes(self) -> int:
        tables = [self._followers, *self._followers, *self._followers.values()]
        return sum(map(sys.getsizeof, tables))

    def append(self, token: int) -> None:
        for length in range(1, len(self._end) + 1):
            note(self._followers.setdefault(self._end[-length:], {}), token)
        self._end = self.step(self._end, token)

    def end(self) -> Gram:
        """The last tokens of the text."""
        return self._end

    def step(self, place: Gram, token: int) -> Gram:
        return (*place, token)[-self._longest :]

    def match(self, place: Gram) -> Match | None:
        """The longest n-gram that something followed before."""
        for length in range(len(place), 0, -1):
            if followers := self._followers.get(place[-length:]):
                return Match(length, followers)
        return None
