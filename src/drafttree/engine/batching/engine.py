"""The engine: a thread that owns the model and generates many texts at once."""

import asyncio
import atexit
import contextlib
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Hashable
from types import TracebackType
from typing import Protocol, Self, Unpack, runtime_checkable

from drafttree.core.counts import MAX_BATCH, MAX_TOKEN_GAP, check_count
from drafttree.core.errors import ConfigError, EngineClosedError, InputError
from drafttree.core.machine_memory import release_unused_memory
from drafttree.core.openmp import release_idle_workers
from drafttree.engine.batching.handle import Handle
from drafttree.engine.batching.loop import BatchLoop
from drafttree.engine.compatibility import check_budget, hides_state
from drafttree.engine.generation import Fidelity
from drafttree.engine.generation_options import GenerationOptions
from drafttree.engine.image_prompt import EncodedPrompt
from drafttree.engine.memory import KVMemory
from drafttree.engine.metrics import EngineMetrics
from drafttree.engine.request import Request, RequestContext, RoundObserver, check_observer
from drafttree.engine.target_lock import lock_of
from drafttree.models import Model
from drafttree.text.prompt import Prompt, is_batch
from drafttree.verifiers.base import Verifier

BUSY_SECONDS = 5.0
"""Seconds of rounds after which unused memory is released, which takes 1 to 17 ms."""
IDLE_SECONDS = 1.0
"""Seconds without a request after which unused memory is released, once until the next request."""


@runtime_checkable
class EngineDecoder(Protocol):
    """The part of a `drafttree.engine.decoder.Decoder` that an engine uses."""

    target: Model
    verifier: type[Verifier] | None

    @property
    def fidelity(self) -> Fidelity: ...

    def prepare(
        self, prompt: Prompt | EncodedPrompt | None, context: RequestContext, **options: Unpack[GenerationOptions]
    ) -> Request: ...

    def batch_loop(
        self, max_batch: int, *, max_kv_tokens: int | None, budget: int | None, max_token_gap: float
    ) -> BatchLoop: ...


