"""ALiBi: a bias of each score that grows with the distance between two tokens (Press et al. 2022).

A number that is added to all scores of a query changes nothing, so one bias per row of the KV cache is enough. Modules
take a row's bias from its index. But in a tree several rows have the same position, so here it is taken from the
position.
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
    """Context manager: each row of the KV cache gets the bias of its position; `positions` are `[rows]`."""
    model_type = decoder.config.model_type
    builder = getattr(decoder, BUILDERS[model_type])
    rows = positions - positions.min()
    length = int(rows.max()) + 1
    builders = {
        "bloom": lambda mask, heads, **kwargs: builder(mask.new_ones(1, length), heads, **kwargs)[..., rows],
        "mpt": lambda heads, _, **kwargs: builder(heads, length, **kwargs)[..., rows],
    }
    setattr(decoder, BUILDERS[model_type], builders[model_type])
    try:
        yield
    finally:
        delattr(decoder, BUILDERS[model_type])
