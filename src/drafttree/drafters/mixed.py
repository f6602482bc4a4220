"""Mixed drafting: lookup drafts where the text repeats itself, a model drafts elsewhere."""

from torch import Tensor

from drafttree.drafters.base import Drafter, HiddenStates, Session, ShownBySize
from drafttree.drafters.lookup import USUAL_LEVELS, LookupDrafter, LookupSession
from drafttree.drafters.session import LateReader
from drafttree.models import TreeCache

LOOKUP_ROUND_COST = 2 / 3
"""Cost of a round drafted by lookup over one drafted by the model: v + h against v + c * delta + h."""
INITIAL_ACCEPTED = 1.0
"""Accepted tokens per round assumed of the model before its first round."""
UPDATE_RATE, RESET_RATE = 0.2, 0.02
"""Step sizes of the model's mean accepted tokens: towards its latest round, and back to the initial value per round
that lookup drafts, so that a model that once did badly is tried again."""


class MixedDrafter(ShownBySize):
    """Chooses lookup or a model for every round.

    Lookup drafts a round if it has a match and the tokens it expects to commit are at least `LOOKUP_ROUND_COST` times
    what the model's recent rounds have committed. Both numbers depend on committed tokens alone and on no clock, so the
    same seed gives the same rounds.

    Args:
        lookup: the lookup drafter, whose passes cost next to nothing.
        model: any other drafter; its next first pass reads the tokens committed while lookup drafted.
    """

    def __init__(self, lookup: LookupDrafter, model: Drafter) -> None:
        self.lookup, self.model = lookup, model
        self.vocab_size = lookup.vocab_size
        self.context = model.context
        self.hidden_layers = model.hidden_layers
        self.levels = model.levels
        self.nbytes = model.nbytes

    @property
    def sources(self) -> tuple[Drafter, Drafter]:
        """Who drafts a round, by the source that the session chooses: 0 is lookup, 1 the model."""
        return self.lookup, self.model

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request with a session of each drafter; both are told every committed token."""
        return MixedSession(self.lookup.start(prompt, capacity), self.model.start(prompt, capacity))


class MixedSession(Session):
    """The sessions of both drafters for one request."""

    follows_text = mixes = True

    def __init__(self, lookup: LookupSession, model: Session) -> None:
        self._lookup, self._model, self._model_text = lookup, model, LateReader(model)
        self._drafting: Session | None = None
        self._accepted, self._levels = INITIAL_ACCEPTED, USUAL_LEVELS
        self._passes_before = 0

    @property
    def passes(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride]
        return self._lookup.passes + self._model.passes

    @property
    def seconds(self) -> float:
        return self._lookup.seconds + self._model.seconds

    @property
    def nbytes(self) -> int:
        return self._lookup.nbytes + self._model.nbytes

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        self._lookup.prefill(hidden_states, tokens)
        self._model_text.resting = self.resting
        self._model_text.prefill(hidden_states, tokens)

    def read_cache(self, cache: TreeCache) -> None:
        self._model.read_cache(cache)

    def read_rest(self) -> None:
        self._model.read_rest()

    def keep(self, tokens: int) -> object:
        self._model_text.catch_up()
        return self._model.keep(tokens)

    def resume(self, kept: object, tokens: int) -> int:
        """As in `Session`, by the model's session; lookup's index of the prompt is made anew."""
        return self._model.resume(kept, tokens)

    @property
    def expected_accepted(self) -> float | None:
        """What lookup expects to have accepted, where it drafts the next round; None where the model does."""
        expected = self._lookup.expect(self._levels)
        return expected if self._takes_lookup(expected) else None

    def _takes_lookup(self, expected: float) -> bool:
        return expected > 0 and 1 + expected >= LOOKUP_ROUND_COST * (1 + self._accepted)

    def choose(self) -> tuple[int, Session]:
        if self._drafting is None:
            use_lookup = self._takes_lookup(self._lookup.expect(self._levels))
            self._drafting = self._lookup if use_lookup else self._model
            if not use_lookup:
                self._model_text.catch_up()
            self._passes_before = self._drafting.passes
        return int(self._drafting is self._model), self._drafting

    def root(self) -> Tensor:
        return self.choose()[1].root()

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        assert self._drafting
        return self._drafting.expand(tokens, origins)

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        levels = self._drafting.passes - self._passes_before if self._drafting else 0
        if levels and self._drafting is self._model:
            self._accepted += UPDATE_RATE * (len(tokens) - 1 - self._accepted)
            self._levels = levels
        else:
            self._accepted += RESET_RATE * (INITIAL_ACCEPTED - self._accepted)
        self._drafting = None
        self._lookup.commit(tokens, hidden_states)
        self._model_text.resting = self.resting
        self._model_text.commit(tokens, hidden_states)
