"""Writes the texts of a list of prompts, many at once, in the thread of the caller."""

from collections.abc import Sequence

from drafttree.engine.batching.batch_loop import BatchLoop
from drafttree.engine.batching.served_request import Ended, Reader, ServedRequest
from drafttree.engine.generation import Generation
from drafttree.engine.request import Request
from drafttree.engine.target_lock import lock_of


class _Result(Reader):
    """Keeps what came of a request."""

    def __init__(self) -> None:
        self._ended: Ended | None = None

    def end(self, ended: Ended) -> None:
        self._ended = ended

    def raise_error(self) -> None:
        """Raise what the request failed with, if it did."""
        if isinstance(self._ended, Exception):
            raise self._ended

    @property
    def text(self) -> Generation:
        """The finished text."""
        assert isinstance(self._ended, Generation)
        return self._ended


def generate_all(loop: BatchLoop, requests: Sequence[Request]) -> list[Generation]:
    """The texts of requests, in their order.

    Args:
        loop: runs nothing else.
        requests: prepared by its decoder, not opened.

    Raises:
        ContextError: one needs more rows of the KV cache than there are.
        Exception: what a request failed with; the others end there.
    """
    for request in requests:
        loop.memory.check(request.capacity)
    results = [_Result() for _ in requests]
    for order, (request, result) in enumerate(zip(requests, results, strict=True)):
        loop.add(ServedRequest(request, result, order))
    try:
        while loop.busy:
            with lock_of(loop.target):
                loop.step()
            for result in results:
                result.raise_error()
    except BaseException:
        loop.stop("interrupted")
        raise
    return [result.text for result in results]
