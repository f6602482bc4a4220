"""A request: a task, the text that is written for it, and the state that continues the text."""

import time
from collections.abc import Generator, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor
from transformers import StoppingCriteriaList

from drafttree.core.errors import ConfigError, UnfinishedTextError
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, GrowthObserver, Verdict
from drafttree.engine.drafting.text_drafting import TextDrafting
from drafttree.engine.generation import Chunk, Generation, Reader, RowRecorder
from drafttree.engine.metrics import Metrics, TextRound
from drafttree.engine.task import Task
from drafttree.engine.written_text import WrittenText
from drafttree.models import Output, TreeCache


@runtime_checkable
class RoundObserver(Protocol):
    """Is called in every round of a request. The thread that owns the model calls it, and all texts wait for it."""

    def drafted(self, request: "Request", grown: DraftTree, reason: str | None) -> None:
        """Called when the tree of a round has grown.

        Args:
            request: the request whose round it is.
            grown: the tree as the policy left it; the budget of the batch may cut it before it is verified.
            reason: why the drafter drafted nothing, or failed before it had drafted all; None otherwise.
        """
        ...

    def settled(
        self, request: "Request", tree: DraftTree, logits: Tensor, verdict: Verdict, text_round: TextRound
    ) -> None:
        """Called at the end of a round, before its chunk is published.

        Args:
            request: the request, whose tokens include those of the round.
            tree: the tree that was verified.
            logits: the target's logits `[nodes, vocab]` after constraints; the next pass may overwrite them.
            verdict: the verdict of the verifier.
            text_round: counts and times of the round.
        """
        ...


def check_observer(observer: object) -> None:
    """Check that an observer has the methods of `RoundObserver`, or is None.

    Raises:
        ConfigError: if it lacks a method.
    """
    if not isinstance(observer, RoundObserver | None):
        raise ConfigError(f"observer is {observer!r}; it must have the methods drafted and settled")


class RecorderMaker(Protocol):
    """Makes the recorder of a text, given its sampling; None records nothing."""

    def __call__(self, sampling: Sampling) -> RowRecorder | None: ...


@dataclass(frozen=True, eq=False)
class RequestContext:
    """What a caller gives with a request besides prompt and options.

    Attributes:
        observer: called for its rounds, or None.
        growth_observer: told of the growth of its trees, or None.
        padding: token ids that logits processors and stopping criteria see before the prompt.
        stopping_criteria: replaces the criteria of the options; None keeps those.
        make_recorder: makes the recorder of logits; None for the one that the options request.
        shares_prefixes: the default of the option `reuse_prefix`. None is for a text outside of an engine: it shares
            rows if its prompt is a conversation.
        group: as for `Task`; None makes a group of its own.
        cache_salt: as for `Task`.
    """

    observer: RoundObserver | None = None
    growth_observer: GrowthObserver | None = None
    padding: Sequence[int] = ()
    stopping_criteria: StoppingCriteriaList | None = None
    make_recorder: RecorderMaker | None = None
    shares_prefixes: bool | None = None
    group: Hashable | None = None
    cache_salt: Hashable | None = None


