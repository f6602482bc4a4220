"""ALiBi: a bias of each score that grows with the distance between two tokens (Press et al. 2022).

A bias per row of the KV cache is enough, since a number added to all scores of a query changes nothing. The modules
number rows by their order, but in a tree rows of several branches follow each other, so biases are picked by the
positions of rows instead.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor

BUILDERS = {"bloom": "build_alibi_tensor", "mpt": "build_mpt_alibi_tensor"}
"""The method by which a decoder makes its biases, by model type."""


def has_alibi(config: Any) -> bool:
    """Whether a model adds ALiBi biases to its scores."""
    return config.model_type in BUILDERS or bool(getattr(config, "alibi", False))


@contextmanager
def biases_by_position(decoder: Any, positions: Tensor) -> Iterator[None]:
    """Context manager: passes add to each row of the KV cache the bias of its position, given as `[rows]`."""
    model_type = decoder.config.model_type
    builder = getattr(decoder, BUILDERS[model_type])
    rows = positions - positions.min()
    length = int(rows.max()) + 1
    builders = {
        "bloom": lambda mask, heads, **named: builder(mask.new_ones(1, length), heads, **named)[..., rows],
        "mpt": lambda heads, _, **named: builder(heads, length, **named)[..., rows],
    }
    setattr(decoder, BUILDERS[model_type], builders[model_type])
    try:
        yield
    finally:
        delattr(decoder, BUILDERS[model_type])
