"""The results of a request: a finished text or the chunks of a stream, and what was recorded of its tokens."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from typing import Protocol, Self

from torch import Tensor

from drafttree.core.cost_curve import CostCurve
from drafttree.engine.metrics import Metrics
from drafttree.models import LossyWindow, Model
from drafttree.verifiers import VERIFIERS, Verifier

SHOWN = 60
"""The most characters of a text that `repr` shows."""


@dataclass(frozen=True)
class Fidelity:
    """Whether the texts of a decoder follow the target's distribution.

    Attributes:
        lossy: why they do not follow it; None if they do. A window over the KV cache counts even if texts are shorter
            than it.
        quantization: how the target's weights are quantised; None if they are not. Lossless texts of a quantised target
            follow the distribution of the quantised model.
    """

    lossy: str | None = None
    quantization: str | None = None

    @classmethod
    def of(cls, target: Model, verifier: type[Verifier] | None) -> "Fidelity":
        """The fidelity of a target's texts with a verifier; `verifier` is None for the default ones."""
        reasons = "; and ".join(_reasons(getattr(target, "lossy_window", None), verifier))
        return cls(reasons or None, getattr(target, "quantization", None))

    @property
    def lossless(self) -> bool:
        """Whether the texts follow the target's distribution."""
        return self.lossy is None

    @property
    def words(self) -> str:
        """The fidelity as a phrase."""
        if self.lossy:
            return f"NOT lossless: {self.lossy}"
        return f"lossless with respect to the {self.quantization} target" if self.quantization else "lossless"

    def to_json(self) -> dict[str, bool | str]:
        """A dictionary with `lossless`, and with `lossy` and `quantization` unless they are None."""
        fields = {name: value for name, value in asdict(self).items() if value is not None}
        return {"lossless": self.lossless, **fields}


def _reasons(window: LossyWindow | None, verifier: type[Verifier] | None) -> Iterator[str]:
    if verifier and not verifier.lossless:
        name = next(
            (name for name, verifier_class in VERIFIERS.items() if verifier_class is verifier), verifier.__name__
        )
        yield f"the verifier {name} does not follow the target's distribution"
    if window:
        sink_text = f" and the first {window.sinks}" if window.sinks else ""
        yield f"lossy_window lets the target attend to the last {window.size} tokens{sink_text} only"


class RowRecorder(Protocol):
    """Records the logits that the committed tokens of a text were chosen from."""

    def add(self, logits: Tensor, constrained: Tensor, tokens: Sequence[int]) -> None:
        """Record a round.

        Args:
            logits: the target's own logits `[tokens, vocab]`; row i is the one that `tokens[i]` was chosen from.
            constrained: the logits after processors and grammar, before temperature and truncation.
            tokens: the committed token ids.
        """
        ...


class Logprobs:
    """The target's own log-probabilities: natural logarithms, before processors, temperature and truncation.

    So they do not depend on the options of the text. vLLM does so by default, and OpenAI too.

    Args:
        alternatives: the number of most probable tokens to keep per token.

    Attributes:
        tokens: per token, its log-probability.
        top: per token, the most probable token ids with their log-probabilities, the best first; empty if no
            alternatives are kept.
    """

    def __init__(self, alternatives: int) -> None:
        self.tokens: list[float] = []
        self.top: list[dict[int, float]] = []
        self._alternatives = alternatives

    @classmethod
    def asked_for(cls, option: bool | int | None) -> Self | None:
        """Make the recorder that an option requests; a number asks for alternatives. None for 0, False or None."""
        return cls(0 if option is True else option) if option else None

    def add(self, logits: Tensor, constrained: Tensor, tokens: Sequence[int]) -> None:
        """Keep the log-probabilities of a round's tokens; see `RowRecorder.add`."""
        self.read(logits, tokens)

    def read(self, logits: Tensor, tokens: Sequence[int]) -> None:
        """Keep the log-probabilities of tokens; row i of the logits `[tokens, vocab]` is that of token i."""
        rows = logits.float().log_softmax(-1)
        token_logprobs = rows.gather(1, rows.new_tensor([tokens]).long().T)
        self.tokens += token_logprobs[:, 0].tolist()
        if not self._alternatives:
            return
        top_logprobs = rows.topk(min(self._alternatives, rows.shape[1]))
        self.top += [
            dict(zip(ids, values, strict=True))
            for ids, values in zip(top_logprobs.indices.tolist(), top_logprobs.values.tolist(), strict=True)
        ]


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
        logprobs: per token, its log-probability under the target (see `Logprobs`); None unless
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
        begin = self.text if len(self.text) <= SHOWN else f"{self.text[:SHOWN]}..."
        return f"Generation({begin!r}, {self.finish_reason}, seed={self.seed}, {self.metrics!r})"

    @property
    def lossless(self) -> bool:
        """Whether the text follows the distribution of the target, which may be a quantised model."""
        return self.fidelity.lossless

    @property
    def lossy(self) -> str | None:
        """Why the text is not lossless: the verifier, a window over the KV cache, or both; None if it is lossless."""
        return self.fidelity.lossy

    @property
    def seconds(self) -> float:
        """Wall time, the prompt included."""
        return self.metrics.seconds


@dataclass(frozen=True)
class Chunk:
    """The tokens and the text that one round adds to a stream.

    Attributes:
        text: new text that later tokens cannot change; it may lag behind the tokens.
        tokens: the committed token ids.
        drafted: per token, whether the drafter proposed it.
        finish_reason: set in the last chunk.
        drafted_text: per character of `text`, whether the drafter proposed its token.
        origins: per character of `text`, the index of the token that completed it, counted in the whole text.
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


Ended = Generation | Exception
"""A finished text, or the error that ended it."""


class Reader:
    """Is given the text of a request by the thread that owns the model; this base class ignores it.

    Attributes:
        cancelled: the finish reason with which the text ends before its next round; None to continue. Any thread may
            set it.
        full: whether the text pauses, since the reader accepts no more for now. It may become True only in `chunk`.
    """

    cancelled: str | None = None
    full = False

    def chunk(self, chunk: Chunk) -> None:
        """Take the tokens and the text that a round has added."""

    def end(self, outcome: Ended) -> None:
        """Take the finished text, or the error that ended it; called once."""
