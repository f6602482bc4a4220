"""Records `output_logits` and `output_scores` of transformers' `generate`: the logits that tokens are chosen from."""

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationConfig

from drafttree.core.sampling import Sampling


class ScoreRows:
    """Records logits and scores of one text; a `drafttree.engine.generation.RowRecorder`.

    Args:
        sampling: temperature and truncation, which follow the logits processors.
        renormalize: whether to apply log-softmax to the scores.

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
        """Record the logits and scores of a round's tokens."""
        scores = self._sampling.process(constrained)
        self.logits.append(logits.float())
        self.scores.append(scores.log_softmax(-1) if self._renormalize else scores)


def score_rows(config: GenerationConfig, sampling: Sampling) -> ScoreRows | None:
    """The recorder that a generation config asks for; None if it asks for neither logits nor scores."""
    needs_rows = config.return_dict_in_generate and (config.output_scores or config.output_logits)
    return ScoreRows(sampling, bool(config.renormalize_logits)) if needs_rows else None


def stack_rows(texts: Sequence[ScoreRows | None], config: GenerationConfig) -> dict[str, tuple[Tensor, ...]]:
    """The logits and scores of a batch as transformers returns them: one tensor `[batch, vocab]` per step.

    Texts that end before the longest one are padded with rows of zeros.
    """
    recorders = [recorder for recorder in texts if recorder]
    output_flags = {"scores": config.output_scores, "logits": config.output_logits}
    return {
        name: pad_sequence([torch.cat(getattr(recorder, name)) for recorder in recorders]).unbind(0)
        for name, flag in output_flags.items()
        if recorders and flag
    }
