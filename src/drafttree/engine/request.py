"""A request: what a text is, what it may still do, and what it has said."""

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
    """A growing text and transformers' stopping criteria, asked after every token as its `generate` asks them.

    Args:
        criteria: functions of token ids `[1, length]` and scores, which are None here.
        prompt: token ids before the text, padding included.
        new_tokens: tokens that may follow them at most.
        device: the device of the token ids the criteria see.
    """

    def __init__(
        self, criteria: StoppingCriteriaList, prompt: Sequence[int], new_tokens: int, device: torch.device
    ) -> None:
        self._criteria = criteria
        self._length = len(prompt)
        self._ids = torch.tensor([[*prompt, *[0] * new_tokens] if criteria else []], device=device)

    def push(self, token: int) -> bool:
        """Add a token; whether a criterion ends the text after it."""
        if not self._criteria:
            return False
        self._ids[0, self._length] = token
        self._length += 1
        token_ids = self._ids[:, : self._length].clone()  # a criterion may write to it
        return bool(self._criteria(token_ids, None).all())  # pyright: ignore[reportArgumentType]


@runtime_checkable
class RoundObserver(Protocol):
    """Sees every round of a request, on the thread that owns the model; all texts wait while it looks."""

    def drafted(self, request: "Request", grown: DraftTree, reason: str | None) -> None:
        """Take the tree of a round that begins.

        Args:
            request: the request whose round it is.
            grown: the tree as the policy left it; the budget of the batch may cut it before it is verified.
            reason: why nothing was drafted for any request, None where something was.
        """
        ...

    def settled(self, request: "Request", tree: DraftTree, logits: Tensor, verdict: Verdict, turn: Round) -> None:
        """Take the end of a round, before its chunk is given out.

        Args:
            request: the request with the tokens of the round.
            tree: the tree that was verified.
            logits: `[nodes, vocab]` of the target, constraints included; the next pass may use their memory again.
            verdict: the verdict of the verifier.
            turn: the cost of the round.
        """
        ...


def check_observer(observer: object) -> None:
    """Refuse what cannot see rounds.

    Raises:
        ConfigError: it lacks a method.
    """
    if not isinstance(observer, RoundObserver | None):
        raise ConfigError(f"observer is {observer!r}; it must have the methods drafted and settled")


@dataclass(eq=False)
class Request:
    """A prompt, what has been committed after it, and the state that continues it.

    Attributes:
        tokens: prompt and committed token ids; the last one is the root of the next tree.
        prompt_length: how many of them are the prompt.
        limit: how many tokens there may be in all.
        eos: token ids that end the text.
        capacity: rows of the KV cache that it needs at most.
        policy: how its trees grow.
        verifier: the verifier with the sampling the text is drawn by.
        randomness: the randomness of this text.
        text: turns tokens into text and watches for stop strings.
        stopping: stopping criteria and the tokens they are asked about.
        constraints: what else decides which tokens are possible.
        drafting: how it is drafted for.
        recorder: sees the rows the tokens are chosen from, None where nothing of them is wanted.
        prompt_logprobs: log-probabilities of the prompt's tokens after the first, None where they are not wanted.
        fidelity: whether the text has the law of the target's own.
        cache: the target's keys and values of all tokens but the last; there is none until `RoundLoop.open`.
        root_output: the target's output for the first root, where the pass over the prompt has given it.
        reuse_prefix: whether it goes on from a beginning in the decoder's prefix cache, and is kept there.
        cache_salt: beginnings of texts are shared by requests of equal salt alone; where it is the group, they are
            shared within it, and nothing is kept.
        ids: the tokens it began with, as bytes, for others that begin alike; none before, and where it shares nothing.
        observer: sees its rounds, None where nobody does.
        growth_observer: sees its trees grow, None where nobody does.
        metrics: metrics of this text.
        drafted: per committed token, whether the drafter proposed it.
        finish_reason: "stop" (an EOS token, stop string or stopping criterion), "length", "interrupted", or None
            while it goes on.
        reader: told of the text, in an engine.
        group: shared by texts that share the batch of an engine with others as one text would.
        order: place in the order of arrival there; the smallest came first.
        turn: place among the waiting texts of groups that have as many running; the smallest is next.
        holds_rows: whether its rows are reserved: it runs, or it pauses.
        overtime: seconds that its constraints took beyond its share of the rounds, and others did not have since.
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
        """Tokens that may still be committed."""
        return self.limit - len(self.tokens)

    @property
    def unread(self) -> int:
        """Tokens before the root that the target has not read."""
        return len(self.tokens) - 1 - self.cache.next_position

    @property
    def waits(self) -> bool:
        """Whether it has not begun, while another one reads the beginning of its prompt."""
        return self.reuse_prefix and not self.ids

    def kind(self, source: int) -> Kind:
        """The kind of drafts that a model of the drafter makes for it."""
        return self.verifier.sampling.greedy, source

    def take_root_output(self) -> Output | None:
        """The target's output for the first root where reading the prompt has given it, once."""
        output, self.root_output = self.root_output, None
        return output

    def prompt_reader(self, begin: int) -> Callable[[Tensor], None] | None:
        """What takes the rows of the prompt's tokens from position `begin` on, None where they are not wanted.

        A request that had to wait is read again: rows that are known are skipped.
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
        """Append a round's tokens up to where the text ends, and note why it ends there.

        Args:
            tokens: the accepted path below the root, then the bonus token.
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
        """Note why the text ends, and what the drafter has kept of it."""
        self.text.finish()
        self.finish_reason = "stop" if reason == "length" and self.text.stopped_by else reason
        if self.drafting.session:
            self.metrics.draft_cache_bytes = self.drafting.session.nbytes

    def generation(self) -> Generation:
        """The text as it stands, which has ended."""
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
        """What was added since there were so many tokens."""
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
        """Tell the reader what was added since there were so many tokens, and the whole text where it has ended."""
        self.reader.chunk(self.chunk(known))
        if self.finish_reason:
            self.reader.end(self.generation())

    def begin(self) -> None:
        """Note how long an engine has let it wait, until it runs for the first time."""
        if not self.metrics.rounds:
            self.metrics.queue_seconds = time.perf_counter() - self._latest

    def record(self, turn: Round) -> None:
        """Count a round of an engine, with the time since the last one or since the request came."""
        timestamp = time.perf_counter()
        self.metrics.record(turn, timestamp - self._latest)
        self._latest = timestamp

    @property
    def _logprobs(self) -> Logprobs | None:
        """Of the generated tokens, None unless asked for."""
        return self.recorder if isinstance(self.recorder, Logprobs) else None


class TextStream(Iterator[Chunk]):
    """What each round adds to a text, and its result when it has ended.

    Closing the stream ends the text where it is; so does dropping it.

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
        """End the text where it is; one that has ended stays as it is."""
        self._chunks.close()
        if not self._request.finish_reason:
            self._request.end("interrupted")

    @property
    def result(self) -> Generation:
        """The whole text with its metrics, as `Decoder.generate` returns it; "interrupted" where it was closed early.

        Raises:
            UnfinishedTextError: the text has not ended.
        """
        if not self._request.finish_reason:
            token_count = len(self._request.tokens) - self._request.prompt_length
            raise UnfinishedTextError(
                f"the text has not ended, {token_count} tokens are written; read the stream to its end, or close it, "
                "before asking for its result"
            )
        return self._request.generation()
