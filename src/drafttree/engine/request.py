"""A request while its text is generated."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from torch import Tensor

from drafttree.constraints.processors import PathConstraints
from drafttree.core.randomness import Randomness
from drafttree.core.tree import DraftTree, Verdict
from drafttree.engine.detokenizer import Detokenizer
from drafttree.engine.fidelity import Fidelity
from drafttree.engine.logprobs import Logprobs, RowRecorder
from drafttree.engine.metrics import Metrics, Round
from drafttree.engine.stopping import StoppingText
from drafttree.engine.text_drafting import TextDrafting
from drafttree.models import Output, TreeCache
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier


@runtime_checkable
class RoundObserver(Protocol):
    """Sees every round of a request, on the thread that owns the model; all texts wait while it looks."""

    def drafted(self, request: "Request", grown: DraftTree, reason: str | None) -> None:
        """Take the tree of a round that begins; an `Engine` calls this.

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


@dataclass
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
        ids: the tokens it began with, as bytes, for others that begin alike; none before, and where it shares nothing.
        observer: sees its rounds, None where nobody does.
        metrics: metrics of this text.
        drafted: per committed token, whether the drafter proposed it.
        finish_reason: "stop" (an EOS token, stop string or stopping criterion), "length", "interrupted", or None
            while it goes on.
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
    ids: bytes = b""
    observer: RoundObserver | None = None
    metrics: Metrics = field(default_factory=Metrics)
    drafted: list[bool] = field(default_factory=list)
    finish_reason: str | None = None
    root_output: Output | None = None

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

    def take_root_output(self) -> Output | None:
        """The target's output for the first root where reading the prompt has given it, once."""
        output, self.root_output = self.root_output, None
        return output

    @property
    def logprobs(self) -> Logprobs | None:
        """Of the generated tokens, None unless asked for."""
        return self.recorder if isinstance(self.recorder, Logprobs) else None

    def prompt_reader(self, begin: int) -> Callable[[Tensor], None] | None:
        """What takes the rows of the prompt's tokens from position `begin` on, None where they are not wanted.

        A request that had to wait is read again: rows that are known are skipped.
        """
        if self.prompt_logprobs is None:
            return None
        kept, position = self.prompt_logprobs, begin

        def read(logits: Tensor) -> None:
            nonlocal position
            first = len(kept.tokens) + 1
            tokens = self.tokens[first : min(position + 1 + len(logits), self.prompt_length)]
            if tokens:
                kept.read(logits[first - position - 1 :][: len(tokens)], tokens)
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
            ended = self.text.stops(token) or token in self.eos or self.text.push(token)
            if self.stopping.push(token) or ended:
                self.end("stop")
            elif self.remaining <= 0:
                self.end("length")
            if self.finish_reason:
                return count
        return len(tokens)

    def end(self, reason: str) -> None:
        """Note why the text ends, and what the drafter has kept of it."""
        self.finish_reason = reason
        self.text.finish()
        if self.drafting.session:
            self.metrics.draft_cache_bytes = self.drafting.session.nbytes