class Engine:
    """Generates the texts of many requests at the same time (continuous batching). Each text is as if it were generated
    alone.

    Requests join and leave after any round. In a round, every request drafts its tree; one packed draft pass per level
    serves all requests. Then one packed target pass scores all trees and parts of new prompts. All trees share one
    budget of drafted nodes. It depends on how likely each node is to be accepted and on what a row costs, and may be 0.

    Shared prefixes are read once. A request copies the KV rows of the longest prefix that another request, finished
    or not, has read. It waits for a prefix that is being read. Requests with `prompt_logprobs` or
    `reuse_prefix=False` do not share.

    Use it as a context manager, or call `close`. An open engine is closed when Python exits; one without references
    ends when its texts are finished. Other threads and engines may use the decoder at the same time. They then take
    turns, round by round (see `TargetLock`), so each takes longer.

    Args:
        decoder: the decoder whose target, drafter, policy and verifier are used.
        max_batch: maximum number of running requests; others wait in order of arrival.
        max_kv_tokens: maximum number of rows in all KV caches, for prompt, text and largest tree of each request. None
            for half of the device's memory.
        prefix_tokens: maximum number of tokens of finished texts kept for reuse, within those rows; the least recently
            used are dropped first. None leaves it to the decoder's `prefixes`; 0 disables sharing by default.
        budget: fixed number of drafted nodes per request and round, as a mean over the batch. None drafts as many as
            pay off, which is measured.
        max_token_gap: maximum time in seconds between two tokens of a text while prompts of others are read. If twice
            the time of a round without prompts is longer, that is the maximum. A longer gap lets new texts begin
            sooner. `math.inf` reads up to 512 tokens of prompts in every round.

    Attributes:
        decoder: as given.

    Raises:
        ConfigError: if `decoder` is not a decoder, a number is not a whole number of at least 1 (0 for
            `prefix_tokens`), a budget is given for trees that must not be cut, or `max_token_gap` is not a number above
            0.
    """

    def __init__(
        self,
        decoder: EngineDecoder,
        *,
        max_batch: int = MAX_BATCH,
        max_kv_tokens: int | None = None,
        prefix_tokens: int | None = None,
        budget: int | None = None,
        max_token_gap: float = MAX_TOKEN_GAP,
    ) -> None:
        if not isinstance(decoder, EngineDecoder):
            raise ConfigError(f"decoder is {decoder!r}; give a Decoder, such as drafttree.load makes")
        check_count("max_batch", max_batch)
        if prefix_tokens is not None:
            check_count("prefix_tokens", prefix_tokens, ", or None for what fits", minimum=0)
        check_budget(budget, decoder.verifier)
        if not isinstance(max_token_gap, int | float) or isinstance(max_token_gap, bool) or not max_token_gap > 0:
            raise ConfigError(f"max_token_gap is {max_token_gap!r}; give seconds above 0, or math.inf for no limit")
        self.decoder = decoder
        with lock_of(decoder.target):
            self._loop = decoder.batch_loop(
                max_batch, max_kv_tokens=max_kv_tokens, budget=budget, max_token_gap=max_token_gap
            )
        if prefix_tokens is not None:
            self.memory.prefixes.limit(prefix_tokens)
        self._thread = self._start(self._loop)
        weakref.finalize(self, self._thread.finish).atexit = False  # at exit, the thread closes itself

    def _start(self, loop: BatchLoop) -> "EngineThread":
        """Start the thread that runs the rounds."""
        return EngineThread(loop)

    @property
    def metrics(self) -> EngineMetrics:
        """Counts and times so far."""
        return self._loop.metrics

    @property
    def memory(self) -> KVMemory:
        """Rows of the KV caches: their number, and how many are reserved."""
        return self._loop.memory

    @property
    def closed(self) -> bool:
        """Whether no more requests are accepted: after `close`, if the thread died, or in a forked process."""
        return self._thread.closed

    @property
    def kv_cache_usage(self) -> float:
        """Fraction of the KV cache rows reserved by running requests, from 0 to 1."""
        return self.memory.reserved / max(self.memory.rows, 1)

    def submit(
        self,
        prompt: Prompt | EncodedPrompt | None = None,
        *,
        observer: RoundObserver | None = None,
        group: Hashable | None = None,
        cache_salt: Hashable | None = None,
        max_unread: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Handle:
        """Check a request and queue it. Any thread may call this.

        Args:
            prompt: as for `Decoder.generate`, but not a list of prompts; or one that is encoded already.
            observer: is called for each round of the text, before its chunk is available.
            group: texts of the same group together get the share of the batch that one text would get, so that many of
                them do not delay others. None makes a group of its own.
            cache_salt: prefixes are shared only among requests with equal salts, in blocks of 16 tokens. Requests
                without a salt share with each other, by single tokens. If the salt is the group itself, nothing of its
                texts is kept for later ones.
            max_unread: maximum number of unread chunks. At that number the text pauses and gives its place to others.
                It continues when half of the chunks are read, or when somebody waits for the whole text. It must be
                read, waited for or cancelled before the engine can drain. None for no limit.
            **options: as for `Decoder.generate`.

        Raises:
            EngineClosedError: if the engine was closed, or this process was forked from the one where it runs.
            ConfigError: if `max_unread` is not a whole number of at least 1, `group` or `cache_salt` cannot be hashed,
                or `observer` lacks a method.
            ContextError: if the request could never run, since it needs more rows than there are.
            DraftTreeError: as for `Decoder.generate`.
        """
        self._thread.check_open()
        if is_batch(prompt):
            raise InputError("submit takes one prompt; call it for each of a list, or call Decoder.generate")
        check_observer(observer)
        for name, key in (("group", group), ("cache_salt", cache_salt)):
            try:
                hash(key)
            except TypeError:
                message = f"{name} is {key!r}; give what can be hashed, such as a number or a text"
                raise ConfigError(message) from None
        if max_unread is not None:
            check_count("max_unread", max_unread, ", or None for any number")
        context = RequestContext(
            observer=observer,
            shares_prefixes=self.memory.prefixes.max_tokens != 0 and not hides_state(self.decoder.target),
            group=group,
            cache_salt=cache_salt,
        )
        request = self.decoder.prepare(prompt, context, **options)
        self.memory.check(request.task.capacity)
        handle = Handle(self._thread.wake, request.metrics, max_unread)
        request.give_to(handle)
        self._thread.add(request)
        return handle

    def close(self, *, drain: bool = False) -> None:
        """End the engine; a second call does nothing.

        Args:
            drain: generate all submitted texts to their end first. If False, or after Ctrl-C while this waits, they end
                early with the finish reason "cancelled".
        """
        try:
            self._thread.close(drain=drain)
        except BaseException:
            self._thread.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close(drain=kind is None)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return f"Engine({state}, {self.metrics.running} running, {self.metrics.waiting} waiting, {self.decoder!r})"


class EngineThread:
    """Runs the rounds of a loop while there are requests, and waits for requests otherwise.

    It has no reference to the engine, so that an engine can be dropped without being closed.

    Args:
        loop: the loop, which nobody else runs.

    Attributes:
        changed: the condition that guards submitted requests; those submitted while it is held join the loop together.
    """

    def __init__(self, loop: BatchLoop) -> None:
        self.changed = threading.Condition()
        self._loop = loop
        self._inbox: deque[Request] = deque()
        self._closing = False
        self._ended = threading.Event()
        self._released = time.monotonic()
        self._thread = threading.Thread(target=self._run, name="drafttree-engine", daemon=True)
        self._begin()

    def _begin(self) -> None:
        release_idle_workers()
        atexit.register(self.close)  # Python aborts if it ends while a daemon thread is inside torch
        self._thread.start()

    @property
    def closed(self) -> bool:
        """Whether it takes no more requests."""
        return self._closing or not self._thread.is_alive()

    def check_open(self) -> None:
        """Check that requests can be added.

        Raises:
            EngineClosedError: if the engine was closed, or its thread runs in another process.
        """
        if self._closing:
            raise EngineClosedError("the engine is closed; make another one to submit requests")
        if not self._thread.is_alive():
            raise EngineClosedError(
                "this process was forked, and the engine's thread stayed in the parent process; make a new engine "
                "here to submit requests"
            )

    def add(self, request: Request) -> None:
        """Let a request join the loop. Any thread may call this.

        Raises:
            EngineClosedError: as for `check_open`.
        """
        with self.changed:
            self.check_open()
            self._inbox.append(request)
            self.changed.notify_all()

    def wake(self) -> None:
        """Wake the thread, since a text was read or cancelled."""
        with self.changed:
            self.changed.notify_all()

    def finish(self) -> None:
        """Accept no more requests, and let the thread end when all texts have ended. This does not wait."""
        with self.changed:
            self._closing = True
            self.changed.notify_all()

    def close(self, *, drain: bool = False) -> None:
        """Accept no more requests, and wait for the thread to end, unless the thread itself calls this.

        Args:
            drain: as for `Engine.close`.
        """
        if not self._thread.is_alive():  # in a forked process too, where a lock may be held for ever
            self._closing = True
            return
        with self.changed:
            if not drain:
                self._loop.cancel_all()
            self.finish()
        if threading.current_thread() is not self._thread:
            self._ended.wait()  # a join that Ctrl-C interrupts marks the thread as ended (CPython 90882)
            self._thread.join()

    def _run(self) -> None:
        try:
            while self._take():
                with lock_of(self._loop.target):
                    self._loop.step()
                self._release_when_busy()
        except BaseException as error:
            self._closing = True
            self._take_all()
            self._loop.fail(error if isinstance(error, Exception) else EngineClosedError(f"the engine died: {error!r}"))
            raise
        finally:
            atexit.unregister(self.close)
            self._ended.set()

    def _release_when_busy(self) -> None:
        """Release memory of ended texts while others continue. Without this, 24 unread streams left 400 MB behind."""
        if time.monotonic() - self._released >= BUSY_SECONDS:
            release_unused_memory()
            self._released = time.monotonic()

    def _take(self) -> bool:
        """Wait for work, add submitted requests to the loop, and return whether the loop has requests."""
        with self.changed:
            idle = not self.changed.wait_for(self._has_news, IDLE_SECONDS)
        if idle:
            release_unused_memory()
        with self.changed:
            self.changed.wait_for(self._has_news)
            self._take_all()
            return self._loop.busy

    def _has_news(self) -> bool:
        return bool(self._inbox) or self._loop.ready or (self._closing and not self._loop.busy)

    def _take_all(self) -> None:
        while self._inbox:
            self._loop.add(self._inbox.popleft())


class SharedEngine:
    """Makes an engine for its first user, and closes it after the last user. There is never more than one."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._engine: Engine | None = None
        self._users: set[object] = set()

    @contextlib.asynccontextmanager
    async def use(self, decoder: EngineDecoder) -> AsyncIterator[Engine]:
        """Context manager that returns the engine of a decoder, and does not block the event loop."""
        loop = asyncio.get_running_loop()
        user = object()
        self._users.add(user)
        try:
            yield await loop.run_in_executor(None, self._get, decoder)
        finally:
            self._users.discard(user)
            await asyncio.shield(loop.run_in_executor(None, self._close_unused))

    def _get(self, decoder: EngineDecoder) -> Engine:
        with self._changing:
            if not self._users:
                raise EngineClosedError("the call that started the engine was cancelled")
            self._engine = self._engine or Engine(decoder)
            return self._engine

    def _close_unused(self) -> None:
        with self._changing:
            if self._engine and not self._users:
                self._engine.close()
                self._engine = None
