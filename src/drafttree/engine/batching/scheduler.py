"""The scheduler decides which requests wait, run, pause and start over."""

from collections import Counter, deque
from collections.abc import Hashable, Iterable, Sequence
from operator import attrgetter

from drafttree.engine.batching.seat import Seat, Status
from drafttree.engine.memory import KVMemory
from drafttree.engine.request import Request

REGAIN_ROUNDS = 256
"""After memory ran out, the limit of the batch rises by one request every this many rounds."""
BY_ARRIVAL = attrgetter("order")


class Scheduler:
    """Admits requests while batch and memory have room. Groups take turns; within a group the oldest goes first.

    - The next request is of the group with the fewest running requests, so a large group delays no other.
    - Of several such groups, the one that has waited longest is next: when a request begins, the rest of its group goes
      to the end of the queue.
    - If the batch is full, the youngest request of a group with at least two more running requests pauses. It keeps its
      rows, and continues when its group is next.
    - If there is not enough memory for the next request, only paused requests may overtake it, since they need no more.
      So no request starves.
    - A request pauses while its reader is full (`Reader.full`). It gives up its rows if the next request needs them.
    - A request whose constraints take longer than its equal share of the rounds sits out some rounds. So a slow grammar
      slows down its own text only.

    Args:
        max_batch: maximum number of running requests.
        memory: reserves the rows of their KV caches.

    Attributes:
        waiting: the requests that wait or pause, in order of arrival.
        running: the requests in the batch.
        preempted: how often a running or paused request lost its rows because memory ran out.
    """

    def __init__(self, max_batch: int, memory: KVMemory) -> None:
        self.waiting: deque[Seat] = deque()
        self.running: list[Seat] = []
        self.preempted = 0
        self._max_batch = max_batch
        self._batch_limit = max_batch
        self._rounds_at_limit = 0
        self._arrived = 0
        self._newest_turn = 0
        self._equal_share = 0.0
        self._is_settled = False
        self._full_seats: set[Seat] = set()
        self._memory = memory

    @property
    def seats(self) -> list[Seat]:
        """All requests, the running ones first."""
        return [*self.running, *self.waiting]

    @property
    def in_round(self) -> list[Seat]:
        """The requests that take part in the next round: those within their share, or all if there are none.

        Not those that wait for the prompt of another one, which would otherwise keep that one waiting.
        """
        begun_seats = [seat for seat in self.running if seat.status is not Status.HELD]
        return [seat for seat in begun_seats if seat.overtime <= self._equal_share] or begun_seats

    @property
    def paused(self) -> list[Seat]:
        """The requests that pause, and so keep their rows."""
        return [seat for seat in self.waiting if seat.holds_rows]

    @property
    def ready(self) -> bool:
        """Whether a round would do anything. It would not if all requests pause for their readers."""
        return bool(self.running) or not self._is_settled or self._with_full_readers() != self._full_seats

    def add(self, request: Request) -> Seat:
        """Queue a request."""
        self._newest_turn = max(self._newest_turn, self._arrived)
        seat = Seat(request, self._arrived, self._newest_turn)
        self._arrived += 1
        self.waiting.append(seat)
        self._is_settled = False
        return seat

    def pause_full(self) -> list[Seat]:
        """Pause the requests whose readers are full.

        Returns:
            The requests that gave up their rows, since the next request needs them.
        """
        if (full_seats := self._with_full_readers()) != self._full_seats:
            self._full_seats = full_seats
            self._is_settled = False
        for seat in full_seats.intersection(self.running):
            self._pause(seat)
        released_seats = []
        paused_seats = sorted(full_seats.intersection(self.paused), key=BY_ARRIVAL)
        while paused_seats and len(self.running) < self._batch_limit and self._lacks_rows(self._first(self.waiting)):
            released_seats.append(paused_seats.pop())
            self._release(released_seats[-1])
        return released_seats

    def admit(self) -> list[Seat]:
        """Admit waiting requests while there is room.

        Returns:
            The admitted requests, without those that continue after a pause.
        """
        self._raise_batch_limit()
        admitted = []
        while not self._is_settled:
            seat = self._next()
            if seat is None or not self._make_place(seat):
                self._is_settled = True
                break
            self.waiting.remove(seat)
            self.running.append(seat)
            if not seat.holds_rows:
                self._memory.reserved += seat.rows
                self._queue_group_last(seat.group)
                admitted.append(seat)
            seat.admit()
        return admitted

    def charge(self, seconds: float) -> None:
        """Charge each running request for the time of its constraints in a round, beyond an equal share of the round.

        Args:
            seconds: time of the whole round.
        """
        self._equal_share = seconds / max(len(self.running), 1)
        for seat in self.running:
            seat.charge(self._equal_share)

    def remove(self, seat: Seat) -> None:
        """Remove a request that has ended from the queue or the batch, and release its rows."""
        self._take_out(seat)
        seat.end()

    def halve(self) -> list[Seat]:
        """Put the younger half of the batch back into the queue, and limit the batch to the older half.

        Returns:
            The requests that gave up their rows, the oldest first; none if only one request holds rows.
        """
        remaining_count = max(len(self.running) // 2, 1)
        return self.put_back(sorted(self.running, key=BY_ARRIVAL)[remaining_count:])

    def put_back(self, seats: Sequence[Seat]) -> list[Seat]:
        """Put running requests back into the queue by age, and limit the batch to those that still run.

        Paused requests give up their rows too.

        Returns:
            The requests that gave up their rows, the oldest first.
        """
        released_seats = sorted([*seats, *self.paused], key=BY_ARRIVAL)
        for seat in released_seats:
            self._take_out(seat)
            seat.give_up_rows()
        self.waiting = deque(sorted([*released_seats, *self.waiting], key=BY_ARRIVAL))
        self.preempted += len(released_seats)
        self._batch_limit = max(len(self.running), 1)
        self._rounds_at_limit = 0
        return released_seats

    def by_turns(self, seats: Sequence[Seat]) -> list[Seat]:
        """Sort requests: the oldest of each group by age, then the second oldest of each group, and so on."""
        group_counts: Counter[Hashable] = Counter()
        seats_by_turn: list[tuple[int, Seat]] = []
        for seat in sorted(seats, key=BY_ARRIVAL):
            seats_by_turn.append((group_counts[seat.group], seat))
            group_counts[seat.group] += 1
        return [seat for _, seat in sorted(seats_by_turn, key=lambda turn_and_seat: turn_and_seat[0])]

    def _with_full_readers(self) -> set[Seat]:
        return {seat for seat in self.seats if seat.request.reader.full}

    def _pause(self, seat: Seat) -> None:
        self.running.remove(seat)
        self.waiting = deque(sorted([seat, *self.waiting], key=BY_ARRIVAL))
        seat.pause()

    def _release(self, seat: Seat) -> None:
        """Let a paused request give up its rows."""
        self._memory.reserved -= seat.rows
        self._is_settled = False
        seat.give_up_rows()

    def _take_out(self, seat: Seat) -> None:
        """Take a request out of the queue or the batch, and release its rows."""
        if seat in self.running:
            self.running.remove(seat)
        elif seat in self.waiting:
            self.waiting.remove(seat)
        if seat.holds_rows:
            self._memory.reserved -= seat.rows
        self._is_settled = False

    def _queue_group_last(self, group: Hashable) -> None:
        """Put the waiting requests of a group, of which one has just begun, behind those of other groups."""
        for seat in self.waiting:
            if seat.group == group and not seat.holds_rows:
                seat.wait_until(self._newest_turn + 1)

    def _next(self) -> Seat | None:
        """The next request to admit: a paused one if there is not enough memory for the first; None if none."""
        seat = self._first(self.waiting)
        return self._first(self.paused) if self._lacks_rows(seat) else seat

    def _first(self, seats: Iterable[Seat]) -> Seat | None:
        """The request whose turn it is, among those whose readers are not full."""
        running_counts = Counter(seat.group for seat in self.running)
        candidates = (seat for seat in seats if seat not in self._full_seats)
        return min(candidates, key=lambda seat: (running_counts[seat.group], seat.turn, seat.order), default=None)

    def _lacks_rows(self, seat: Seat | None) -> bool:
        return not (seat is None or seat.holds_rows or self._memory.fits(seat.rows))

    def _make_place(self, seat: Seat) -> bool:
        """Return whether the batch has a place for a request; if need be, another request pauses for it."""
        if len(self.running) < self._batch_limit:
            return True
        running_counts = Counter(running_seat.group for running_seat in self.running)
        youngest = max(self.running, key=lambda running_seat: (running_counts[running_seat.group], running_seat.order))
        if running_counts[youngest.group] < running_counts[seat.group] + 2:
            return False
        self._pause(youngest)
        return True

    def _raise_batch_limit(self) -> None:
        self._rounds_at_limit += 1
        if self._batch_limit < self._max_batch and self._rounds_at_limit >= REGAIN_ROUNDS:
            self._batch_limit += 1
            self._rounds_at_limit = 0
            self._is_settled = False
