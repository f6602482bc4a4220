"""The seat of a request in an engine: its place in the queue, and how far it has come."""

from enum import StrEnum

from drafttree.engine.request import Request


class Status(StrEnum):
    """How far a request has come.

    A request that gives up its rows is `QUEUED` again, and one that goes on after a pause is what it was before.
    """

    QUEUED = "queued"
    """It waits for a place in the batch and for rows of the KV caches."""
    HELD = "held"
    """It has both and has not begun: another request is reading the beginning of its prompt."""
    READING = "reading"
    """The target is reading its prompt."""
    WRITING = "writing"
    """Each round writes some of its tokens."""
    PAUSED = "paused"
    """It has begun and keeps its rows, and waits for a place in the batch or until its text is read."""
    ENDED = "ended"
    """Its text has ended, or an error has ended it."""


RUNNING = (Status.HELD, Status.READING, Status.WRITING)


class Seat:
    """The place of a request among those of an engine.

    Args:
        request: the request.
        order: its place in the order of arrival; the smallest came first.
        turn: its place among waiting requests of groups with equally many running ones; the smallest is next.

    Attributes:
        request: as given.
        order: as given.
        turn: as given, or as last given by `wait_until`.
        status: how far the request has come.
        overtime: seconds that its constraints took beyond its share of the rounds, and that it has not waited for yet.
    """

    def __init__(self, request: Request, order: int, turn: int) -> None:
        self.request = request
        self.order = order
        self.turn = turn
        self.status = Status.QUEUED
        self.overtime = 0.0
        self._before_pause = Status.QUEUED

    def __repr__(self) -> str:
        return f"Seat({self.order}, {self.status})"

    @property
    def group(self) -> object:
        """The group of the request."""
        return self.request.task.group

    @property
    def rows(self) -> int:
        """The rows of the KV caches that the request needs."""
        return self.request.task.capacity

    @property
    def holds_rows(self) -> bool:
        """Whether its rows are reserved."""
        return self.status in RUNNING or self.status is Status.PAUSED

    def wait_until(self, turn: int) -> None:
        """Wait behind the requests whose turn comes before this one."""
        self.turn = turn

    def admit(self) -> None:
        """Take a place in the batch: anew, or as before the pause."""
        self.status = self._before_pause if self.status is Status.PAUSED else Status.HELD

    def begin(self) -> None:
        """Begin to read the prompt, or to write if nothing of it is left to read."""
        self.status = Status.READING
        self.note_progress()

    def note_progress(self) -> None:
        """Go on from reading to writing if the whole prompt is read."""
        if self.status is Status.READING and not self.request.unread:
            self.status = Status.WRITING

    def pause(self) -> None:
        """Leave the batch and keep the rows."""
        self._before_pause = self.status
        self.status = Status.PAUSED

    def give_up_rows(self) -> None:
        """Wait again as a request that has not begun."""
        self.status = Status.QUEUED

    def end(self) -> None:
        """Leave the engine."""
        self.status = Status.ENDED

    def charge(self, seconds: float) -> None:
        """Charge the time of the constraints since the last call, less this share of a round."""
        excess_seconds = self.request.text.constraints.take_seconds() - seconds
        self.overtime = max(self.overtime + excess_seconds, 0.0)
