"""Hours of an engine's life in minutes: requests that come, are read and are cancelled at random, and what is left."""

import asyncio
import gc
import random
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from drafttree import Decoder, Generation
from drafttree.engine.batching import Engine, Handle
from testing.batches import Asked, check_text

CANCELLED, FAILING = 0.1, 0.02
"""Shares of the requests that are cancelled, and that fail."""
THREADS, TASKS = 3, 4
"""Those that submit requests, one after the other each."""
LONGEST_PAUSE = 0.05
SAMPLES = 10
"""How often the memory is looked at at least."""


class Breaks:
    """A logits processor that fails behind some tokens."""

    def __init__(self, tokens: int) -> None:
        self.tokens = tokens

    def __call__(self, input_ids, scores):
        if input_ids.shape[1] >= self.tokens:
            raise ArithmeticError("told to fail")
        return scores


def resident_bytes() -> int:
    """Memory of this process."""
    gc.collect()
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))


@dataclass
class Soak:
    """A run of random requests.

    Args:
        decoder: whose engine is used.
        asked: the requests that are repeated.
        seconds: for which they come.
        seed: of who asks for what, and when.

    Attributes:
        expected: the text of each request alone.
        handles: how many were made.
        tokens: in their texts, by the handles.
        cancelled: texts that ended so.
        failed: requests that failed, as they were told to.
        memory: bytes of the process, from the first sample on.
        wrong: what went wrong, by the threads that saw it.
    """

    decoder: Decoder
    asked: Sequence[Asked]
    seconds: float
    seed: int = 0
    expected: list[Generation] = field(default_factory=list)
    handles: int = 0
    tokens: int = 0
    cancelled: int = 0
    failed: int = 0
    memory: list[int] = field(default_factory=list)
    wrong: list[BaseException] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _end: float = 0.0

    def run(self, **options) -> Engine:
        """Submit requests for the time that was given; the closed engine."""
        self.expected = [each.alone(self.decoder) for each in self.asked]
        with Engine(self.decoder, **options) as engine:
            self._end = time.monotonic() + self.seconds
            readers = [threading.Thread(target=self._guarded, args=(engine, each)) for each in range(THREADS)]
            readers.append(threading.Thread(target=self._guarded, args=(engine, None)))
            for reader in readers:
                reader.start()
            self._watch(engine)
            for reader in readers:
                reader.join()
        return engine

    def _watch(self, engine: Engine) -> None:
        """Look at the memory now and then, and print how it goes."""
        begun, pause = time.monotonic(), min(60.0, self.seconds / SAMPLES)
        while time.monotonic() < self._end and not self.wrong:
            time.sleep(min(pause, max(self._end - time.monotonic(), 0)))
            self.memory.append(resident_bytes())
            seconds = time.monotonic() - begun
            print(
                f"{seconds / 60:5.1f} min: {self.handles} requests, {engine.metrics.tokens / seconds:.0f} tokens/s, "
                f"{self.cancelled} cancelled, {self.failed} failed, {self.memory[-1] / 1e6:.1f} MB"
            )

    def _guarded(self, engine: Engine, thread: int | None) -> None:
        try:
            if thread is None:
                asyncio.run(self._all_tasks(engine))
            else:
                self._in_thread(engine, random.Random(f"{self.seed} thread {thread}"))
        except BaseException as error:
            self.wrong.append(error)

    def _choices(self, rng: random.Random) -> Iterator[tuple[int, bool]]:
        """Which requests to make, and whether to let them fail, until the time is over."""
        while time.monotonic() < self._end and not self.wrong:
            yield rng.randrange(len(self.asked)), rng.random() < FAILING

    def _submit(self, engine: Engine, place: int, breaks: bool) -> Handle:
        asked = self.asked[place]
        options = dict(asked.options)
        if breaks:
            options["logits_processor"] = [*options.get("logits_processor", ()), Breaks(len(asked.prompt) + 2)]
        return engine.submit(asked.prompt, **options)

    def _in_thread(self, engine: Engine, rng: random.Random) -> None:
        for place, breaks in self._choices(rng):
            handle = self._submit(engine, place, breaks)
            leave = _chunks_to_read(rng)
            read: list[int] = []
            try:
                for count, chunk in enumerate(handle):
                    read += chunk.tokens
                    if count == leave:
                        handle.cancel()
            except ArithmeticError as error:
                self._count_failed(handle, error, breaks)
            else:
                self._check(handle, place, read)
            time.sleep(rng.random() * LONGEST_PAUSE)

    async def _all_tasks(self, engine: Engine) -> None:
        await asyncio.gather(*(self._in_task(engine, random.Random(f"{self.seed} task {n}")) for n in range(TASKS)))

    async def _in_task(self, engine: Engine, rng: random.Random) -> None:
        for place, breaks in self._choices(rng):
            handle = self._submit(engine, place, breaks)
            leave, count = _chunks_to_read(rng), 0
            read: list[int] = []
            try:
                async for chunk in handle:
                    read += chunk.tokens
                    if count == leave:
                        handle.cancel()
                    count += 1
            except ArithmeticError as error:
                self._count_failed(handle, error, breaks)
            else:
                self._check(handle, place, read)
            await asyncio.sleep(rng.random() * LONGEST_PAUSE)

    def _count_failed(self, handle: Handle, error: Exception, breaks: bool) -> None:
        assert breaks, error
        with self._lock:
            self.handles, self.failed = self.handles + 1, self.failed + 1
            self.tokens += handle.metrics.tokens

    def _check(self, handle: Handle, place: int, read: list[int]) -> None:
        """Compare a text with the one alone; a cancelled one with its beginning."""
        found, whole = handle.result(0), self.expected[place]
        assert read == found.tokens
        stopped = found.finish_reason == "cancelled"
        if stopped:
            assert found.tokens == whole.tokens[: len(found.tokens)], self.asked[place]
        else:
            check_text(self.decoder, self.asked[place], found, whole)
        with self._lock:
            self.handles, self.cancelled = self.handles + 1, self.cancelled + stopped
            self.tokens += len(found.tokens)


def _chunks_to_read(rng: random.Random) -> int | None:
    """After how many chunks to cancel, None not to."""
    return rng.randrange(4) if rng.random() < CANCELLED else None
