"""A request while its text is generated, and the `Generation` and `Chunk`s it gives."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor

from drafttree.constraints.processors import PathConstraints
from drafttree.core.cost_curve import CostCurve
from drafttree.core.randomness import Randomness
from drafttree.core.tree import DraftTree, Verdict
from drafttree.drafters.base import DraftSession
from drafttree.drafters.mixed import MixedSession
from drafttree.engine.detokenizer import Detokenizer
from drafttree.engine.fidelity import Fidelity
from drafttree.engine.logprobs import Logprobs, RowRecorder
from drafttree.engine.metrics import Metrics, Round
from drafttree.engine.stopping import StoppingText
from drafttree.models import Output, TreeCache
from drafttree.policies.base import TextContext, TreePolicy
from drafttree.verifiers.base import Verifier

SHOWN = 60
"""Characters of a text that its `repr` shows."""


class RoundObserver(Protocol):
    """Sees every round of a request, on the thread that owns the model; all texts wait while it looks."""

    def drafted(self, request: "Request", grown: DraftTree, reason: str | None) -> None:
        """Take the tree of a round that begins; an `Engine` calls this.

        Args:
            request: whose round it is.
            grown: as the policy left it; the budget of the batch may cut it before it is verified.
            reason: why nothing was drafted for any request, None where something was.
        """
        ...

    def settled(self, request: "Request", tree: DraftTree, logits: Tensor, verdict: Verdict, turn: Round) -> None:
        """Take the end of a round, before its chunk is given out.

        Args:
            request: with the tokens of the round.
            tree: that was verified.
            logits: `[nodes, vocab]` of the target, constraints included; the next pass may use their memory again.
            verdict: of the verifier.
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
        verifier: with the sampling the text is drawn by.
        randomness: of this text.
        text: turns tokens into text and watches for stop strings.
        stopping: stopping criteria and the tokens they are asked about.
        constraints: what else decides which tokens are possible.
        recorder: sees the rows the tokens are chosen from, None where nothing of them is wanted.
        prompt_logprobs: of the prompt's tokens after the first, None where they are not wanted.
        fidelity: whether the text has the law of the target's own.
        draft_failed: told of an error of its drafter, behind which the text goes on without; None to raise the error.
        cache: the target's keys and values of all tokens but the last; there is none until `RoundLoop.open`.
        draft: the drafter's view, None for plain decoding and before that.
        drafts_prompt: whether its drafter reads the prompt too.
        draft_costs: seconds and passes of its drafter that were counted.
        context: what its policy was told when the text began.
        state: what the policy has learned of this text.
        root_output: the target's output for the first root, where the pass over the prompt has given it.
        draft_temperature: divides the drafter's logits.
        reuse_prefix: whether it goes on from a beginning in the decoder's prefix cache, and is kept there.
        speculate: whether anything is drafted for it.
        observer: sees its rounds, None where nobody does.
        metrics: of this text.
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
    draft_failed: Callable[[Exception], None] | None = None
    draft: DraftSession | None = None
    draft_costs: tuple[float, int] = (0.0, 0)
    drafts_prompt: bool = False
    context: TextContext | None = None
    state: Any = None
    recorder: RowRecorder | None = None
    prompt_logprobs: Logprobs | None = None
    draft_temperature: float = 1.0
    reuse_prefix: bool = False
    speculate: bool = True
    observer: RoundObserver | None = None
    metrics: Metrics = field(default_factory=Metrics)
    drafted: list[bool] = field(default_factory=list)
    finish_reason: str | None = None
    root_output: Output | None = None

    @property
    def costs(self) -> CostCurve | None:
        """The cost curve its policy uses, None for one that needs none."""
        return self.context.costs if self.context else None

    @property
    def remaining(self) -> int:
        """Tokens that may still be committed."""
        return self.limit - len(self.tokens)

    @property
    def unread(self) -> int:
        """Tokens before the root that the target has not read."""
        return len(self.tokens) - 1 - self.cache.next_position

    def read_draft_costs(self) -> tuple[float, int]:
        """Seconds and passes of its drafter that were not counted yet."""
        if self.draft is None:
            return 0.0, 0
        seconds, passes = self.draft_costs
        self.draft_costs = self.draft.seconds, self.draft.passes
        return self.draft_costs[0] - seconds, self.draft_costs[1] - passes

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
            ended = token in self.eos or self.text.push(token)
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
        self.text.flush()
        if self.draft:
            self.metrics.draft_cache_bytes = self.draft.nbytes
        if isinstance(self.draft, MixedSession):
            self.metrics.lookup_rounds = self.draft.lookup_rounds


