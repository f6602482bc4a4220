"""The engine: a thread that owns the model and writes many texts at once."""

import weakref
from collections.abc import Hashable, Mapping
from types import TracebackType
from typing import Any, Protocol, Self, Unpack, runtime_checkable

from drafttree.core.counts import MAX_BATCH, check_count
from drafttree.core.errors import ConfigError, InputError
from drafttree.engine.batching.batch_loop import BatchLoop
from drafttree.engine.batching.engine_metrics import EngineMetrics
from drafttree.engine.batching.engine_thread import EngineThread
from drafttree.engine.batching.handle import Handle
from drafttree.engine.batching.kv_memory import KVMemory
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
    defaults: Mapping[str, Any]

    def prepare(self, prompt: Prompt, **options: Unpack[GenerationOptions]) -> Request: ...

    def batch_loop(self, max_batch: int, *, memory: KVMemory | None = None, budget: int | None = None) -> BatchLoop: ...


class Engine:
    """Writes the texts of many requests at once (continuous batching), each as if it were alone.

    Requests join and leave at any round. In a round every request drafts its tree, one packed draft pass per level for
    all of them, and one packed target pass scores all trees and parts of new prompts. How many drafted nodes are
    scored is one budget for all, by how likely each is to be accepted and what a row costs; it may be none.

    What requests begin with in common is read once: a request takes copies of the rows of the longest beginning that
    another one has read, finished or not, and waits for one that is being read. So does every request that wants no
    `prompt_logprobs`, unless it or the decoder's defaults say `reuse_prefix=False`, or nothing is to be kept.

    Use it as a context manager, or call `close`; one that is still open when Python ends is closed then, and one that
    nobody refers to any more ends when its texts are written. The decoder may be used by other threads and engines
    meanwhile: its target runs their rounds in turn (see `TargetLock`), so each takes longer.

    Args:
        decoder: the decoder whose target, drafter, policy and verifier are used.
        max_batch: requests that run at once, at most; the others wait in the order they came.
        max_kv_tokens: rows that their KV caches may take together, prompt, text and largest tree of each; None for half
            of the device's memory.
        prefix_tokens: tokens of finished texts that are kept for later ones, within those rows, the least recently used
            going first; None leaves it to the decoder's `prefixes`. With 0 every prompt is read whole by default.
        budget: drafted nodes of a request and round, as a mean over the batch, always drafted; None for as many as
            are worth their time, which is measured.

    Attributes:
        decoder: as given.

    Raises:
        ConfigError: the decoder is none, a number is no whole one of at least 1 (of `prefix_tokens`, 0), or a budget is
            given for trees that may not be cut to it.
    """

    def __init__(
        self,
        decoder: EngineDecoder,
        *,
        max_batch: int = MAX_BATCH,
        max_kv_tokens: int | None = None,
        prefix_tokens: int | None = None,
        budget: int | None = None,
    ) -> None:
        if not isinstance(decoder, EngineDecoder):
            raise ConfigError(f"decoder is {decoder!r}; give a Decoder, such as drafttree.load makes")
        check_count("max_batch", max_batch)
        if prefix_tokens is not None:
            check_count("prefix_tokens", prefix_tokens, ", or None for what fits", least=0)
        check_budget(budget, decoder.verifier)
        self.decoder = decoder
        with lock_of(decoder.target):
            self._memory = KVMemory(decoder.target, max_kv_tokens)
            self._loop = decoder.batch_loop(max_batch, memory=self._memory, budget=budget)
        if prefix_tokens is not None:
            self._memory.prefixes.limit(prefix_tokens)
        self._thread = EngineThread(self._loop)
        weakref.finalize(self, self._thread.finish).atexit = False  # its thread closes itself when Python ends

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
        """Whether it takes no more requests: it was closed, or its thread has died or runs in another process."""
        return self._thread.closed

    @property
    def kv_cache_usage(self) -> float:
        """The share of the rows of the KV cache that running requests have reserved, from 0 to 1."""
        return self._memory.usage

    def submit(
        self,
        prompt: Prompt,
        *,
        observer: RoundObserver | None = None,
        group: Hashable | None = None,
        max_unread: int | None = None,
        **options: Unpack[GenerationOptions],
    ) -> Handle:
        """Check a request and let it wait for its turn; may be called from any thread.

        Args:
            prompt: as for `Decoder.generate`, but not a list of prompts.
            observer: sees the rounds of the text, each before its chunk is given out.
            group: texts of one group share the batch with others as one text would, so that many of them hold up no
                other; None for a text that is a group of its own.
            max_unread: chunks that may wait to be read; at so many the text pauses until half of them have been, and
                lets others have its place; read or cancel it, or the engine never drains. None for a text that never
                waits for its reader.
            **options: as for `Decoder.generate`.

        Raises:
            EngineClosedError: the engine was closed, or this process was forked from the one where it runs.
            ConfigError: `max_unread` is no whole number of at least 1.
            ContextError: the request could never run: it needs more rows than there are.
            DraftTreeError: as for `Decoder.generate`.
        """
        self._thread.check_open()
        if is_batch(prompt):
            raise InputError("submit takes one prompt; call it for each of a list, or call Decoder.generate")
        if max_unread is not None:
            check_count("max_unread", max_unread, ", or None for any number")
        request = self.decoder.prepare(prompt, **options)
        request.observer = observer
        if {**self.decoder.defaults, **options}.get("reuse_prefix") is None:
            request.reuse_prefix = request.prompt_logprobs is None and self._memory.prefixes.max_tokens != 0
        self._memory.check(request.capacity)
        handle = Handle(self._thread.wake, request.metrics, max_unread)
        self._thread.add(ServedRequest(request, handle, group=object() if group is None else group))
        return handle

    def close(self, *, drain: bool = False) -> None:
        """End the engine; a second call does nothing.

        Args:
            drain: write all submitted texts to their end first. Without, they end where they are, with the finish
                reason "cancelled". Ctrl-C while it waits ends them so too.
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
