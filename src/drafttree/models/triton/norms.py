"""Norms of rows in Triton. A program norms one row or one head, so its numbers depend on nothing else in a pass."""
# pyright: reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from drafttree.models.norms import Norm, norm_of

TRIAL_ROWS = 64
"""Rows by which it is found out how a module rounds; a few narrow ones may come out alike."""


class RowNorm(NamedTuple):
    """A norm, with its rounding.

    Attributes:
        scale: `[width]` of any floating dtype, or `[heads, width]` if each head has its own; None for 1.
        shift: `[width]`, None for none.
        epsilon: added to the mean square.
        is_centred: whether the mean is subtracted first (LayerNorm).
        rounds_early: whether a normed row is rounded to its dtype before it is multiplied by `scale` (Llama), and not
            only after (Gemma, OLMo, LayerNorm).
    """

    scale: Tensor | None
    shift: Tensor | None
    epsilon: float
    is_centred: bool = False
    rounds_early: bool = False

    @classmethod
    def of(cls, norm: Any, width: int = 0) -> "RowNorm | None":
        """The norm that a module of transformers computes, None for a module that does nothing.

        Args:
            norm: the module, its numbers (`drafttree.models.norms.Norm`), or None.
            width: size of the normed dimension, for modules without a weight.

        Raises:
            AttributeError: the kind of norm is not known.
        """
        numbers = norm_of(norm, width)
        if numbers is None:
            return None
        rounds_early = not (isinstance(norm, Norm) or numbers.centred) and _rounds_early(norm, numbers)
        has_scale = isinstance(norm, Norm) or getattr(norm, "weight", None) is not None
        return cls(numbers.scale if has_scale else None, numbers.shift, numbers.epsilon, numbers.centred, rounds_early)


def rms_norm(
    x: Tensor, weight: Tensor | None, epsilon: float, *, rounds_early: bool = False, out: Tensor | None = None
) -> Tensor:
    """RMS norm of rows; `norm_rows` says how `x` may lie in memory.

    Args:
        x: `[rows, width]` in bfloat16, float16 or float32.
        weight: `[width]` of any floating dtype (for Gemma 3, 1 + weight in float32), None for 1.
        epsilon: added to the mean square.
        rounds_early: as of `RowNorm`.
        out: `[rows, width]` for the result, perhaps `x` itself; None for a new tensor.
    """
    return norm_rows(x, RowNorm(weight, None, epsilon, rounds_early=rounds_early), out)


def norm_rows(x: Tensor, norm: RowNorm, out: Tensor | None = None) -> Tensor:
    """Norm rows or heads in one launch.

    Args:
        x: `[rows, width]` or `[rows, heads, width]` in bfloat16, float16 or float32; the numbers of a row or head are
            next to each other.
        norm: the norm.
        out: of the shape and dtype of `x` for the result, perhaps `x` itself; None for a new tensor.

    Returns:
        The normed rows, rounded once to the dtype of `x` or, if the norm rounds early, as often as the module does.

    Raises:
        ValueError: the last dimension of `x` or `out` is strided, or a shape or dtype does not fit.
    """
    out = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    _check(x, norm, out)
    rows, width = x.shape[0], x.shape[-1]
    heads = x.shape[1] if x.ndim == 3 else 1
    scale_stride = norm.scale.stride(0) if norm.scale is not None and norm.scale.ndim == 2 else 0
    if rows:
        _norm_kernel[(rows, heads)](
            x,
            norm.scale,
            norm.shift,
            out,
            x_stride=x.stride(0),
            x_head_stride=x.stride(1) if heads > 1 else 0,
            scale_stride=scale_stride,
            out_stride=out.stride(0),
            out_head_stride=out.stride(1) if heads > 1 else 0,
            epsilon=norm.epsilon,
            WIDTH=width,
            BLOCK=triton.next_power_of_2(width),
            IS_CENTRED=norm.is_centred,
            ROUNDS_EARLY=norm.rounds_early,
            **launch_options(warps_of(width)),
        )
    return out


def join_head_norms(norms: Sequence[tuple[RowNorm, int]], width: int) -> RowNorm:
    """The norms of consecutive heads as one, so that one launch norms queries, keys and values.

    Args:
        norms: the norm of every kind of heads and the number of these heads; one of them has a scale.
        width: width of a head.

    Returns:
        A norm whose `scale` is float32 `[heads, width]`.

    Raises:
        ValueError: the norms differ in more than their scale, or one has a shift.
    """
    first_norm = norms[0][0]
    if any(norm.shift is not None or norm[2:] != first_norm[2:] for norm, _ in norms):
        raise ValueError("norms of heads differ in more than their scale; norm each kind of heads by itself")
    device = next(norm.scale.device for norm, _ in norms if norm.scale is not None)
    scale = torch.ones(sum(heads for _, heads in norms), width, device=device)
    for (norm, _), rows in zip(norms, scale.split([heads for _, heads in norms]), strict=True):
        if norm.scale is not None:
            rows.copy_(norm.scale)
    return first_norm._replace(scale=scale)


