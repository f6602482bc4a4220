"""Lookup where the text repeats itself, a model where it does not."""

from torch import Tensor

from drafttree.drafters.base import Draft, Drafter, Features
from drafttree.drafters.recall import LookupDraft, LookupDrafter

LEVELS = 8
"""How far ahead lookup is asked what it is worth."""
PACE = 0.2
"""Weight of the latest of the model's rounds in its mean."""


class Mixed:
    """Tries lookup first and falls back to a model, round by round.

    Lookup drafts a round if the tokens it expects to get right are at least as many as the model has had accepted in
    its last rounds. Both figures come from committed tokens alone, so the same seed gives the same text.

    Args:
        lookup: costs next to nothing.
        model: any other drafter; what it has not read while lookup drafted, it reads in its next first pass.
    """

    def __init__(self, lookup: LookupDrafter, model: Drafter) -> None:
        self.lookup, self.model = lookup, model
        self.vocab_size = lookup.vocab_size
        self.context = model.context
        self.hidden_layers = model.hidden_layers

    def start(self, prompt: list[int], capacity: int) -> Draft:
        """Begin a sequence; both drafters keep up with it."""
        return MixedDraft(self.lookup.start(prompt, capacity), self.model.start(prompt, capacity))


class MixedDraft:
    """The two drafts of one text, and which of them has the round.

    Attributes:
        by_lookup: rounds that lookup drafted.
        by_model: rounds that the model drafted.
    """

    def __init__(self, lookup: LookupDraft, model: Draft) -> None:
        self.passes = self.by_lookup = self.by_model = 0
        self.seconds = 0.0
        self._lookup, self._model = lookup, model
        self._drafting: Draft | None = None
        self._accepted = 1.0

    def prefill(self, features: Features) -> None:
        self._lookup.prefill(features)
        self._model.prefill(features)

    def root(self) -> Tensor:
        trusted = self._lookup.expected(LEVELS) >= self._accepted
        self._drafting = self._lookup if trusted else self._model
        self.by_lookup += trusted
        self.by_model += not trusted
        logits = self._drafting.root()
        self._count()
        return logits

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        assert self._drafting
        logits = self._drafting.expand(tokens, origins)
        self._count()
        return logits

    def commit(self, tokens: list[int], features: Features) -> None:
        if self._drafting is self._model:
            self._accepted += PACE * (len(tokens) - 1 - self._accepted)
        self._drafting = None
        self._lookup.commit(tokens, features)
        self._model.commit(tokens, features)

    def _count(self) -> None:
        self.passes = self._lookup.passes + self._model.passes
        self.seconds = self._lookup.seconds + self._model.seconds
