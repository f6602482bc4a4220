"""A request: a prompt, the text that is generated after it, and the state that continues it."""

import time
from collections.abc import Callable, Generator, Hashable, Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers import StoppingCriteriaList

from drafttree.constraints.processors import PathConstraints
from drafttree.core.errors import ConfigError, UnfinishedTextError
from drafttree.core.randomness import Randomness
from drafttree.core.tree import DraftTree, GrowthObserver, Verdict
from drafttree.engine.detokenizer import Detokenizer
from drafttree.engine.drafting.controller import Kind
from drafttree.engine.generation import Chunk, Fidelity, Generation, Logprobs, Reader, RowRecorder
from drafttree.engine.metrics import Metrics, Round
from drafttree.engine.text_drafting import TextDrafting
from drafttree.models import Output, TreeCache
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier


class StoppingText:
    """Calls transformers' stopping criteria after every token of a text, as its `generate` does.

    Args:
        criteria: functions of token ids `[1, length]` and scores, which are None here.
        prompt: token ids before the text, padding included.
        new_tokens: the most tokens that may follow.
        device: the device of the token ids that the criteria are given.
    """

    def __init__(
        self, criteria: StoppingCriteriaList, prompt: Sequence[int], new_tokens: int, device: torch.device
    ) -> None:
        self._criteria = criteria
        self._length = len(prompt)
        self._ids = torch.tensor([[*prompt, *[0] * new_tokens] if criteria else []], device=device)

    def push(self, token: int) -> bool:
        """Add a token, and return whether a criterion ends the text after it."""
        if not self._criteria:
            return False
        self._ids[0, self._length] = token
        self._length += 1
        token_ids = self._ids[:, : self._length].clone()  # a criterion may write to it
        return bool(self._criteria(token_ids, None).all())  # pyright: ignore[reportArgumentType]


@runtime_checkable
class RoundObserver(Protocol):
    """Called for every round of a request, in the thread that owns the model; all texts wait meanwhile."""

    def drafted(self, request: "Request", grown: DraftTree, reason: str | None) -> None:
        """Called at the beginning of a round, when its tree has grown.

        Args:
            request: the request whose round it is.
            grown: the tree as the policy left it; the budget of the batch may cut it before it is verified.
            reason: why nothing, or not all, was drafted in the round; None if all was.
        """
        ...

    def settled(self, request: "Request", tree: DraftTree, logits: Tensor, verdict: Verdict, turn: Round) -> None:
        """Called at the end of a round, before its chunk is given out.

        Args:
            request: the request, whose tokens include those of the round.
            tree: the tree that was verified.
            logits: the target's logits `[nodes, vocab]` after constraints; the next pass may overwrite them.
            verdict: the verdict of the verifier.
            turn: counts and times of the round.
        """
        ...


def check_observer(observer: object) -> None:
    """Check that an observer has the methods of `RoundObserver`, or is None.

    Raises:
        ConfigError: if it lacks a method.
    """
    if not isinstance(observer, RoundObserver | None):
        raise ConfigError(f"observer is {observer!r}; it must have the methods drafted and settled")


