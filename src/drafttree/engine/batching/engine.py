"""The engine: a thread that owns the model and writes many texts at once."""

import atexit
import threading
from collections import deque
from types import TracebackType
from typing import Protocol, Self, Unpack, runtime_checkable

from drafttree.core.counts import MAX_BATCH, check_count
from drafttree.core.errors import ConfigError, EngineClosedError, InputError
from drafttree.engine.batching.batch_loop import BatchLoop
from drafttree.engine.batching.engine_metrics import EngineMetrics
from drafttree.engine.batching.handle import Handle
from drafttree.engine.batching.kv_memory import KVMemory
from drafttree.engine.batching.openmp import release_idle_workers
from drafttree.engine.batching.served_request import ServedRequest
from drafttree.engine.compatibility import check_budget
from drafttree.engine.generation_options import GenerationOptions
from drafttree.engine.prompt import Prompt, is_batch
from drafttree.engine.request import Request, RoundObserver
from drafttree.engine.target_lock import lock_of
from drafttree.models import Model
from drafttree.verifiers.base import Verifier


@runtime_checkable
class EngineDecoder(Protocol):
    """What an engine asks of a `drafttree.engine.decoder.Decoder`."""

    target: Model
    verifier: type[Verifier] | None

    def prepare(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Request: ...

    def batch_loop(self, max_batch: int, *, memory: KVMemory | None = None, budget: int | None = None) -> BatchLoop: ...


class Engine:
    """Writes the texts of many requests at once (continuous batching), each as if it were alone.

    Requests join and leave at any round. In a round every request drafts its tree, one packed draft pass per level for
    all of them, and one packed target pass scores all trees and parts of new prompts. How many drafted nodes are
    scored is one budget for all, by how likely each is to be accepted and what a row costs; it may be none.

    Use it as a context manager, or call `close`; one that is still open when Python ends is closed then. The decoder
    may be used by other threads and engines meanwhile: its target runs their rounds in turn (see `TargetLock`), so each
    takes longer.

    Args:
        decoder: the decoder whose target, drafter, policy and verifier are used.
        max_batch: requests that run at once, at most; the others wait in the order they came.
        max_kv_tokens: rows that their KV caches may take together, prompt, text and largest tree of each; None for half
            of the device's memory.
        budget: drafted nodes of a request and round, as a mean over the batch, always drafted; None for as many as
            are worth their time, which is measured.

    Attributes:
        decoder: as given.

    Raises:
        ConfigError: the decoder is none, a number is no whole one of at least 1, or a budget is given for trees that
            may not be cut to it.
    """

    def __init__(
        self,
        decoder: EngineDecoder,
        *,
        max_batch: int = MAX_BATCH,
        max_kv_tokens: int | None = None,
        budget: int | None = None,
    ) -> None:
        if not isinstance(decoder, EngineDecoder):
            raise ConfigError(f"decoder is {decoder!r}; give a Decoder, such as drafttree.load makes")
        check_count("max_batch", max_batch)
        check_budget(budget, decoder.verifier)
        self.decoder = decoder
        with lock_of(decoder.target):
            self._memory = KVMemory(decoder.target, max_kv_tokens)
            self._loop = decoder.batch_loop(max_batch, memory=self._memory, budget=budget)
        self._changed = threading.Condition()
        self._inbox: deque[ServedRequest] = deque()
        self._submitted = 0
        self._closing = False
        self._ended = threading.Event()
        release_idle_workers()
        self._thread = threading.Thread(target=self._run, name="drafttree-engine", daemon=True)
        atexit.register(self.close)  # Python aborts if it ends while a daemon thread is inside torch
        self._thread.start()

    @property
    def metrics(self) -> EngineMetrics:
        """What it has done so far."""
        return self._loop.metrics

    @property
    def memory(self) -> KVMemory:
        """Rows of the KV caches: how many there are, and how many are reserved."""
        return self._memory

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests: it was closed, or its thread has died."""
        return self._closing

    @property
    def kv_cache_usage(self) -> float:
        """The share of the rows of the KV cache that running requests have reserved, from 0 to 1."""
        return self._memory.usage

    def submit(
        self,
        prompt: Prompt,
        *,
        observer: RoundObserver | None = None,
        max_unread: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Handle:
        """Check a request and let it wait for its turn; may be called from any thread.

        Args:
            prompt: as for `Decoder.generate`, but not a list of prompts.
            observer: sees the rounds of the text, each before its chunk is given out.
            max_unread: chunks that may wait to be read; at so many the text waits until half of them have been, and
                lets others have its place. None for a text that never waits for its reader.
            **options: as for `Decoder.generate`.

        Raises:
            EngineClosedError: the engine was closed.
            ContextError: the request could never run: it needs more rows than there are.
            DraftTreeError: as for `Decoder.generate`.
        """
        self._check_open()
        if is_batch(prompt):
            raise InputError("submit takes one prompt; call it for each of a list, or call Decoder.generate")
        request = self.decoder.prepare(prompt, **options)
        request.observer = observer
        self._memory.check(request.capacity)
        served = ServedRequest(request)
        served.reader = handle = Handle(
            lambda reason: self._cancel(served, reason), request.metrics, max_unread, self._wake
        )
        with self._changed:
            self._check_open()
            served.order = self._submitted
            self._submitted += 1
            self._inbox.append(served)
            self._changed.notify_all()
        return handle

    def close(self, *, drain: bool = False) -> None:
        """End the engine; a second call does nothing.

        Args:
            drain: write all submitted texts to their end first. Without, they end where they are, with the finish
                reason "cancelled". Ctrl-C while it waits ends them so too.
        """
        try:
            self._end(drain)
        except BaseException:
            self._end(drain=False)
            raise

    def _end(self, drain: bool) -> None:
        """Take no more requests, and wait for the thread unless this is it."""
        if not self._thread.is_alive():  # in a forked process too, where a lock may be held for ever
            self._closing = True
            return
        with self._changed:
            self._closing = True
            if not drain:
                self._loop.cancel_all()
            self._changed.notify_all()
        if threading.current_thread() is not self._thread:
            self._ended.wait()  # a join that Ctrl-C interrupts marks the thread as ended (CPython 90882)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=kind is None)

    def __repr__(self) -> str:
        state = "closed" if self._closing else "open"
        return f"Engine({state}, {self.metrics.running} running, {self.metrics.waiting} waiting, {self.decoder!r})"

    def _check_open(self) -> None:
        if self._closing:
            raise EngineClosedError("the engine is closed; make another one to submit requests")

    def _cancel(self, served: ServedRequest, reason: str) -> None:
        served.cancel(reason)
        self._wake()

    def _wake(self) -> None:
        """Look again whether there is anything to do."""
        with self._changed:
            self._changed.notify_all()

    def _run(self) -> None:
        """Run rounds while there are requests, and wait for some where there are none."""
        try:
            while self._take():
                with lock_of(self.decoder.target):
                    self._loop.step()
        except BaseException as error:
            self._closing = True
            self._take_all()
            self._loop.fail(error if isinstance(error, Exception) else EngineClosedError(f"the engine died: {error!r}"))
            raise
        finally:
            atexit.unregister(self.close)
            self._ended.set()

    def _take(self) -> bool:
        """Hand what was submitted to the loop; whether there is anything to do, or will be."""
        with self._changed:
            loop = self._loop
            self._changed.wait_for(lambda: self._inbox or loop.ready or (self._closing and not loop.busy))
            self._take_all()
            return self._loop.busy

    def _take_all(self) -> None:
        while self._inbox:
            self._loop.add(self._inbox.popleft())
