"""The scheduler: who waits, who runs, who pauses for others or for its reader, and who waits again."""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence

from drafttree.engine.batching.served_request import ServedRequest
from drafttree.engine.memory import KVMemory

REGAIN_ROUNDS = 256
"""Rounds after which a batch that memory made smaller may grow by one again."""


class Scheduler:
    """Admits requests as far as the batch and the memory have room: groups by turns, first come, first served.

    Next is a text of a group that has the fewest running, so that many texts of one group hold up no other. Among such
    groups it is the one that waits longest: when a text begins, the rest of its group goes behind all that wait.
    Where the batch is full, the youngest text of a group with at least two more running pauses for it: it keeps its
    rows, and goes on when its group is next. What is next is never passed by what needs less memory, only by paused
    texts, which need no more, so none starves.

    A text whose reader takes no more for now (`Reader.full`) pauses too, until it does. It gives its rows up where the
    text that is next needs them.

    Args:
        max_batch: requests that run at once, at most.
        memory: what their KV caches may take.

    Attributes:
        waiting: the requests that wait or pause, in order of arrival.
        running: the requests that run.
        preempted: how often a request gave up its rows and had to wait again.
    """

    def __init__(self, max_batch: int, memory: KVMemory) -> None:
        self.waiting: deque[ServedRequest] = deque()
        self.running: list[ServedRequest] = []
        self.preempted = 0
        self._most = self._room = max_batch
        self._calm = 0
        self._newest = 0
        self._settled = False
        self._unread: set[ServedRequest] = set()
        self._memory = memory

    @property
    def requests(self) -> list[ServedRequest]:
        """All of them, those that run first."""
        return [*self.running, *self.waiting]

    @property
    def paused(self) -> list[ServedRequest]:
        """Those that began and do not run at present."""
        return [served for served in self.waiting if served.holds_rows]

    @property
    def ready(self) -> bool:
        """Whether a round would do anything: not where all requests pause until their texts are read."""
        return bool(self.running) or not self._settled or self._full() != self._unread

    def add(self, served: ServedRequest) -> None:
        """Let a request wait for its turn."""
        served.turn = self._newest = max(self._newest, served.order)
        self.waiting.append(served)
        self._settled = False

    def pause_unread(self) -> list[ServedRequest]:
        """Let the texts pause whose readers take no more for now.

        Returns:
            Those that give up their rows, since the text that is next needs them.
        """
        if (unread := self._full()) != self._unread:
            self._unread, self._settled = unread, False
        for served in unread.intersection(self.running):
            self._pause(served)
        again = []
        paused = sorted(unread.intersection(self.paused), key=lambda served: served.order)
        while paused and len(self.running) < self._room and self._lacks_rows(self._first(self.waiting)):
            again.append(paused.pop())
            self._release(again[-1])
        return again

    def admit(self) -> list[ServedRequest]:
        """Move what there is room for from the waiting to the running.

        Returns:
            The requests that begin; those that go on after a pause are not among them.
        """
        self._regain()
        admitted = []
        while not self._settled:
            served = self._next()
            if served is None or not self._make_place(served):
                self._settled = True
                break
            self.waiting.remove(served)
            self.running.append(served)
            if not served.holds_rows:
                self._begin(served)
                admitted.append(served)
        return admitted

    def remove(self, served: ServedRequest) -> None:
        """Take a request out of the queue or the batch, and give its memory back."""
        if served in self.running:
            self.running.remove(served)
        elif served in self.waiting:
            self.waiting.remove(served)
        if served.holds_rows:
            self._release(served)
        self._settled = False

    def halve(self) -> list[ServedRequest]:
        """Let the younger half of the batch wait again, in front of the others, and admit no more than are left.

        Returns:
            Those that gave up their rows, the oldest first; none if only one request holds any.
        """
        left = max(len(self.running) // 2, 1)
        return self.put_back(sorted(self.running, key=lambda served: served.order)[left:])

    def put_back(self, requests: Sequence[ServedRequest]) -> list[ServedRequest]:
        """Let running requests wait again in their place of the queue, and admit no more than are left.

        Returns:
            Those that gave up their rows, the oldest first: the given ones and all that paused.
        """
        again = sorted([*requests, *self.paused], key=lambda served: served.order)
        for served in again:
            self.remove(served)
        self.waiting = deque(sorted([*again, *self.waiting], key=lambda served: served.order))
        self.preempted += len(again)
        self._room = max(len(self.running), 1)
        self._calm = 0
        return again

    def by_turns(self, requests: Sequence[ServedRequest]) -> list[ServedRequest]:
        """Requests by age, the first of every group before the second of any."""
        seen: Counter[Hashable] = Counter()
        turns: list[tuple[int, ServedRequest]] = []
        for served in sorted(requests, key=lambda served: served.order):
            turns.append((seen[served.group], served))
            seen[served.group] += 1
        return [served for _, served in sorted(turns, key=lambda turn: turn[0])]

    def _full(self) -> set[ServedRequest]:
        return {served for served in self.requests if served.reader.full}

    def _pause(self, served: ServedRequest) -> None:
        self.running.remove(served)
        self.waiting = deque(sorted([served, *self.waiting], key=lambda each: each.order))

    def _release(self, served: ServedRequest) -> None:
        self._memory.reserved -= served.rows
        served.holds_rows = False
        self._settled = False

    def _begin(self, served: ServedRequest) -> None:
        self._memory.reserved += served.rows
        served.holds_rows = True
        for other in self.waiting:
            if other.group == served.group and not other.holds_rows:
                other.turn = self._newest + 1

    def _next(self) -> ServedRequest | None:
        """The request whose turn it is; a paused one where that one's memory is not there yet."""
        served = self._first(self.waiting)
        return self._first(self.paused) if self._lacks_rows(served) else served

    def _first(self, requests: Iterable[ServedRequest]) -> ServedRequest | None:
        """The request whose turn it is of those whose readers take more."""
        at_once = Counter(served.group for served in self.running)
        able = (served for served in requests if served not in self._unread)
        return min(able, key=lambda served: (at_once[served.group], served.turn, served.order), default=None)

    def _lacks_rows(self, served: ServedRequest | None) -> bool:
        return not (served is None or served.holds_rows or self._memory.fits(served.rows))

    def _make_place(self, served: ServedRequest) -> bool:
        """Whether a request may run, perhaps since another one pauses."""
        if len(self.running) < self._room:
            return True
        at_once = Counter(each.group for each in self.running)
        youngest = max(self.running, key=lambda each: (at_once[each.group], each.order))
        if at_once[youngest.group] < at_once[served.group] + 2:
            return False
        self._pause(youngest)
        return True

    def _regain(self) -> None:
        self._calm += 1
        if self._room < self._most and self._calm >= REGAIN_ROUNDS:
            self._room += 1
            self._calm = 0
            self._settled = False
