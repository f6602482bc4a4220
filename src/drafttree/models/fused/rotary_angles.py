"""Cosines and sines of rotary embeddings, by position."""

import torch
from torch import Tensor

SMALLEST_TABLE = 1024
"""Positions of the first table."""


class RotaryAngles:
    """Cosines and sines of a rotary embedding, by position.

    On a CPU they are looked up in a table, which grows with the positions asked for. That takes three operations in a
    pass instead of ten. On other devices every pass computes them, since a recorded pass reads memory that must not
    move.

    Args:
        frequencies: `[pairs]`.
        scaling: factor of cosines and sines.
        dtype: their dtype.
    """

    def __init__(self, frequencies: Tensor, scaling: float, dtype: torch.dtype) -> None:
        self._frequencies = frequencies.float().clone()
        self._scaling = scaling
        self._dtype = dtype
        self._table = self._make_table(SMALLEST_TABLE) if self._frequencies.is_cpu else None

    def of(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The cosines `[nodes, 1, rotated]` of positions `[1, nodes]`, and the sines, negative in their first half."""
        if self._table is None:
            return self._compute(positions)
        if (largest_position := int(positions.numpy().max())) >= self._table.shape[1]:
            self._table = self._make_table(2 * largest_position)
        cosine, sine = self._table.index_select(1, positions[0])
        return cosine, sine

    def _make_table(self, rows: int) -> Tensor:
        return torch.stack(self._compute(torch.arange(rows)))

    def _compute(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        angles = positions.reshape(-1, 1, 1) * self._frequencies
        cosine, sine = angles.cos() * self._scaling, angles.sin() * self._scaling
        return torch.cat((cosine, cosine), -1).to(self._dtype), torch.cat((-sine, sine), -1).to(self._dtype)
