"""The angles of a rotary position embedding."""

from typing import Any

import torch
from torch import Tensor

SMALLEST_TABLE = 1024
"""Positions of the first table."""


class RotaryAngles:
    """Cosines and sines of a static rotary embedding of transformers, by position.

    On a CPU they are kept in a table, which grows with the positions that are asked for: a pass looks them up in three
    operations instead of computing them in ten. A recorded pass computes them, since its memory must not move.

    Args:
        rotary: the embedding.
        dtype: of the angles.
        layer_type: of the layers they are for, where the embedding has several (Gemma 3).
    """

    def __init__(self, rotary: Any, dtype: torch.dtype, layer_type: str | None = None) -> None:
        prefix = f"{layer_type}_" if hasattr(rotary, f"{layer_type}_inv_freq") else ""
        self._frequencies: Tensor = getattr(rotary, f"{prefix}inv_freq")
        self._scaling: float = getattr(rotary, f"{prefix}attention_scaling")
        self._dtype = dtype
        self._table = self._make_table(SMALLEST_TABLE) if self._frequencies.is_cpu else None

    def of(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """The cosines `[nodes, 1, rotated]` of positions `[1, nodes]`, and the sines, negative in their first half."""
        if self._table is None:
            return self._compute(positions)
        if (last := int(positions.numpy().max())) >= self._table.shape[1]:
            self._table = self._make_table(2 * last)
        cosine, sine = self._table.index_select(1, positions[0])
        return cosine, sine

    def _make_table(self, rows: int) -> Tensor:
        return torch.stack(self._compute(torch.arange(rows)))

    def _compute(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        turns = positions.reshape(-1, 1, 1) * self._frequencies
        cosine, sine = turns.cos() * self._scaling, turns.sin() * self._scaling
        return torch.cat((cosine, cosine), -1).to(self._dtype), torch.cat((-sine, sine), -1).to(self._dtype)
