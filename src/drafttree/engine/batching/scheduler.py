"""The scheduler: who waits, who runs, and who has to wait again. First come, first served, if the text is read."""

from collections import deque
from collections.abc import Sequence

from drafttree.engine.batching.kv_memory import KVMemory
from drafttree.engine.batching.served_request import ServedRequest

REGAIN_ROUNDS = 256
"""Rounds after which a batch that memory made smaller may grow by one again."""


class Scheduler:
    """Admits requests in the order they came in, as far as the batch and the memory have room.

    The first that waits is never passed by a later one that needs less, so none starves. A request whose text is not
    read (`Reader.full`) is passed by all: it keeps its place until another one wants it, and then waits again.

    Args:
        max_batch: requests that run at once, at most.
        memory: what their KV caches may take.

    Attributes:
        waiting: the requests that wait, in order of arrival.
        running: the requests that run, in order of arrival.
        preempted: how often a running request had to wait again.
    """

    def __init__(self, max_batch: int, memory: KVMemory) -> None:
        self.waiting: deque[ServedRequest] = deque()
        self.running: list[ServedRequest] = []
        self.preempted = 0
        self._most = self._room = max_batch
        self._calm = 0
        self._memory = memory

    @property
    def requests(self) -> list[ServedRequest]:
        """All of them, those that run first."""
        return [*self.running, *self.waiting]

    def add(self, served: ServedRequest) -> None:
        """Let a request wait for its turn."""
        self.waiting.append(served)

    def admit(self) -> list[ServedRequest]:
        """Move what there is room for from the waiting to the running; the requests that were moved."""
        self._regain()
        admitted = []
        while (served := self._next) and self._has_room(served):
            self.waiting.remove(served)
            self._memory.reserved += served.rows
            self.running.append(served)
            admitted.append(served)
        return admitted

    @property
    def ready(self) -> bool:
        """Whether any request would go on in the next round."""
        first = self._next
        if first and (self._has_room(first) or any(served.reader.full for served in self.running)):
            return True
        return any(served.cancelled for served in self.requests) or not all(each.reader.full for each in self.running)

    def set_aside(self) -> list[ServedRequest]:
        """Let requests that run and are not read wait again, as many as the first that waits needs to run.

        Returns:
            Those that wait again.
        """
        unread = [served for served in self.running if served.reader.full]
        aside = []
        while unread and (first := self._next) and not self._has_room(first):
            aside.append(unread.pop())
            self._wait_again(aside[-1:])
        return aside

    def remove(self, served: ServedRequest) -> None:
        """Take an ended request out of the queue or the batch, and give its memory back."""
        if served in self.running:
            self.running.remove(served)
            self._memory.reserved -= served.rows
        elif served in self.waiting:
            self.waiting.remove(served)

    def halve(self) -> list[ServedRequest]:
        """Let the younger half of the batch wait again, in front of the others, and admit no more than are left.

        Returns:
            Those that wait again, the oldest first; none if only one request runs.
        """
        left = max(len(self.running) // 2, 1)
        youngest = sorted(self.running, key=lambda served: served.order)[left:]
        self.put_back(youngest)
        return youngest

    def put_back(self, requests: Sequence[ServedRequest]) -> None:
        """Let running requests wait again in their place of the queue, and admit no more than are left."""
        self._wait_again(requests)
        self.preempted += len(requests)
        self._room = max(len(self.running), 1)
        self._calm = 0

    @property
    def _next(self) -> ServedRequest | None:
        """The first that waits and is read."""
        return next((served for served in self.waiting if not served.reader.full), None)

    def _has_room(self, served: ServedRequest) -> bool:
        return len(self.running) < self._room and self._memory.fits(served.rows)

    def _wait_again(self, requests: Sequence[ServedRequest]) -> None:
        for served in requests:
            self.remove(served)
        self.waiting = deque(sorted([*requests, *self.waiting], key=lambda served: served.order))

    def _regain(self) -> None:
        self._calm += 1
        if self._room < self._most and self._calm >= REGAIN_ROUNDS:
            self._room += 1
            self._calm = 0
