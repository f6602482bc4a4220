"""A head unrolled over levels as in drafting ("training-time test", Li et al. 2025, section 3.2)."""

from collections.abc import Callable

import torch
from torch import Tensor
from transformers import DynamicCache

from drafttree.models import Segment


class UnrolledRows(DynamicCache):
    """A cache of all levels' keys and values, through which gradients flow; for `TreePlan` all its rows are drafted."""

    length, next_position, windowed, exact_text = 0, 0, None, False
    positions: Tensor | None = None

    def committed_positions(self, device: torch.device) -> Tensor:
        """`[0]`: no row is committed."""
        return torch.empty(0, dtype=torch.long, device=device)

    def grow(self, positions: Tensor) -> None:
        """Do nothing: no row is ever committed."""


def unroll(run: Callable[[Segment, Tensor], Tensor], state: Tensor, inputs: Tensor, levels: int) -> Tensor:
    """Compute a head's outputs `[batch, rows, levels, hidden]`, each level from those of the level before.

    Row i of a level reads the token `level + 1` positions after the hidden state that row i of the first level
    reads. It attends to rows 0 to i of the first level, which drafting would have in the KV cache, and to row i of
    every later level, its ancestors in the tree.

    Args:
        run: a pass of the head over the tokens and the states `[batch, rows, hidden]` of a level.
        state: `[batch, rows, hidden]` what the first level reads.
        inputs: `[batch, rows + levels]` token ids.
        levels: how many there are.
    """
    rows, cache, outputs = state.shape[1], UnrolledRows(), list[Tensor]()
    positions = torch.arange(rows, device=inputs.device)[None]
    own_row = torch.eye(rows, dtype=torch.bool, device=inputs.device)[None]
    visible = own_row.new_ones(1, rows, rows).tril()
    for level in range(levels):
        tokens = inputs[:, level + 1 : level + 1 + rows]
        state = run(Segment(cache, tokens, positions + level, visible, wanted=slice(0, 0)), state)
        cache.positions = torch.arange(rows).repeat(level + 1)[None].to(inputs.device) + torch.arange(
            level + 1, device=inputs.device
        ).repeat_interleave(rows)
        outputs.append(state)
        visible = torch.cat((visible, own_row), 2)
    return torch.stack(outputs, 2)
