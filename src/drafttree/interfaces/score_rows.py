"""`output_logits` and `output_scores` of transformers' `generate`: the rows every token was chosen from."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from drafttree.core.sampling import Sampling


class ScoreRows:
    """Keeps the rows of one text; see `drafttree.engine.generation.RowRecorder`.

    Args:
        sampling: what follows the logits processors.
        renormalize: whether the scores end with a log-softmax.

    Attributes:
        logits: per round, the model's own logits `[tokens, vocab]`, float32.
        scores: per round, these logits after processors, temperature and truncation.
    """

    def __init__(self, sampling: Sampling, renormalize: bool) -> None:
        self.logits: list[Tensor] = []
        self.scores: list[Tensor] = []
        self._sampling = sampling
        self._renormalize = renormalize

    def add(self, logits: Tensor, constrained: Tensor, tokens: Sequence[int]) -> None:
        """Keep the rows of a round's tokens."""
        scores = self._sampling.process(constrained)
        self.logits.append(logits.float())
        self.scores.append(scores.log_softmax(-1) if self._renormalize else scores)


def score_rows(config: GenerationConfig, sampling: Sampling) -> ScoreRows | None:
    """The recorder that a generation config asks for, None if it wants no rows."""
    needs_rows = config.return_dict_in_generate and (config.output_scores or config.output_logits)
    return ScoreRows(sampling, bool(config.renormalize_logits)) if needs_rows else None


def stack_rows(texts: Sequence[ScoreRows | None], config: GenerationConfig) -> dict[str, tuple[Tensor, ...]]:
    """The rows of a batch as transformers returns them: one `[batch, vocab]` per step.

    A text that ends before the longest one has rows of zeros from there on.
    """
    recorders = [recorder for recorder in texts if recorder]
    output_flags = {"scores": config.output_scores, "logits": config.output_logits}
    return {
        name: pad_sequence([torch.cat(getattr(recorder, name)) for recorder in recorders]).unbind(0)
        for name, flag in output_flags.items()
        if recorders and flag
    }
