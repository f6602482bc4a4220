"""Log-probabilities of generated tokens, from the rows the target's passes compute anyway."""

from collections.abc import Sequence
from typing import Protocol, Self

from torch import Tensor


class RowRecorder(Protocol):
    """Sees the rows that the committed tokens of a text were chosen from."""

    def add(self, logits: Tensor, constrained: Tensor, tokens: Sequence[int]) -> None:
        """Take note of one round.

        Args:
            logits: `[tokens, vocab]` the target's own; row i is what `tokens[i]` was chosen from.
            constrained: `[tokens, vocab]` the same after logits processors and grammar, before the sampling.
            tokens: the committed token ids.
        """
        ...


class Logprobs:
    """The target's own log-probabilities: natural, before processors, temperature and truncation.

    So they say what the model thinks of the text, and do not depend on the options it was chosen by: vLLM's default
    meaning, and OpenAI's.

    Args:
        alternatives: most probable tokens to keep beside every generated one.

    Attributes:
        tokens: per token, its log-probability.
        top: per token, the most probable token ids and their log-probabilities, the best first; empty without any.
    """

    def __init__(self, alternatives: int) -> None:
        self.tokens: list[float] = []
        self.top: list[dict[int, float]] = []
        self._alternatives = alternatives

    @classmethod
    def asked_for(cls, wanted: bool | int | None) -> Self | None:
        """Those that an option wants: True for none beside the token, a number for so many; None for nothing."""
        return cls(0 if wanted is True else wanted) if wanted else None

    def add(self, logits: Tensor, constrained: Tensor, tokens: Sequence[int]) -> None:
        """Keep the log-probabilities of a round's tokens; see `RowRecorder.add`."""
        self.read(logits, tokens)

    def read(self, logits: Tensor, tokens: Sequence[int]) -> None:
        """Keep the log-probabilities of tokens, one for every row of logits `[tokens, vocab]`."""
        rows = logits.float().log_softmax(-1)
        chosen = rows.gather(1, rows.new_tensor([tokens]).long().T)
        self.tokens += chosen[:, 0].tolist()
        if not self._alternatives:
            return
        best = rows.topk(min(self._alternatives, rows.shape[1]))
        self.top += [
            dict(zip(ids, values, strict=True))
            for ids, values in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]
