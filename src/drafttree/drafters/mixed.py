"""Mixed drafting: lookup drafts where the text repeats itself, a model drafts elsewhere."""

from torch import Tensor

from drafttree.drafters.base import Drafter, HiddenStates, Session, ShownBySize
from drafttree.drafters.image_placeholders import ImagePlaceholders
from drafttree.drafters.lookup import LookupDrafter, LookupSession
from drafttree.drafters.session import LateReader
from drafttree.models import TreeCache


class MixedDrafter(ShownBySize):
    """Lookup and a model, one of which drafts each round.

    The controller chooses lookup if lookup expects more tokens per cost than the model's recent rounds committed. For a
    text that is written alone, both depend on committed tokens and on fixed costs only. So the same seed gives the same
    rounds.

    Args:
        lookup: the lookup drafter, whose passes cost next to nothing.
        model: any other drafter; its first pass after rounds of lookup reads the tokens that they have committed.
    """

    def __init__(self, lookup: LookupDrafter, model: Drafter) -> None:
        self.lookup = lookup
        self.model = model
        self.vocab_size = lookup.vocab_size
        self.context = model.context
        self.hidden_layers = model.hidden_layers
        self.levels = model.levels
        self.nbytes = model.nbytes

    @property
    def sources(self) -> tuple[Drafter, Drafter]:
        """The drafters in the order of `Session.choose`: source 0 is lookup, 1 the model."""
        return self.lookup, self.model

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request with a session of each drafter; both get every committed token."""
        return MixedSession(self.lookup.start(prompt, capacity), self.model.start(prompt, capacity))


class MixedSession(Session):
    """The sessions of both drafters for one request."""

    mixes = True

    def __init__(self, lookup: LookupSession, model: Session) -> None:
        self._lookup = lookup
        self._model = model
        self._model_text = LateReader(model)

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

    def see_images(self, images: ImagePlaceholders) -> None:
        self._lookup.see_images(images)
        self._model.see_images(images)

    @property
    def images(self) -> ImagePlaceholders:  # pyright: ignore[reportIncompatibleVariableOverride]
        """As in `Session`, for the model's session, since only a model limits how many tokens it can see."""
        return self._model.images

    def read_rest(self) -> None:
        self._model_text.catch_up()
        self._model.read_rest()

    def snapshot(self, tokens: int) -> object:
        self._model_text.catch_up()
        return self._model.snapshot(tokens)

    def restore(self, snapshot: object, tokens: int) -> int:
        """As in `Session`, by the model's session; lookup's index of the prompt is made anew."""
        return self._model.restore(snapshot, tokens)

    @property
    def expected_accepted(self) -> float:
        return self._lookup.expected_accepted

    def choose(self, source: int) -> Session:
        if source == 0:
            return self._lookup
        self._model_text.catch_up()
        if self._model.mixes:
            return self._model
        return self._model.choose(0)  # unwraps a session that wraps another, since the inner one may share passes

    def draft_root(self) -> Tensor:
        return self.choose(1).draft_root()

    def draft_level(self, tokens: Tensor, origins: Tensor) -> Tensor:
        return self._model.draft_level(tokens, origins)

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self._lookup.commit(tokens, hidden_states)
        self._model_text.resting = self.resting
        self._model_text.commit(tokens, hidden_states)
