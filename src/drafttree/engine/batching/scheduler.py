"""The scheduler: who waits, who runs, who pauses for others or for its reader, and who waits again."""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence

from drafttree.engine.memory import KVMemory
from drafttree.engine.request import Request

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

    A text whose constraints take longer than its share of the rounds sits rounds out, so that an ambiguous grammar
    makes its own text slow rather than those beside it.

    Args:
        max_batch: requests that run at once, at most.
        memory: what their KV caches may take.

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
        """All of them, those that run first."""
        return [*self.running, *self.waiting]

    @property
    def in_round(self) -> list[Request]:
        """The running requests that take part in the next round; one does if any runs."""
        return [request for request in self.running if request.overtime <= self._share] or self.running

    @property
    def paused(self) -> list[Request]:
        """Those that began and do not run at present."""
        return [request for request in self.waiting if request.holds_rows]

    @property
    def ready(self) -> bool:
        """Whether a round would do anything: not where all requests pause until their texts are read."""
        return bool(self.running) or not self._settled or self._full() != self._unread

    def add(self, request: Request) -> None:
        """Let a request wait for its turn."""
        request.turn = self._newest = max(self._newest, request.order)
        self.waiting.append(request)
        self._settled = False

    def pause_unread(self) -> list[Request]:
        """Let the texts pause whose readers take no more for now.

        Returns:
            Those that give up their rows, since the text that is next needs them.
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
        """Move what there is room for from the waiting to the running.

        Returns:
            The requests that begin; those that go on after a pause are not among them.
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
        """Note how long a round was, which all that run share, and what the constraints of each took."""
        self._share = seconds / max(len(self.running), 1)
        for request in self.running:
            excess_seconds = request.constraints.seconds - self._share
            request.overtime = max(request.overtime + excess_seconds, 0.0)
            request.constraints.seconds = 0.0

    def remove(self, request: Request) -> None:
        """Take a request out of the queue or the batch, and give its memory back."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        if request.holds_rows:
            self._release(request)
        self._settled = False

    def halve(self) -> list[Request]:
        """Let the younger half of the batch wait again, in front of the others, and admit no more than are left.

        Returns:
            Those that gave up their rows, the oldest first; none if only one request holds any.
        """
        remaining_count = max(len(self.running) // 2, 1)
        return self.put_back(sorted(self.running, key=lambda request: request.order)[remaining_count:])

    def put_back(self, requests: Sequence[Request]) -> list[Request]:
        """Let running requests wait again in their place of the queue, and admit no more than are left.

        Returns:
            Those that gave up their rows, the oldest first: the given ones and all that paused.
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
        """Requests by age, the first of every group before the second of any."""
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
        """The request whose turn it is; a paused one where that one's memory is not there yet."""
        request = self._first(self.waiting)
        return self._first(self.paused) if self._lacks_rows(request) else request

    def _first(self, requests: Iterable[Request]) -> Request | None:
        """The request whose turn it is of those whose readers take more."""
        at_once = Counter(request.group for request in self.running)
        candidates = (request for request in requests if request not in self._unread)
        return min(candidates, key=lambda request: (at_once[request.group], request.turn, request.order), default=None)

    def _lacks_rows(self, request: Request | None) -> bool:
        return not (request is None or request.holds_rows or self._memory.fits(request.capacity))

    def _make_place(self, request: Request) -> bool:
        """Whether a request may run, perhaps since another one pauses."""
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