@dataclass(eq=False)
class Request:
    """A task, the text that is written for it, and the state that continues the text.

    Attributes:
        task: the prompt, limits, methods and options.
        text: the text as far as it is written.
        drafting: the state of drafting for this text.
        metrics: metrics of this text.
        observer: called for its rounds, or None.
        growth_observer: told of the growth of its trees, or None.
        cache: the target's KV cache, with rows of all tokens but the last; not set before `open`.
        root_output: the target's output for the first root, if the pass over the prompt computed it; else None.
        shared_prefix: the first tokens, as bytes, whose rows other requests may copy; empty if none may.
        reader: is given the text, in an engine.
    """

    task: Task
    text: WrittenText
    drafting: TextDrafting
    metrics: Metrics = field(default_factory=Metrics)
    observer: RoundObserver | None = None
    growth_observer: GrowthObserver | None = None
    cache: TreeCache = field(init=False)
    root_output: Output | None = field(init=False, default=None)
    shared_prefix: bytes = field(init=False, default=b"")
    reader: Reader = field(init=False, default_factory=Reader)
    _last_round_time: float = field(init=False, default_factory=time.perf_counter)

    @property
    def tokens(self) -> list[int]:
        """Prompt and committed token ids; the last one is the root of the next tree."""
        return self.text.tokens

    @property
    def row_ids(self) -> list[int]:
        """Ids of the tokens by which rows are shared: texts share a row if all ids up to it are the same.

        Those of an image's placeholders tell images apart.
        """
        images = self.task.images
        return images.marked(self.tokens) if images else self.tokens

    @property
    def images_end(self) -> int:
        """The number of first tokens up to the last image; 0 without images."""
        images = self.task.images
        return images.end if images else 0

    @property
    def finish_reason(self) -> str | None:
        """Why the text has ended, as `WrittenText.finish_reason`; None while it goes on."""
        return self.text.finish_reason

    @property
    def unread(self) -> int:
        """The number of tokens before the root that the target has not read."""
        return len(self.text.tokens) - 1 - self.cache.read_tokens

    def open(self, cache: TreeCache) -> None:
        """Take an empty KV cache of the target with room for all rows."""
        self.cache = cache

    def close(self, cache: TreeCache) -> None:
        """Give up all rows: take an empty KV cache without room, until the request is opened again."""
        self.cache = cache
        self.shared_prefix = b""
        self.drafting.close()

    def share(self, prefix: bytes) -> None:
        """Let requests that begin with these tokens, given as bytes, copy their rows."""
        self.shared_prefix = prefix

    def give_to(self, reader: Reader) -> None:
        """Give the text to a reader, from its first token on."""
        self.reader = reader

    def keep_root_output(self, output: Output) -> None:
        """Keep the target's output for the first root, which the pass over the prompt has computed."""
        self.root_output = output

    def take_root_output(self) -> Output | None:
        """Return `root_output`, and clear it."""
        output = self.root_output
        self.root_output = None
        return output

    def commit(self, tokens: list[int], accepted: int) -> int:
        """Append a round's tokens to the text; see `WrittenText.commit`."""
        committed = self.text.commit(tokens, accepted)
        if self.text.finish_reason:
            self._record_draft_cache()
        return committed

    def end(self, reason: str) -> None:
        """End the text with a finish reason."""
        self.text.end(reason)
        self._record_draft_cache()

    def _record_draft_cache(self) -> None:
        if self.drafting.session:
            self.metrics.draft_cache_bytes = self.drafting.session.nbytes

    def generation(self) -> Generation:
        """The text and its metrics; the finish reason is "interrupted" if the text has not ended."""
        text = self.text
        prompt = text.prompt_logprobs
        sampling = self.task.verifier.sampling
        return Generation(
            text=text.detokenizer.text,
            tokens=text.generated,
            drafted=text.drafted,
            finish_reason=text.finish_reason or "interrupted",
            metrics=self.metrics,
            seed=None if sampling.greedy else sampling.seed,
            fidelity=self.task.fidelity,
            costs=self.drafting.costs,
            logprobs=text.logprobs and text.logprobs.tokens,
            top_logprobs=(text.logprobs and text.logprobs.top) or None,
            prompt_logprobs=prompt and prompt.tokens,
            prompt_top_logprobs=(prompt and prompt.top) or None,
        )

    def publish(self, read_tokens: int) -> None:
        """Give the reader the text after its first `read_tokens` tokens and, if it has ended, the result."""
        self.reader.chunk(self.text.chunk(read_tokens))
        if self.text.finish_reason:
            self.reader.end(self.generation())

    def record_wait(self) -> None:
        """Record how long the request has waited in the queue, unless it has run before."""
        if not self.metrics.rounds:
            self.metrics.queue_seconds = time.perf_counter() - self._last_round_time

    def record(self, text_round: TextRound) -> None:
        """Record a round of an engine, with the time since the previous round or since the request was made."""
        timestamp = time.perf_counter()
        self.metrics.record(text_round, timestamp - self._last_round_time)
        self._last_round_time = timestamp


class TextStream(Iterator[Chunk]):
    """Iterates over the chunks of a text, one for each round. Then `result` is the whole text.

    Closing or dropping the stream ends the text.

    Args:
        request: the request whose text is streamed.
        chunks: advances the request by a round for each chunk.
    """

    def __init__(self, request: Request, chunks: Generator[Chunk, None, None]) -> None:
        self._request = request
        self._chunks = chunks

    def __next__(self) -> Chunk:
        return next(self._chunks)

    def close(self) -> None:
        """End the text, unless it has ended."""
        self._chunks.close()
        if not self._request.text.finish_reason:
            self._request.end("interrupted")

    @property
    def result(self) -> Generation:
        """The whole text with its metrics, as `Decoder.generate` returns it; "interrupted" if it was closed early.

        Raises:
            UnfinishedTextError: if the text has not ended.
        """
        text = self._request.text
        if not text.finish_reason:
            raise UnfinishedTextError(
                f"the text has not ended, {len(text.generated)} tokens are written; read the stream to its end, or "
                "close it, before asking for its result"
            )
        return self._request.generation()
