"""A toy model whose passes can be held up, and that fails where it is told to."""

import threading
from collections.abc import Callable, Iterable

from drafttree.models import Output, Segment
from testing.toy import Law, ToyModel


class HeldModel(ToyModel):
    """Waits before every pass until it may go on.

    Attributes:
        go: set at first; `go.clear()` holds the passes up.
        began: set when a pass has begun.
    """

    def __init__(self, law: Law, vocab: int = 8) -> None:
        super().__init__(law, vocab)
        self.go, self.began = threading.Event(), threading.Event()
        self.go.set()

    def score(self, segment: Segment) -> Output:
        self.began.set()
        assert self.go.wait(20), "the test holds the model up for ever"
        return super().score(segment)


class FailingModel(ToyModel):
    """Raises an error in some of its passes.

    Args:
        law: as for `ToyModel`.
        error: makes what is raised.
        fails_at: the passes, counted from 1, that raise it, behind the cache's update.
        poison: a token id that raises it in every pass that has it.

    Attributes:
        raised: how often it was.
    """

    def __init__(
        self, law: Law, error: Callable[[], BaseException], fails_at: Iterable[int] = (), poison: int | None = None
    ) -> None:
        super().__init__(law)
        self.error, self.fails_at, self.poison, self.raised = error, frozenset(fails_at), poison, 0

    def score(self, segment: Segment) -> Output:
        output = super().score(segment)
        if self.passes in self.fails_at or self.poison in segment.tokens.flatten().tolist():
            self.raised += 1
            raise self.error()
        return output
