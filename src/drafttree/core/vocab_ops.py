"""Argmax and sampling over the vocabulary, faster than torch's own.

A draw takes two steps: first over blocks of columns, then inside one block. A row of 128,000 columns has 1,000 blocks
of 128, where `multinomial` draws a random number for every column.
"""

import math
from collections.abc import Callable

from drafttree.core.lazy import Array, Tensor, torch

NOT_A_NUMBER = -1
"""Takes the place of the best token for a row with NaN, which has none."""
BLOCK = 128
"""Columns of a block."""
UNBLOCKED = 4096
"""Draws from rows of at most this many columns use no blocks."""


def argmax(rows: Tensor) -> Tensor:
    """Return the index `[...]` of the largest entry of each row `[..., columns]`; ties go to the lowest index.

    On a CPU numpy looks, since torch's own `argmax` is not vectorised there: it takes four to fifteen times as long.
    """
    if not rows.is_cpu:
        return rows.argmax(-1)
    floats = rows.float() if rows.dtype.itemsize < 4 else rows  # numpy knows no bfloat16
    return torch.as_tensor(floats.numpy().argmax(-1))


def ranked(logits: Tensor, count: int, allowed: int | None = None) -> Tensor:
    """Rank the best tokens of each row, without waiting for the device.

    Args:
        logits: `[rows, columns]`.
        count: tokens per row; all if there are fewer.
        allowed: only ids below this are ranked; the others take part in the softmax. None for all.

    Returns:
        `[2, rows, count]`, float32 or float64: log-probabilities, the best first, and ids. Float32 represents ids below
        2^24 exactly.
    """
    allowed_logits = logits[:, :allowed]
    if count > 1:
        ids = allowed_logits.topk(min(count, allowed_logits.shape[1])).indices
    else:
        ids = allowed_logits.max(-1, keepdim=True).indices
    logprobs = logits.log_softmax(-1).gather(-1, ids)
    logprobs = logprobs if logprobs.dtype.itemsize >= 4 else logprobs.float()  # numpy has no bfloat16
    return torch.stack((logprobs, ids.to(logprobs.dtype)))


def best_tokens(rows: Tensor, row_transform: Callable[[int, Array], Array] | None = None) -> Callable[[int], int]:
    """A function from a row's index to the column of its largest entry, or to `NOT_A_NUMBER` if the row has NaN.

    A walk down a tree asks for the rows along one path, and on a CPU only these are searched. From a device, the
    answers for all rows come in one transfer.

    Args:
        rows: `[rows, columns]`.
        row_transform: on a CPU, maps a row's index and its numbers, float32 or float64, to the numbers to search.
    """
    if not rows.is_cpu:
        values, columns = rows.max(-1)
        return torch.where(values.isnan(), NOT_A_NUMBER, columns).tolist().__getitem__
    host_rows = rows.numpy() if rows.dtype.itemsize >= 4 else None  # numpy has no bfloat16

    def best(row: int) -> int:
        numbers = rows[row].float().numpy() if host_rows is None else host_rows[row]
        numbers = row_transform(row, numbers) if row_transform else numbers
        column = int(numbers.argmax())  # of a NaN, if there is one
        return NOT_A_NUMBER if math.isnan(numbers.item(column)) else column

    return best


def draw(weights: Tensor, uniforms: Tensor) -> Tensor:
    """Draw a column of each row with probability proportional to its weight.

    Args:
        weights: `[..., columns]`, not negative; a column of weight 0 is never drawn.
        uniforms: float64 `[...]` uniform random numbers in [0, 1), one per row.

    Returns:
        int64 `[...]`: the first column at which the cumulative weight reaches (1 - uniform) of the total. For a row
        whose weights are all 0 the column is arbitrary.
    """
    # 1 - uniform lies in (0, 1]: a target of 0 would be reached by a first column of weight 0.
    fractions = (1 - uniforms)[..., None]
    if weights.shape[-1] <= UNBLOCKED:
        return _reach(weights.cumsum(-1, dtype=torch.float64), fractions)[0][..., 0]
    padding = -weights.shape[-1] % BLOCK
    padded_weights = torch.nn.functional.pad(weights, (0, padding)) if padding else weights
    blocks = padded_weights.unflatten(-1, (-1, BLOCK))
    masses = blocks.sum(-1)
    ends = masses.cumsum(-1, dtype=torch.float64)
    block, targets = _reach(ends, fractions)
    block_fraction = (targets - torch.nn.functional.pad(ends, (1, 0)).gather(-1, block)) / masses.gather(-1, block)
    block_weights = blocks.gather(-2, block[..., None].expand(*block.shape, BLOCK))[..., 0, :]
    column, _ = _reach(block_weights.cumsum(-1, dtype=torch.float64), block_fraction.clamp_max(1))
    return (block * BLOCK + column)[..., 0].clamp_max(weights.shape[-1] - 1)


def _reach(ends: Tensor, fractions: Tensor) -> tuple[Tensor, Tensor]:
    """The first column where cumulative sums `[..., columns]` reach fractions `[..., 1]` of the total, and that sum."""
    targets = fractions * ends[..., -1:]
    return torch.searchsorted(ends, targets).clamp_max_(ends.shape[-1] - 1), targets
