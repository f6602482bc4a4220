"""The seat of a request in an engine: its place in the queue, and its status."""

from enum import StrEnum

from drafttree.engine.request import Request


class Status(StrEnum):
    """The status of a request in an engine.

    A request that gives up its rows is `QUEUED` again. A request that continues after a pause has the status that it
    had before.
    """

    QUEUED = "queued"
    """The request waits for a place in the batch and for rows of the KV caches."""
    HELD = "held"
    """It has a place and rows, and waits for another request that is reading the beginning of its prompt."""
    READING = "reading"
    """The target is reading its prompt."""
    WRITING = "writing"
    """Each round writes some of its tokens."""
    PAUSED = "paused"
    """It keeps its rows, and waits for a place in the batch or for its reader."""
    ENDED = "ended"
    """Its text has ended, or an error has ended it."""


RUNNING = (Status.HELD, Status.READING, Status.WRITING)


class Seat:
    """A request's place in the queue of an engine, and its status.

    Args:
        request: the request.
        order: number of the request in order of arrival.
        turn: among waiting requests whose groups have equally many running requests, the smallest turn is next.

    Attributes:
        request: as given.
        order: as given.
        turn: as given, or as set by `wait_until`.
        status: the status of the request.
        overtime: seconds that its constraints took beyond its share of the rounds. The rounds that it then sits out
            reduce them.
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
        """Wait behind the requests with a smaller turn than this."""
        self.turn = turn

    def admit(self) -> None:
        """Take a place in the batch, for the first time or after a pause."""
        self.status = self._before_pause if self.status is Status.PAUSED else Status.HELD

    def begin(self) -> None:
        """Begin to read the prompt, or to write if all of its rows were copied."""
        self.status = Status.READING
        self.note_progress()

    def note_progress(self) -> None:
        """Change from reading to writing if the whole prompt is read."""
        if self.status is Status.READING and not self.request.unread:
            self.status = Status.WRITING

    def pause(self) -> None:
        """Leave the batch and keep the rows."""
        self._before_pause = self.status
        self.status = Status.PAUSED

    def give_up_rows(self) -> None:
        """Return to the queue as a request that has not begun."""
        self.status = Status.QUEUED

    def end(self) -> None:
        """Leave the engine."""
        self.status = Status.ENDED

    def charge(self, equal_share: float) -> None:
        """Add the seconds that constraints took in a round to the overtime, less this equal share of the round."""
        excess_seconds = self.request.text.constraints.take_seconds() - equal_share
        self.overtime = max(self.overtime + excess_seconds, 0.0)