@dataclass(eq=False)
class Request:
    """A prompt, the tokens committed after it, and the state that continues it.

    Attributes:
        tokens: prompt and committed token ids; the last one is the root of the next tree.
        prompt_length: the number of tokens of the prompt.
        limit: the most tokens of prompt and text together.
        eos: token ids that end the text.
        capacity: the most rows of the KV cache that it needs.
        policy: the tree policy, in its form for the verifier.
        verifier: the verifier, with the sampling of this text.
        randomness: the randomness of this text.
        text: turns tokens into text and looks for stop strings.
        stopping: stopping criteria and the tokens that they are asked about.
        constraints: the constraints on tokens: logits processors and a grammar.
        drafting: the state of drafting for this text.
        recorder: records the rows that tokens are chosen from; None if they are not wanted.
        prompt_logprobs: log-probabilities of the prompt's tokens after the first; None if they are not wanted.
        fidelity: whether the text follows the target's distribution.
        cache: the target's KV cache, with rows of all tokens but the last; not set before `RoundLoop.open`.
        root_output: the target's output for the first root, if the pass over the prompt has given it.
        reuse_prefix: whether it may continue from rows of other texts, and shares and keeps its own.
        cache_salt: beginnings of texts are shared only by requests with an equal salt. If the salt is the group,
            nothing is kept after a text.
        ids: as bytes, the tokens that it began with, for others that begin alike; empty before it begins, and if it
            shares nothing.
        observer: called for its rounds, or None.
        growth_observer: told of the growth of its trees, or None.
        metrics: metrics of this text.
        drafted: per committed token, whether the drafter proposed it.
        finish_reason: "stop" (an EOS token, stop string or stopping criterion), "length", "interrupted", or None
            while it goes on.
        reader: is given the text, in an engine.
        group: texts of equal groups together get the share of an engine's batch that one text would get.
        order: its place in the engine's order of arrival; the smallest came first.
        turn: its place among waiting texts of groups with equally many running ones; the smallest is next.
        holds_rows: whether its rows are reserved, which they are while it runs or pauses.
        overtime: seconds that its constraints took beyond its share of the rounds, and that it has not waited for yet.
    """

    tokens: list[int]
    prompt_length: int
    limit: int
    eos: frozenset[int]
    capacity: int
    policy: TreePolicy
    verifier: Verifier
    randomness: Randomness
    text: Detokenizer
    stopping: StoppingText
    constraints: PathConstraints
    fidelity: Fidelity
    cache: TreeCache = field(init=False)
    drafting: TextDrafting = field(default_factory=TextDrafting)
    recorder: RowRecorder | None = None
    prompt_logprobs: Logprobs | None = None
    reuse_prefix: bool = False
    cache_salt: Hashable | None = None
    ids: bytes = b""
    observer: RoundObserver | None = None
    growth_observer: GrowthObserver | None = None
    metrics: Metrics = field(default_factory=Metrics)
    drafted: list[bool] = field(default_factory=list)
    finish_reason: str | None = None
    root_output: Output | None = None
    reader: Reader = field(default_factory=Reader)
    group: Hashable = field(default_factory=object)
    order: int = 0
    turn: int = 0
    holds_rows: bool = False
    overtime: float = 0.0
    _latest: float = field(default_factory=time.perf_counter)

    @property
    def remaining(self) -> int:
        """The most tokens that may still be committed."""
        return self.limit - len(self.tokens)

    @property
    def unread(self) -> int:
        """The number of tokens before the root that the target has not read."""
        return len(self.tokens) - 1 - self.cache.next_position

    @property
    def waits(self) -> bool:
        """Whether it has not begun, since another request is reading the beginning of its prompt."""
        return self.reuse_prefix and not self.ids

    def kind(self, source: int) -> Kind:
        """The kind of its drafts by one of the drafter's models."""
        return self.verifier.sampling.greedy, source

    def take_root_output(self) -> Output | None:
        """Return `root_output`, and clear it."""
        output, self.root_output = self.root_output, None
        return output

    def prompt_reader(self, begin: int) -> Callable[[Tensor], None] | None:
        """A function that records `prompt_logprobs` from the target's logits after the tokens from `begin` on.

        None if they are not wanted. If a prompt is read again, since the request had to wait, known rows are skipped.
        """
        if self.prompt_logprobs is None:
            return None
        logprobs = self.prompt_logprobs
        position = begin

        def read(logits: Tensor) -> None:
            nonlocal position
            first_position = len(logprobs.tokens) + 1
            tokens = self.tokens[first_position : min(position + 1 + len(logits), self.prompt_length)]
            if tokens:
                logprobs.read(logits[first_position - position - 1 :][: len(tokens)], tokens)
            position += len(logits)

        return read

    def commit(self, tokens: list[int], accepted: int) -> int:
        """Append a round's tokens, up to the one that ends the text.

        Args:
            tokens: the tokens of the accepted path below the root, then the bonus token.
            accepted: how many of them were drafted.

        Returns:
            How many tokens were committed.
        """
        for count, token in enumerate(tokens, start=1):
            self.tokens.append(token)
            self.drafted.append(count <= accepted)
            self.constraints.commit(token)
            text_ended = self.text.stops(token) or token in self.eos or self.text.push(token)
            if self.stopping.push(token) or text_ended:
                self.end("stop")
            elif self.remaining <= 0:
                self.end("length")
            if self.finish_reason:
                return count
        return len(tokens)

    def end(self, reason: str) -> None:
        """End the text with a finish reason; "length" becomes "stop" if the end of the text shows a stop string."""
        self.text.finish()
        self.finish_reason = "stop" if reason == "length" and self.text.stopped_by else reason
        if self.drafting.session:
            self.metrics.draft_cache_bytes = self.drafting.session.nbytes

    def generation(self) -> Generation:
        """The result of the ended text."""
        logprobs = self._logprobs
        prompt = self.prompt_logprobs
        sampling = self.verifier.sampling
        return Generation(
            text=self.text.text,
            tokens=self.tokens[self.prompt_length :],
            drafted=self.drafted,
            finish_reason=self.finish_reason or "interrupted",
            metrics=self.metrics,
            seed=None if sampling.greedy else sampling.seed,
            fidelity=self.fidelity,
            costs=self.drafting.costs,
            logprobs=logprobs and logprobs.tokens,
            top_logprobs=(logprobs and logprobs.top) or None,
            prompt_logprobs=prompt and prompt.tokens,
            prompt_top_logprobs=(prompt and prompt.top) or None,
        )

    def chunk(self, known: int) -> Chunk:
        """The part of the text after its first `known` tokens."""
        tokens = self.tokens[known:]
        read_length = self.text.shown
        begin = known - self.prompt_length
        logprobs = self._logprobs
        text = self.text.read()
        origins = self.text.origins[read_length : read_length + len(text)]
        return Chunk(
            text,
            tokens,
            self.drafted[len(self.drafted) - len(tokens) :],
            self.finish_reason,
            drafted_text=[self.drafted[token] for token in origins],
            origins=origins,
            logprobs=logprobs.tokens[begin:] if logprobs else [],
            top_logprobs=[*map(dict, logprobs.top[begin:])] if logprobs else [],
            prompt_logprobs=None if begin else deepcopy(self.prompt_logprobs),
            stopped_by=self.text.stopped_by,
        )

    def publish(self, known: int) -> None:
        """Give the reader the part of the text after its first `known` tokens and, if it has ended, the result."""
        self.reader.chunk(self.chunk(known))
        if self.finish_reason:
            self.reader.end(self.generation())

    def begin(self) -> None:
        """Record how long the request has waited in the engine, unless it has run before."""
        if not self.metrics.rounds:
            self.metrics.queue_seconds = time.perf_counter() - self._latest

    def record(self, turn: Round) -> None:
        """Record a round of an engine, with the time since the last round or since the request was made."""
        timestamp = time.perf_counter()
        self.metrics.record(turn, timestamp - self._latest)
        self._latest = timestamp

    @property
    def _logprobs(self) -> Logprobs | None:
        """The log-probabilities of the generated tokens; None unless requested."""
        return self.recorder if isinstance(self.recorder, Logprobs) else None


class TextStream(Iterator[Chunk]):
    """Iterates over what each round adds to a text, and has its result at the end.

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
        if not self._request.finish_reason:
            self._request.end("interrupted")

    @property
    def result(self) -> Generation:
        """The whole text with its metrics, as `Decoder.generate` returns it; "interrupted" if it was closed early.

        Raises:
            UnfinishedTextError: if the text has not ended.
        """
        if not self._request.finish_reason:
            token_count = len(self._request.tokens) - self._request.prompt_length
            raise UnfinishedTextError(
                f"the text has not ended, {token_count} tokens are written; read the stream to its end, or close it, "
                "before asking for its result"
            )
        return self._request.generation()
