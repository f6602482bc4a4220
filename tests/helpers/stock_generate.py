"""Arguments of transformers' `generate`: a streamer, a criterion and padded prompts."""

import torch
from transformers import (
    StoppingCriteria,
)
from transformers.generation import BaseStreamer

from testing import tiny


class Recorder(BaseStreamer):
    def __init__(self) -> None:
        self.values: list[torch.Tensor] = []
        self.ends = 0

    def put(self, value) -> None:
        self.values.append(value)

    def end(self) -> None:
        self.ends += 1


class StopAt(StoppingCriteria):
    """Stops after a token divisible by three, and notes all it was asked."""

    def __init__(self) -> None:
        self.asked: list[list[int]] = []

    def __call__(self, input_ids, scores, **kwargs):
        self.asked.append(input_ids[0].tolist())
        return input_ids[:, -1] % 3 == 0


def padded(*lengths: int) -> dict[str, torch.Tensor]:
    """Prompts of these lengths, padded on the left with token 0."""
    ids, mask = torch.zeros(len(lengths), max(lengths), dtype=torch.long), torch.zeros(len(lengths), max(lengths))
    for row, length in enumerate(lengths):
        ids[row, -length:] = torch.tensor(tiny.random_tokens(length, 7 + row)) + 1
        mask[row, -length:] = 1
    return {"input_ids": ids % tiny.VOCAB, "attention_mask": mask.long()}
