"""The scheduler decides which requests wait, run, pause for others or for their reader, and start over."""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter

from drafttree.engine.batching.seat import Seat
from drafttree.engine.memory import KVMemory
from drafttree.engine.request import Request

REGAIN_ROUNDS = 256
"""Rounds after which a batch that shrank because memory ran out may grow by one request again."""
BY_ARRIVAL = attrgetter("order")


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
        self.waiting: deque[Seat] = deque()
        self.running: list[Seat] = []
        self.preempted = 0
        self._max_batch = max_batch
        self._room = max_batch
        self._calm_rounds = 0
        self._arrived = 0
        self._newest_turn = 0
        self._share = 0.0
        self._settled = False
        self._unread: set[Seat] = set()
        self._memory = memory

    @property
    def seats(self) -> list[Seat]:
        """All requests, the running ones first."""
        return [*self.running, *self.waiting]

    @property
    def in_round(self) -> list[Seat]:
        """The running requests that take part in the next round; all of them if each has exceeded its share."""
        return [seat for seat in self.running if seat.overtime <= self._share] or self.running

    @property
    def paused(self) -> list[Seat]:
        """The waiting requests that have begun, and keep their rows."""
        return [seat for seat in self.waiting if seat.holds_rows]

    @property
    def ready(self) -> bool:
        """Whether a round would do anything; it would not if all requests pause until their texts are read."""
        return bool(self.running) or not self._settled or self._full() != self._unread

    def add(self, request: Request) -> Seat:
        """Queue a request."""
        self._newest_turn = max(self._newest_turn, self._arrived)
        seat = Seat(request, self._arrived, self._newest_turn)
        self._arrived += 1
        self.waiting.append(seat)
        self._settled = False
        return seat

    def pause_unread(self) -> list[Seat]:
        """Pause the texts whose readers take no more for now.

        Returns:
            The requests that give up their rows, since the next text needs them.
        """
        if (unread := self._full()) != self._unread:
            self._unread = unread
            self._settled = False
        for seat in unread.intersection(self.running):
            self._pause(seat)
        released_seats = []
        paused_seats = sorted(unread.intersection(self.paused), key=BY_ARRIVAL)
        while paused_seats and len(self.running) < self._room and self._lacks_rows(self._first(self.waiting)):
            released_seats.append(paused_seats.pop())
            self._release(released_seats[-1])
        return released_seats

    def admit(self) -> list[Seat]:
        """Let waiting requests run as far as there is room.

        Returns:
            The requests that begin, without those that continue after a pause.
        """
        self._regain()
        admitted = []
        while not self._settled:
            seat = self._next()
            if seat is None or not self._make_place(seat):
                self._settled = True
                break
            self.waiting.remove(seat)
            self.running.append(seat)
            if not seat.holds_rows:
                self._memory.reserved += seat.rows
                self._send_back(seat.group)
                admitted.append(seat)
            seat.admit()
        return admitted

    def charge(self, seconds: float) -> None:
        """Charge each running request the time of its constraints in a round, less its equal share of the round.

        Args:
            seconds: the time of the whole round.
        """
        self._share = seconds / max(len(self.running), 1)
        for seat in self.running:
            seat.charge(self._share)

    def remove(self, seat: Seat) -> None:
        """Remove a request that has ended from the queue or the batch, and release its rows."""
        self._take_out(seat)
        seat.end()

    def halve(self) -> list[Seat]:
        """Let the younger half of the batch wait again, and limit the batch to the other half.

        Returns:
            The requests that gave up their rows, the oldest first; none if only one request holds rows.
        """
        remaining_count = max(len(self.running) // 2, 1)
        return self.put_back(sorted(self.running, key=BY_ARRIVAL)[remaining_count:])

    def put_back(self, seats: Sequence[Seat]) -> list[Seat]:
        """Let running requests wait again, at their place in the queue, and limit the batch to those still running.

        Returns:
            The requests that gave up their rows, the oldest first: the given ones and all paused ones.
        """
        released_seats = sorted([*seats, *self.paused], key=BY_ARRIVAL)
        for seat in released_seats:
            self._take_out(seat)
            seat.give_up_rows()
        self.waiting = deque(sorted([*released_seats, *self.waiting], key=BY_ARRIVAL))
        self.preempted += len(released_seats)
        self._room = max(len(self.running), 1)
        self._calm_rounds = 0
        return released_seats

    def by_turns(self, seats: Sequence[Seat]) -> list[Seat]:
        """Sort requests by age, with the first of every group before the second of any group."""
        group_counts: Counter[Hashable] = Counter()
        seats_by_turn: list[tuple[int, Seat]] = []
        for seat in sorted(seats, key=BY_ARRIVAL):
            seats_by_turn.append((group_counts[seat.group], seat))
            group_counts[seat.group] += 1
        return [seat for _, seat in sorted(seats_by_turn, key=lambda turn_and_seat: turn_and_seat[0])]

    def _full(self) -> set[Seat]:
        return {seat for seat in self.seats if seat.request.reader.full}

    def _pause(self, seat: Seat) -> None:
        self.running.remove(seat)
        self.waiting = deque(sorted([seat, *self.waiting], key=BY_ARRIVAL))
        seat.pause()

    def _release(self, seat: Seat) -> None:
        """Let a paused request give up its rows."""
        self._memory.reserved -= seat.rows
        self._settled = False
        seat.give_up_rows()

    def _take_out(self, seat: Seat) -> None:
        """Take a request out of the queue or the batch, and release its rows."""
        if seat in self.running:
            self.running.remove(seat)
        elif seat in self.waiting:
            self.waiting.remove(seat)
        if seat.holds_rows:
            self._memory.reserved -= seat.rows
        self._settled = False

    def _send_back(self, group: Hashable) -> None:
        """Let all waiting requests of a group that has just begun one go behind those of other groups."""
        for seat in self.waiting:
            if seat.group == group and not seat.holds_rows:
                seat.wait_until(self._newest_turn + 1)

    def _next(self) -> Seat | None:
        """The request whose turn it is, or a paused one if there is not enough memory for that yet."""
        seat = self._first(self.waiting)
        return self._first(self.paused) if self._lacks_rows(seat) else seat

    def _first(self, seats: Iterable[Seat]) -> Seat | None:
        """The request whose turn it is, among those whose readers take more."""
        at_once = Counter(seat.group for seat in self.running)
        candidates = (seat for seat in seats if seat not in self._unread)
        return min(candidates, key=lambda seat: (at_once[seat.group], seat.turn, seat.order), default=None)

    def _lacks_rows(self, seat: Seat | None) -> bool:
        return not (seat is None or seat.holds_rows or self._memory.fits(seat.rows))

    def _make_place(self, seat: Seat) -> bool:
        """Whether a request may run; pauses another one if it must."""
        if len(self.running) < self._room:
            return True
        at_once = Counter(running_seat.group for running_seat in self.running)
        youngest = max(self.running, key=lambda running_seat: (at_once[running_seat.group], running_seat.order))
        if at_once[youngest.group] < at_once[seat.group] + 2:
            return False
        self._pause(youngest)
        return True

    def _regain(self) -> None:
        self._calm_rounds += 1
        if self._room < self._max_batch and self._calm_rounds >= REGAIN_ROUNDS:
            self._room += 1
            self._calm_rounds = 0
            self._settled = False
