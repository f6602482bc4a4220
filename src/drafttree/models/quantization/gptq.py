"""Weights rounded to four bits by GPTQ, which makes up for a column's rounding error in the columns after it.

Frantar et al. 2023, "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers", Algorithm 1.
Scales are found beforehand from the weight itself, so that columns can be rounded in any order. Those with the largest
inputs come first, while many columns are left to make up for their errors (`--act-order` there). Scales that weigh
errors by the size of inputs were no better on Gemma 3 270M. With them, perplexity rose by 10.7 +- 0.7 and 7.1 +- 0.7 %
on two texts; without, by 8.9 +- 0.6 and 8.3 +- 0.8 %.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from drafttree.models.quantization.blocks import GROUP, pack_q4_zero

LARGEST = 15
DAMPING = 0.05
"""Fraction of its mean that is added to the diagonal of a Hessian, since that is counted on few texts only."""
AT_ONCE = 128
"""Columns of a block. Errors are passed on at once within the block, and to the rest of the weight after it."""
PARTS = 8
"""Inputs are split into this many parts, so that little more than the upper triangle of a Hessian is summed."""
SMALLEST_SCALE = 2.0**-17
"""The smallest scale. From here on a bfloat16 is a float16 too, so that files of both dtypes have the same scales."""
SHRUNK = (1.0, 0.95, 0.9, 0.85, 0.8, 0.75, 0.7)
"""Fractions of a group's range that are tried. Values outside are clipped, and the others are rounded more finely."""


