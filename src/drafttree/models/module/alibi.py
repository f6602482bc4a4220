"""ALiBi: a bias of each score that grows with the distance between two tokens (Press et al. 2022).

The modules add a bias per row of the KV cache, since softmax takes no notice of what a query adds to all of its scores.
They count rows, but those of branches lie behind each other, so biases are picked by the positions of rows instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

BUILDERS = {"bloom": "build_alibi_tensor", "mpt": "build_mpt_alibi_tensor"}
"""The method by which a decoder makes its biases, by model type."""


def has_alibi(config: Any) -> bool:
    """Whether a model's scores have biases of this kind."""
    return config.model_type in BUILDERS or bool(getattr(config, "alibi", False))


@contextmanager
def biases_by_position(decoder: Any, positions: Tensor) -> Iterator[None]:
    """Let passes bias the rows of a KV cache by these positions `[rows]`."""
    kind = decoder.config.model_type
    build, rows = getattr(decoder, BUILDERS[kind]), positions - positions.min()
    length = int(rows.max()) + 1
    picked = {
        "bloom": lambda mask, heads, **named: build(mask.new_ones(1, length), heads, **named)[..., rows],
        "mpt": lambda heads, _, **named: build(heads, length, **named)[..., rows],
    }
    setattr(decoder, BUILDERS[kind], picked[kind])
    try:
        yield
    finally:
        delattr(decoder, BUILDERS[kind])
