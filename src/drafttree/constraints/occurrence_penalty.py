"""OpenAI's penalties of tokens that a text holds already; transformers has none that leave the prompt out."""

import torch
from torch import Tensor
from transformers import LogitsProcessor


class OccurrencePenalty(LogitsProcessor):
    """Subtracts from the logits of tokens that were generated: once each, and as often as each was.

    OpenAI's and vLLM's definition: `logits -= presence * (count > 0) + frequency * count`, the prompt not counted.

    Args:
        prompt_length: tokens before the text.
        presence: subtracted from every token that occurs.
        frequency: subtracted for every time it does.
    """

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        self._prompt_length, self._presence, self._frequency = prompt_length, presence, frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        written = input_ids[:, self._prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, written, torch.ones_like(written, dtype=scores.dtype))
        return scores - self._presence * (counts > 0) - self._frequency * counts
