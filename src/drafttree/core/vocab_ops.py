"""Questions about single rows over a vocabulary, answered a block of columns at a time.

A row of 128,000 columns is judged by its 1,000 blocks first and then by the 128 columns of one of them. That is far
cheaper than torch's own `argmax`, which is not vectorised for floats on a CPU, and `multinomial`, which makes a random
number for every column.
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

BLOCK, SHORT = 128, 4096


def argmax(rows: Tensor) -> Tensor:
    """Index `[...]` of the largest entry of each row `[..., columns]`, ties to the lowest."""
    if rows.is_cuda or rows.shape[-1] <= SHORT:
        return rows.argmax(-1)
    blocks = _blocks(rows, -torch.inf)
    best = blocks.amax(-1).argmax(-1, keepdim=True)
    return (best * BLOCK)[..., 0] + _block(blocks, best).argmax(-1)


def draw(weights: Tensor, shares: Tensor) -> Tensor:
    """Draw a column of each row with probability proportional to its weight.

    Args:
        weights: `[..., columns]`, not negative; a column of weight 0 is never drawn.
        shares: float64 `[...]` uniform numbers in [0, 1), one for each row.

    Returns:
        int64 `[...]`: the first column up to which the weights add up to 1 - share of their sum. For a row without
        any weight it is some column.
    """
    parts = (1 - shares)[..., None]
    if weights.shape[-1] <= SHORT:
        return _reach(weights.cumsum(-1, dtype=torch.float64), parts)[0][..., 0]
    blocks = _blocks(weights, 0.0)
    masses = blocks.sum(-1)
    ends = masses.cumsum(-1, dtype=torch.float64)
    block, wanted = _reach(ends, parts)
    within = (wanted - pad(ends, (1, 0)).gather(-1, block)) / masses.gather(-1, block)
    column, _ = _reach(_block(blocks, block).cumsum(-1, dtype=torch.float64), within.clamp_max(1))
    return (block * BLOCK + column)[..., 0].clamp_max(weights.shape[-1] - 1)


def _reach(ends: Tensor, parts: Tensor) -> tuple[Tensor, Tensor]:
    """Where sums `[..., columns]` reach these parts `[..., 1]` of the whole, and what they are to reach."""
    wanted = parts * ends[..., -1:]
    return torch.searchsorted(ends, wanted).clamp_max_(ends.shape[-1] - 1), wanted


def _blocks(rows: Tensor, filling: float) -> Tensor:
    """`[..., blocks, BLOCK]` view of rows, which are lengthened to whole blocks where they must be."""
    missing = -rows.shape[-1] % BLOCK
    rows = pad(rows, (0, missing), value=filling) if missing else rows
    return rows.unflatten(-1, (-1, BLOCK))


def _block(blocks: Tensor, index: Tensor) -> Tensor:
    """`[..., BLOCK]` the block of each row at `index` `[..., 1]`."""
    return blocks.gather(-2, index[..., None].expand(*index.shape, BLOCK))[..., 0, :]