class Hessian:
    """The sum of products of a linear layer's inputs over all rows, by which rounding errors are weighed.

    Args:
        inputs: number of inputs.
    """

    def __init__(self, inputs: int) -> None:
        self._sums = torch.zeros(inputs, inputs)
        self._bounds = [inputs * index // PARTS for index in range(PARTS + 1)]

    def add(self, rows: Tensor) -> None:
        """Add rows of inputs `[..., inputs]` to the sum."""
        flat_rows = rows.flatten(0, -2).float()
        for start, end in zip(self._bounds, self._bounds[1:], strict=False):
            self._sums[start:end, start:].addmm_(flat_rows[:, start:end].t(), flat_rows[:, start:])

    def matrix(self) -> Tensor:
        """The whole matrix `[inputs, inputs]`."""
        upper_triangle = self._sums.triu()
        return upper_triangle + upper_triangle.triu(1).t()


class RoundedWeight(NamedTuple):
    """A weight in four bits, with values `scale * (number - zero)`.

    Attributes:
        numbers: uint8 `[out, in]`, from 0 to 15.
        scales: float16 `[out, groups]`, each of which is a bfloat16 too.
        zeros: uint8 `[out, groups]`, from 0 to 15.
    """

    numbers: Tensor
    scales: Tensor
    zeros: Tensor

    def blocks(self) -> Tensor:
        """The weight as `q4_zero` blocks of `drafttree.models.quantization.blocks`."""
        return pack_q4_zero(self.numbers, self.scales, self.zeros)

    def dequantized(self) -> Tensor:
        """The weight, `[out, in]` in float32."""
        grouped_numbers = self.numbers.unflatten(1, (-1, GROUP))
        return ((grouped_numbers - self.zeros[..., None].float()) * self.scales[..., None].float()).flatten(1)


@torch.no_grad()
def round_weight(weight: Tensor, hessian: Tensor) -> RoundedWeight:
    """Round a weight to four bits so that the layer's outputs change little.

    Args:
        weight: `[out, in]`; the number of inputs is a multiple of 32.
        hessian: `[in, in]`, as of `Hessian.matrix`.
    """
    if not bool(hessian.diagonal().any()):  # without rows, all inputs count alike
        hessian = torch.eye(len(hessian))
    scales, zeros = find_scales(weight)
    order = hessian.diagonal().argsort(descending=True)
    pending_columns = weight.float().t()[order]  # so that a column's numbers are contiguous
    group_of = order // GROUP
    units = scales.float().t()[group_of]
    zero_points = zeros.float().t()[group_of]
    factors = _factors(hessian[order][:, order])
    numbers = torch.empty(pending_columns.shape, dtype=torch.uint8)
    for start in range(0, len(pending_columns), AT_ONCE):
        end = min(start + AT_ONCE, len(pending_columns))
        block = slice(start, end)
        numbers[block], errors = _round_columns(
            pending_columns[block], units[block], zero_points[block], factors[block, block]
        )
        pending_columns[end:].addmm_(factors[block, end:].t(), errors, alpha=-1)
    unpermuted = torch.empty_like(numbers)
    unpermuted[order] = numbers
    return RoundedWeight(unpermuted.t().contiguous(), scales, zeros)


def _round_columns(columns: Tensor, units: Tensor, zero_points: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Round one column after another, and correct the later columns for its error.

    Args:
        columns: `[columns, out]` of a weight; changed in place.
        units: scales `[columns, out]`.
        zero_points: zeros `[columns, out]`.
        factors: `[columns, columns]`, as of `_factors`.

    Returns:
        The numbers from 0 to 15, and the errors by which columns after these have to change, both `[columns, out]`.
    """
    numbers = torch.empty(columns.shape, dtype=torch.uint8)
    errors = torch.empty_like(columns)
    for index, column in enumerate(columns):
        centred_numbers = _rounded(column, units[index], zero_points[index])
        numbers[index] = centred_numbers + zero_points[index]
        errors[index] = (column - centred_numbers * units[index]) / factors[index, index]
        columns[index + 1 :].addr_(factors[index, index + 1 :], errors[index], alpha=-1)
    return numbers, errors


def find_scales(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Scales float16 and zeros uint8 `[out, groups]` that round a weight `[out, in]` with the least error."""
    grouped_weight = weight.float().unflatten(1, (-1, GROUP))
    group_min = grouped_weight.amin(-1, keepdim=True).clamp_(max=0)
    group_max = grouped_weight.amax(-1, keepdim=True).clamp_(min=0)
    least_error = best_scale = best_zero = torch.empty(0)
    for fraction in SHRUNK:
        scale = _as_stored((group_max - group_min) * fraction / LARGEST)
        zero = (-group_min * fraction / scale).round_().clamp_(0, LARGEST)
        numbers = _rounded(grouped_weight, scale, zero)
        # the scale that fits these numbers best
        product = (numbers * grouped_weight).sum(-1, keepdim=True)
        square = (numbers * numbers).sum(-1, keepdim=True)
        scale = _as_stored(torch.where(product > 0, product / square, scale))
        numbers = _rounded(grouped_weight, scale, zero)
        error = (numbers * scale - grouped_weight).square_().sum(-1, keepdim=True)
        if not len(least_error):
            least_error = error
            best_scale = scale
            best_zero = zero
            continue
        is_better = error < least_error
        least_error = torch.where(is_better, error, least_error)
        best_scale = torch.where(is_better, scale, best_scale)
        best_zero = torch.where(is_better, zero, best_zero)
    return best_scale[..., 0].half(), best_zero[..., 0].to(torch.uint8)


def _rounded(weight: Tensor, scale: Tensor, zero: Tensor) -> Tensor:
    """Round a weight to `number - zero` with numbers from 0 to 15, as floats."""
    return (weight / scale).add_(zero).round_().clamp_(0, LARGEST).sub_(zero)


def _as_stored(scale: Tensor) -> Tensor:
    return scale.bfloat16().float().clamp(min=SMALLEST_SCALE)


def _factors(hessian: Tensor) -> Tensor:
    """The upper Cholesky factor of the inverse of a damped Hessian, which decides how errors are passed on.

    H = R R^T with R upper is a Cholesky decomposition from the end, and the inverse of R is that factor.
    """
    damped_hessian = hessian + torch.eye(len(hessian)) * (DAMPING * hessian.diagonal().mean())
    lower_factor = torch.linalg.cholesky(damped_hessian.flip(0, 1))
    upper_factor = lower_factor.flip(0, 1)
    return torch.linalg.solve_triangular(upper_factor, torch.eye(len(upper_factor)), upper=True)
