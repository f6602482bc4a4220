"""The scheduler decides which requests wait, run, pause for others or for their reader, and start over."""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence

from drafttree.engine.memory import KVMemory
from drafttree.engine.request import Request

REGAIN_ROUNDS = 256
"""Rounds after which a batch that shrank because memory ran out may grow by one request again."""


class Scheduler:
    """Admits requests as far as the batch and the memory have room: groups in turns, each first come, first served.

    Next is a text of a group with the fewest running texts, so that many texts of one group delay no other group. Among
    such groups, the one that has waited longest is next: when a text begins, the rest of its group goes behind all that
    wait. If the batch is full, the youngest text of a group with at least two more running texts pauses for the next
    one. It keeps its rows, and continues when its group is next. A text that needs less memory never overtakes the next
    one; only paused texts do, since they need no more. So no text starves.

    A text also pauses while its reader takes no more (`Reader.full`). It gives up its rows if the next text needs them.

    A text whose constraints take longer than its share of the rounds is left out of some rounds, so that an ambiguous
    grammar slows down its own text rather than the others.

    Args:
        max_batch: the most requests that run at once.
        memory: reserves the rows of their KV caches.

    Attributes:
        waiting: the requests that wait or pause, in order of arrival.
        running: the requests that run.
        preempted: how often a request gave up its rows and had to wait again.
    """

    def __init__(self, max_batch: int, memory: KVMemory) -> None:
        self.waiting: deque[Request] = deque()
        self.running: list[Request] = []
        self.preempted = 0
        self._most = self._room = max_batch
        self._calm = 0
        self._newest = 0
        self._share = 0.0
        self._settled = False
        self._unread: set[Request] = set()
        self._memory = memory

    @property
    def requests(self) -> list[Request]:
        """All requests, the running ones first."""
        return [*self.running, *self.waiting]

    @property
    def in_round(self) -> list[Request]:
        """The running requests that take part in the next round; all of them if each has exceeded its share."""
        return [request for request in self.running if request.overtime <= self._share] or self.running

    @property
    def paused(self) -> list[Request]:
        """The waiting requests that have begun, and keep their rows."""
        return [request for request in self.waiting if request.holds_rows]

    @property
    def ready(self) -> bool:
        """Whether a round would do anything; it would not if all requests pause until their texts are read."""
        return bool(self.running) or not self._settled or self._full() != self._unread

    def add(self, request: Request) -> None:
        """Queue a request."""
        request.turn = self._newest = max(self._newest, request.order)
        self.waiting.append(request)
        self._settled = False

    def pause_unread(self) -> list[Request]:
        """Pause the texts whose readers take no more for now.

        Returns:
            The requests that give up their rows, since the next text needs them.
        """
        if (unread := self._full()) != self._unread:
            self._unread = unread
            self._settled = False
        for request in unread.intersection(self.running):
            self._pause(request)
        released_requests = []
        paused_requests = sorted(unread.intersection(self.paused), key=lambda request: request.order)
        while paused_requests and len(self.running) < self._room and self._lacks_rows(self._first(self.waiting)):
            released_requests.append(paused_requests.pop())
            self._release(released_requests[-1])
        return released_requests

    def admit(self) -> list[Request]:
        """Let waiting requests run as far as there is room.

        Returns:
            The requests that begin, without those that continue after a pause.
        """
        self._regain()
        admitted = []
        while not self._settled:
            request = self._next()
            if request is None or not self._make_place(request):
                self._settled = True
                break
            self.waiting.remove(request)
            self.running.append(request)
            if not request.holds_rows:
                self._begin(request)
                admitted.append(request)
        return admitted

    def charge(self, seconds: float) -> None:
        """Charge each running request the time of its constraints in a round, less its equal share of the round.

        Args:
            seconds: the time of the whole round.
        """
        self._share = seconds / max(len(self.running), 1)
        for request in self.running:
            excess_seconds = request.constraints.seconds - self._share
            request.overtime = max(request.overtime + excess_seconds, 0.0)
            request.constraints.seconds = 0.0

    def remove(self, request: Request) -> None:
        """Remove a request from the queue or the batch, and release its rows."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        if request.holds_rows:
            self._release(request)
        self._settled = False

    def halve(self) -> list[Request]:
        """Let the younger half of the batch wait again, and limit the batch to the other half.

        Returns:
            The requests that gave up their rows, the oldest first; none if only one request holds rows.
        """
        remaining_count = max(len(self.running) // 2, 1)
        return self.put_back(sorted(self.running, key=lambda request: request.order)[remaining_count:])

    def put_back(self, requests: Sequence[Request]) -> list[Request]:
        """Let running requests wait again, at their place in the queue, and limit the batch to those still running.

        Returns:
            The requests that gave up their rows, the oldest first: the given ones and all paused ones.
        """
        waiting_requests = sorted([*requests, *self.paused], key=lambda request: request.order)
        for request in waiting_requests:
            self.remove(request)
        self.waiting = deque(sorted([*waiting_requests, *self.waiting], key=lambda request: request.order))
        self.preempted += len(waiting_requests)
        self._room = max(len(self.running), 1)
        self._calm = 0
        return waiting_requests

    def by_turns(self, requests: Sequence[Request]) -> list[Request]:
        """Sort requests by age, with the first of every group before the second of any group."""
        group_counts: Counter[Hashable] = Counter()
        turns: list[tuple[int, Request]] = []
        for request in sorted(requests, key=lambda request: request.order):
            turns.append((group_counts[request.group], request))
            group_counts[request.group] += 1
        return [request for _, request in sorted(turns, key=lambda turn: turn[0])]

    def _full(self) -> set[Request]:
        return {request for request in self.requests if request.reader.full}

    def _pause(self, request: Request) -> None:
        self.running.remove(request)
        self.waiting = deque(sorted([request, *self.waiting], key=lambda each: each.order))

    def _release(self, request: Request) -> None:
        self._memory.reserved -= request.capacity
        request.holds_rows = False
        self._settled = False

    def _begin(self, request: Request) -> None:
        self._memory.reserved += request.capacity
        request.holds_rows = True
        for waiting_request in self.waiting:
            if waiting_request.group == request.group and not waiting_request.holds_rows:
                waiting_request.turn = self._newest + 1

    def _next(self) -> Request | None:
        """The request whose turn it is, or a paused one if there is not enough memory for that yet."""
        request = self._first(self.waiting)
        return self._first(self.paused) if self._lacks_rows(request) else request

    def _first(self, requests: Iterable[Request]) -> Request | None:
        """The request whose turn it is, among those whose readers take more."""
        at_once = Counter(request.group for request in self.running)
        candidates = (request for request in requests if request not in self._unread)
        return min(candidates, key=lambda request: (at_once[request.group], request.turn, request.order), default=None)

    def _lacks_rows(self, request: Request | None) -> bool:
        return not (request is None or request.holds_rows or self._memory.fits(request.capacity))

    def _make_place(self, request: Request) -> bool:
        """Whether a request may run; pauses another one if it must."""
        if len(self.running) < self._room:
            return True
        at_once = Counter(running_request.group for running_request in self.running)
        youngest = max(self.running, key=lambda each: (at_once[each.group], each.order))
        if at_once[youngest.group] < at_once[request.group] + 2:
            return False
        self._pause(youngest)
        return True

    def _regain(self) -> None:
        self._calm += 1
        if self._room < self._most and self._calm >= REGAIN_ROUNDS:
            self._room += 1
            self._calm = 0
            self._settled = False
