"""A request in an engine: its place in the queue, what it reserves, and who is told of its text."""

import time
from collections.abc import Hashable
from dataclasses import dataclass, field

from drafttree.engine.generation import Chunk, Generation
from drafttree.engine.metrics import Round
from drafttree.engine.request import Request

Ended = Generation | Exception
"""A finished text, or why it failed."""


class Reader:
    """Told of a request's text by the thread that owns the model; by default it does not listen.

    Attributes:
        cancelled: the finish reason with which the text is to end at the next round, None while its rest is wanted;
            set by any thread.
        full: whether it takes no more for now, so that the text pauses; only a chunk makes it so.
    """

    cancelled: str | None = None
    full = False

    def chunk(self, chunk: Chunk) -> None:
        """Take what a round has added."""

    def end(self, ended: Ended) -> None:
        """Take the finished text, or why it failed; called once."""


@dataclass(eq=False)
class ServedRequest:
    """A request that waits or runs.

    Attributes:
        request: the text, its options and its state.
        reader: told of the text.
        order: place in the order of arrival; the smallest came first.
        group: shared by texts that share the batch with others as one text would.
        turn: place among the waiting texts of groups that have as many running; the smallest is next.
        holds_rows: whether its rows are reserved: it runs, or it pauses.
    """

    request: Request
    reader: Reader = field(default_factory=Reader)
    order: int = 0
    group: Hashable = field(default_factory=object)
    turn: int = 0
    holds_rows: bool = False
    _last: float = field(default_factory=time.perf_counter)

    @property
    def rows(self) -> int:
        """Rows of the KV cache that it reserves: prompt, text and the largest tree."""
        return self.request.capacity

    def publish(self, known: int) -> None:
        """Tell the reader what was added since there were so many tokens, and the whole text where it has ended."""
        self.reader.chunk(Chunk.since(known, self.request))
        if self.request.finish_reason:
            self.reader.end(Generation.of(self.request))

    def end(self, reason: str) -> None:
        """End the text here, for a reason of ours, and tell the reader."""
        self.request.end(reason)
        self.publish(len(self.request.tokens))

    def record(self, turn: Round) -> None:
        """Count a round, with the time since the last one or since the request came."""
        now = time.perf_counter()
        self.request.metrics.record(turn, now - self._last)
        self._last = now
