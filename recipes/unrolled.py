"""A head unrolled over levels as in drafting ("training-time test", Li et al. 2025, section 3.2)."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from drafttree.models import Segment
from drafttree.models.attention.tree_attention import TreePlan
from drafttree.models.module.module_inputs import ModuleInputs, SegmentCache
from drafttree.models.segment import PassTensors

Run = Callable[[ModuleInputs, Tensor], Tensor]


class UnrolledRows(DynamicCache):
    """A cache of all levels' keys and values, through which gradients flow; for `TreePlan` all its rows are drafted."""

    length, next_position, windowed, exact_text = 0, 0, None, False

    def __init__(self) -> None:
        super().__init__()
        self.drafted = 0
        self.positions = np.zeros(0, dtype=np.int64)

    def committed_positions(self, device: torch.device) -> Tensor:
        """`[0]`: no row is committed."""
        return torch.empty(0, dtype=torch.long, device=device)

    def grow(self, positions: np.ndarray) -> None:
        """Count the rows of a level, whose positions are `[rows]`."""
        self.positions = np.concatenate((self.positions, positions))
        self.drafted = len(self.positions)


def unroll(run: Run, state: Tensor, inputs: Tensor, levels: int) -> Tensor:
    """Compute a head's outputs `[batch, rows, levels, hidden]`, each level from those of the level before.

    Row i of a level reads the token `level + 1` positions after the hidden state that row i of the first level
    reads. It attends to rows 0 to i of the first level, which drafting would have in the KV cache, and to row i of
    every later level, its ancestors in the tree.

    Args:
        run: a pass of the head over the inputs and the states `[batch, rows, hidden]` of a level.
        state: `[batch, rows, hidden]` what the first level reads.
        inputs: `[batch, rows + levels]` token ids.
        levels: how many there are.
    """
    rows = np.arange(state.shape[1])
    outputs = unroll_rows(run, state, inputs[:, 1:], rows, np.tri(len(rows), dtype=bool), [rows] * levels)
    return torch.stack(outputs, 2)


def unroll_rows(
    run: Run, state: Tensor, inputs: Tensor, positions: np.ndarray, visible: np.ndarray, levels: Sequence[np.ndarray]
) -> list[Tensor]:
    """Compute the outputs `[batch, rows of the level, hidden]` of every level, each of fewer rows than the one before.

    Args:
        run: as for `unroll`.
        state: as for `unroll`.
        inputs: `[batch, rows + levels - 1]` the token that each row of the first level reads; a row of another level
            reads the token as many rows later.
        positions: `[rows]` of the first level in their texts, which may be several behind each other.
        visible: bool `[rows, rows]`: which rows of the first level each of them attends to.
        levels: per level its rows, in rising order; the first has all, and each only rows of the level before.
    """
    cache, outputs = UnrolledRows(), list[Tensor]()
    for level, rows in enumerate(levels):
        if not len(rows):  # nor has any later level
            outputs.append(state[:, :0])
            continue
        earlier = [rows[:, None] == others for others in levels[1 : level + 1]]
        seen = np.concatenate((visible[rows], *earlier), 1)
        segment = Segment(cache, np.zeros_like(rows), positions[rows] + level, seen)  # of each text in turn
        if level:
            state = state[:, torch.from_numpy(np.searchsorted(levels[level - 1], rows)).to(state.device)]
        tokens = inputs[:, torch.from_numpy(rows + level).to(inputs.device)]
        state = run(level_inputs(segment, tokens, state.dtype), state)
        cache.grow(segment.positions)
        outputs.append(state)
    return outputs


def level_inputs(segment: Segment, tokens: Tensor, dtype: torch.dtype) -> ModuleInputs:
    """The inputs of a pass over tokens `[batch, rows]` whose texts all are at the positions of a segment."""
    tensors = PassTensors.of([segment], tokens.device)
    positions = tensors.positions
    plan = TreePlan(segment, positions, tensors.visible[0], dtype)
    return ModuleInputs(tokens, positions, SegmentCache(segment, positions), plan)