def warps_of(width: int) -> int:
    """Number of warps of a program that has a row of this width."""
    return min(max(triton.next_power_of_2(width) // 512, 1), 16)


def launch_options(warps: int, stages: int = 1) -> dict[str, Any]:
    """Options of a launch. Products and sums are not fused, since torch rounds after each, and compilers may differ."""
    return {"num_warps": warps, "num_stages": stages, "enable_fp_fusion": False}


@triton.jit
def rounded(x, DTYPE: tl.constexpr):
    """Float32 numbers, rounded to a dtype."""
    return x.to(DTYPE).to(tl.float32)


@triton.jit
def normed(
    x,
    columns,
    scale,
    shift,
    epsilon,
    WIDTH: tl.constexpr,
    IS_CENTRED: tl.constexpr,
    ROUNDS_EARLY: tl.constexpr,
    DTYPE: tl.constexpr,
):
    """Norm of a row `[BLOCK]` in float32, which is 0 beyond `WIDTH`; the result is still to be rounded to `DTYPE`."""
    is_inside = columns < WIDTH
    if IS_CENTRED:
        mean = tl.sum(x, 0) / WIDTH
        x = tl.where(is_inside, x - mean, 0.0)
    mean_square = tl.sum(x * x, 0) / WIDTH
    x = x * tl.rsqrt(mean_square + epsilon)
    if ROUNDS_EARLY:
        x = rounded(x, DTYPE)
    if scale is not None:
        x = x * tl.load(scale + columns, mask=is_inside, other=0.0).to(tl.float32)
    if shift is not None:
        x = x + tl.load(shift + columns, mask=is_inside, other=0.0).to(tl.float32)
    return x


@triton.jit
def _norm_kernel(
    x,
    scale,
    shift,
    out,
    x_stride,
    x_head_stride,
    scale_stride,
    out_stride,
    out_head_stride,
    epsilon,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_CENTRED: tl.constexpr,
    ROUNDS_EARLY: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    is_inside = columns < WIDTH
    dtype: tl.constexpr = out.dtype.element_ty
    numbers = tl.load(x + row * x_stride + head * x_head_stride + columns, mask=is_inside, other=0.0).to(tl.float32)
    if scale is not None:
        scale += head * scale_stride
    numbers = normed(numbers, columns, scale, shift, epsilon, WIDTH, IS_CENTRED, ROUNDS_EARLY, dtype)
    tl.store(out + row * out_stride + head * out_head_stride + columns, numbers.to(dtype), mask=is_inside)


def _check(x: Tensor, norm: RowNorm, out: Tensor) -> None:
    if x.ndim not in (2, 3) or x.shape != out.shape or x.dtype != out.dtype:
        raise ValueError(f"rows {[*x.shape]} of {x.dtype} cannot be normed into {[*out.shape]} of {out.dtype}")
    if x.stride(-1) != 1 or out.stride(-1) != 1:
        raise ValueError("the numbers of a row to be normed must be next to each other")
    check_norm(norm, [*x.shape[1:]])


def check_norm(norm: RowNorm, shape: Sequence[int]) -> None:
    """Check that a norm fits rows `[width]` or `[heads, width]`.

    Raises:
        ValueError: it does not.
    """
    for tensor in (norm.scale, norm.shift):
        if tensor is None:
            continue
        if [*tensor.shape] not in ([shape[-1]], [*shape]) or tensor.stride(-1) != 1:
            raise ValueError(f"a norm of {[*tensor.shape]} numbers cannot norm rows of {[*shape]}")


@torch.inference_mode()
def _rounds_early(norm: Any, numbers: Norm) -> bool:
    """Whether a module rounds rows before it multiplies them by its weight, by what it makes of some rows."""
    weight = getattr(norm, "weight", None)
    if weight is None or weight.dtype == torch.float32:
        return False
    numbers_of_rows = torch.linspace(-3, 3, TRIAL_ROWS * len(weight), device=weight.device)
    rows = numbers_of_rows.view(-1, TRIAL_ROWS).t().to(weight.dtype)
    float_rows = rows.float()
    normed_rows = float_rows * torch.rsqrt(float_rows.square().mean(1, keepdim=True) + numbers.epsilon)
    late_rows = (normed_rows * numbers.scale).to(rows.dtype)
    early_rows = (normed_rows.to(rows.dtype).float() * numbers.scale).to(rows.dtype)
    module_rows = norm(rows)
    return int((module_rows == early_rows).sum()) > int((module_rows == late_rows).sum())
