"""Lookup where the text repeats itself, a model where it does not."""

from torch import Tensor

from drafttree.drafters.base import Drafter, DraftSession, HiddenStates
from drafttree.drafters.match_index import LookupDrafter, LookupSession

COST = 2 / 3
"""What a round costs that lookup drafts, where one that a model drafts costs 1: v + h against v + c * delta + h."""
LEVELS = 8
"""How far ahead lookup is asked what it is worth, until a round of the model shows how far the policy drafts."""
ACCEPTED = 1.0
"""Tokens of a round that a model is taken to have accepted before it was tried."""
PACE, DRIFT = 0.2, 0.02
"""How fast the mean over the model's rounds follows the latest, and falls back to where it began while it rests."""


class MixedDrafter:
    """Tries lookup first and falls back to a model, round by round.

    Lookup drafts a round if it has a match and the tokens it expects to commit, as its matches have held so far, are
    at least `COST` times what the model's last rounds have committed. Both figures come from committed tokens alone
    and no clock, so the same seed gives the same rounds.

    Args:
        lookup: costs next to nothing.
        model: any other drafter; what it has not read while lookup drafted, it reads in its next first pass.
    """

    def __init__(self, lookup: LookupDrafter, model: Drafter) -> None:
        self.lookup, self.model = lookup, model
        self.vocab_size = lookup.vocab_size
        self.context = model.context
        self.hidden_layers = model.hidden_layers
        self.levels = model.levels
        self.nbytes = model.nbytes

    def start(self, prompt: list[int], capacity: int) -> DraftSession:
        """Begin a sequence; both drafters keep up with it."""
        return MixedSession(self.lookup.start(prompt, capacity), self.model.start(prompt, capacity))


class MixedSession:
    """The two drafts of one text, and which of them has the round.

    Attributes:
        by_lookup: rounds that lookup drafted.
        by_model: rounds that the model drafted.
    """

    def __init__(self, lookup: LookupSession, model: DraftSession) -> None:
        self.by_lookup = self.by_model = 0
        self._lookup, self._model = lookup, model
        self._drafting: DraftSession | None = None
        self._accepted, self._levels = ACCEPTED, LEVELS
        self._begun = 0

    @property
    def passes(self) -> int:
        return self._lookup.passes + self._model.passes

    @property
    def seconds(self) -> float:
        return self._lookup.seconds + self._model.seconds

    @property
    def nbytes(self) -> int:
        return self._lookup.nbytes + self._model.nbytes

    def prefill(self, hidden_states: HiddenStates) -> None:
        self._lookup.prefill(hidden_states)
        self._model.prefill(hidden_states)

    def root(self) -> Tensor:
        expected = self._lookup.expected(self._levels)
        trusted = expected > 0 and 1 + expected >= COST * (1 + self._accepted)
        self._drafting = self._lookup if trusted else self._model
        self._begun = self._drafting.passes
        self.by_lookup += trusted
        self.by_model += not trusted
        return self._drafting.root()

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        assert self._drafting
        return self._drafting.expand(tokens, origins)

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        if self._drafting is self._model:
            self._accepted += PACE * (len(tokens) - 1 - self._accepted)
            self._levels = self._model.passes - self._begun
        else:
            self._accepted += DRIFT * (ACCEPTED - self._accepted)
        self._drafting = None
        self._lookup.commit(tokens, hidden_states)
        self._model.commit(tokens, hidden_states)
