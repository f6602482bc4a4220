"""What a request gives: a finished text, or the parts of one that is streamed."""

from copy import deepcopy
from dataclasses import dataclass, field

from drafttree.core.cost_curve import CostCurve
from drafttree.engine.fidelity import Fidelity
from drafttree.engine.logprobs import Logprobs
from drafttree.engine.metrics import Metrics
from drafttree.engine.request import Request

SHOWN = 60
"""Characters of a text that its `repr` shows."""


@dataclass(frozen=True)
class Generation:
    """A finished text.

    Attributes:
        text: the generated text, without the prompt and the stop string. Empty without a tokenizer.
        tokens: the generated token ids, including an EOS token and the tokens of a stop string.
        drafted: per token, whether the drafter proposed it.
        finish_reason: "stop", "length" or "interrupted".
        metrics: passes, tokens and times.
        seed: random seed; None for a greedy text, which needs none. The same prompt, options and seed give this text
            again, except in a batch with a verifier other than greedy and coupled.
        fidelity: whether the text follows the target's distribution, and whether the target is quantised.
        costs: the cost curve the policy used; None if it uses none. With a verifier other than greedy and coupled, a
            seed repeats this text only with this curve (`Decoder.with_costs`).
        logprobs: per token, its log-probability under the target (see `engine.logprobs.Logprobs`); None unless
            requested.
        top_logprobs: per token, the most probable token ids and their log-probabilities; None unless requested.
        prompt_logprobs: as `logprobs`, for the prompt's tokens after the first.
        prompt_top_logprobs: as `top_logprobs`, for the prompt's tokens after the first.
    """

    text: str
    tokens: list[int]
    drafted: list[bool]
    finish_reason: str
    metrics: Metrics
    seed: int | None
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
        """Whether the text follows the distribution of the target, which may be a quantised model."""
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
        kept, prompt, sampling = request.logprobs, request.prompt_logprobs, request.verifier.sampling
        return cls(
            text=request.text.text,
            tokens=request.tokens[request.prompt_length :],
            drafted=request.drafted,
            finish_reason=request.finish_reason or "interrupted",
            metrics=request.metrics,
            seed=None if sampling.greedy else sampling.seed,
            fidelity=request.fidelity,
            costs=request.drafting.costs,
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
        text: new text that later tokens cannot change; it may lag behind the tokens.
        tokens: the committed token ids.
        drafted: per token, whether the drafter proposed it.
        finish_reason: set in the last chunk.
        drafted_text: per character of `text`, whether the drafter proposed its token.
        origins: per character of `text`, the index in the whole text of the token that completed it.
        logprobs: per token, its log-probability under the target; empty unless requested.
        top_logprobs: per token, the most probable token ids and their log-probabilities; empty unless requested.
        prompt_logprobs: in the first chunk, log-probabilities of the prompt's tokens after the first; None unless
            requested.
        stopped_by: in the last chunk, the stop string that ended the text; None if there was none.
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
    stopped_by: str | None = None

    @classmethod
    def since(cls, known: int, request: Request) -> "Chunk":
        """What a request has added to its stream since it had so many tokens."""
        tokens, stream = request.tokens[known:], request.text
        drafted = request.drafted[len(request.drafted) - len(tokens) :]
        shown = stream.shown
        text = stream.read()
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
            top_logprobs=[*map(dict, kept.top[begin:])] if kept else [],
            prompt_logprobs=None if begin else deepcopy(request.prompt_logprobs),
            stopped_by=stream.stopped_by,
        )