@dataclass(frozen=True)
class Generation:
    """A finished text.

    Attributes:
        text: what was generated, the prompt not included; it ends before a stop string. Empty without a tokenizer.
        tokens: the generated token ids, an EOS token and the tokens of a stop string included.
        drafted: per token, whether the drafter proposed it.
        finish_reason: "stop", "length" or "interrupted".
        metrics: what it cost.
        seed: of the draws. With it the same prompt and options give this text again; not in a batch, if the verifier is
            neither greedy nor coupled.
        fidelity: whether the text has the law of the target's own, and whether the target is quantised.
        costs: the cost curve the policy used, None for one that needs none. Where the verifier's draws depend on the
            drafts (neither greedy nor coupled), a seed gives this text again with this curve (`Decoder.with_costs`).
        logprobs: per token, its log-probability by the target itself (see `engine.logprobs.Logprobs`), None unless
            asked for.
        top_logprobs: per token, the most probable token ids and their log-probabilities, None unless asked for.
        prompt_logprobs: as `logprobs`, of the prompt's tokens after the first.
        prompt_top_logprobs: as `top_logprobs`, of the prompt's tokens after the first.
    """

    text: str
    tokens: list[int]
    drafted: list[bool]
    finish_reason: str
    metrics: Metrics
    seed: int
    fidelity: Fidelity
    costs: CostCurve | None = None
    logprobs: list[float] | None = None
    top_logprobs: list[dict[int, float]] | None = None
    prompt_logprobs: list[float] | None = None
    prompt_top_logprobs: list[dict[int, float]] | None = None

    def __repr__(self) -> str:
        return f"Generation({_beginning(self.text)!r}, {self.finish_reason}, seed={self.seed}, {self.metrics!r})"

    @property
    def lossless(self) -> bool:
        """Whether the text has the law of the target's own; that of a quantised target is another model's."""
        return self.fidelity.lossless

    @property
    def lossy(self) -> str | None:
        """Why the text is not lossless: the verifier, a window over the KV cache, or both; None where it is."""
        return self.fidelity.lossy

    @property
    def seconds(self) -> float:
        """Wall time, the prompt included."""
        return self.metrics.seconds

    @classmethod
    def of(cls, request: Request) -> "Generation":
        """The generation that a finished request has made."""
        kept, prompt = request.logprobs, request.prompt_logprobs
        return cls(
            text=request.text.text,
            tokens=request.tokens[request.prompt_length :],
            drafted=request.drafted,
            finish_reason=request.finish_reason or "interrupted",
            metrics=request.metrics,
            seed=request.verifier.sampling.seed,
            fidelity=request.fidelity,
            costs=request.costs,
            logprobs=kept and kept.tokens,
            top_logprobs=(kept and kept.top) or None,
            prompt_logprobs=prompt and prompt.tokens,
            prompt_top_logprobs=(prompt and prompt.top) or None,
        )


def _beginning(text: str) -> str:
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}..."


@dataclass(frozen=True)
class Chunk:
    """The tokens and the text that one round adds to a stream.

    Attributes:
        text: new text that no later token can change; it may lag behind the tokens.
        tokens: the committed token ids.
        drafted: per token, whether the drafter proposed it.
        finish_reason: set in the last chunk.
        drafted_text: per character of `text`, whether the drafter proposed its token.
        origins: per character of `text`, the index in the whole text of the token that completed it.
        logprobs: per token, its log-probability by the target itself; empty unless asked for.
        top_logprobs: per token, the most probable token ids and their log-probabilities; empty unless asked for.
        prompt_logprobs: in the first chunk, those of the prompt's tokens after the first; None unless asked for.
    """

    text: str
    tokens: list[int]
    drafted: list[bool]
    finish_reason: str | None
    drafted_text: list[bool] = field(default_factory=list)
    origins: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[dict[int, float]] = field(default_factory=list)
    prompt_logprobs: Logprobs | None = None

    @classmethod
    def since(cls, known: int, request: Request) -> "Chunk":
        """What a request has added to its stream since it had so many tokens."""
        tokens, stream = request.tokens[known:], request.text
        drafted = request.drafted[len(request.drafted) - len(tokens) :]
        shown = stream.shown
        text = stream.read(final=bool(request.finish_reason))
        origins = stream.origins[shown : shown + len(text)]
        begin, kept = known - request.prompt_length, request.logprobs
        return cls(
            text,
            tokens,
            drafted,
            request.finish_reason,
            drafted_text=[request.drafted[token] for token in origins],
            origins=origins,
            logprobs=kept.tokens[begin:] if kept else [],
            top_logprobs=kept.top[begin:] if kept else [],
            prompt_logprobs=None if begin else request.prompt_logprobs,
        )
