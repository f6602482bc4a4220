"""Products of few rows with a weight in Triton, with what a decoder layer does to their results.

A row's numbers do not depend on the other rows, on their number or on its place. An output is the sum of fixed parts
of the inputs ("splits"), each added in blocks of fixed length; how many parts and how long depends on the weight's
shape and dtype alone. Each part is added up by a program of its own, and a second kernel adds the parts in order and
finishes the outputs. Where there is one part, the first kernel finishes them.

Weights are the left factor of the tiles' products, and rows the right. So 16 rows are enough to fill a tile, and the
instructions are the same for any number of rows: only their width grows, which does not touch the sums.
"""
# pyright: reportMissingImports=false, reportArgumentType=false, reportAssignmentType=false
# pyright: reportGeneralTypeIssues=false, reportIndexIssue=false, reportAttributeAccessIssue=false

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from drafttree.models.triton.norms import RowNorm, check_norm, launch_options, normed, rounded, warps_of

BLOCK_N = 64
"""Outputs of a tile; fewer would not fill the matrix instructions of Hopper."""
FEWEST_ROWS = 16
"""Rows of a tile at least."""
PROGRAMS = 512
"""Programs that a product has at least if its inputs can be split so far: some four for each processor of an H200."""
SHORTEST_SPLIT = 4
"""Blocks of a split at least."""
FINISHED_AT_ONCE = 256
"""Outputs of a program that adds up splits, where no norm needs the whole row."""
FLOATS = (torch.bfloat16, torch.float16, torch.float32)
ACTIVATIONS = {
    **dict.fromkeys(("silu", "swish"), "silu"),
    **dict.fromkeys(("gelu", "gelu_python"), "gelu"),
    **dict.fromkeys(("gelu_pytorch_tanh", "gelu_python_tanh", "gelu_new", "gelu_fast", "gelu_accurate"), "gelu_tanh"),
    "relu": "relu",
}
"""Activation functions of the kernels by their names in transformers (`ACT2FN`).

The kernels round once, where modules that write GELU out in Python round after each operation.
"""
ACTIVATION_CLASSES = {
    **dict.fromkeys(("SiLUActivation", "SiLU"), "silu"),
    **dict.fromkeys(("GELUActivation", "GELU"), "gelu"),
    **dict.fromkeys(("GELUTanh", "NewGELUActivation", "FastGELUActivation", "AccurateGELUActivation"), "gelu_tanh"),
    "ReLU": "relu",
}
"""The same by class names in transformers and torch."""


class Tiling(NamedTuple):
    """How the sums of a product are split, which depends on the weight alone.

    Attributes:
        block_k: inputs of a tile.
        split_length: inputs of a split, a multiple of `block_k`; the last split may be shorter.
        splits: number of splits.
    """

    block_k: int
    split_length: int
    splits: int

    @classmethod
    def of(cls, outputs: int, inputs: int, dtype: torch.dtype) -> "Tiling":
        """The tiling for rows of a dtype and a weight `[outputs, inputs]`."""
        block_k = 64 if dtype == torch.float32 else 128
        blocks = triton.cdiv(inputs, block_k)
        most_splits = min(PROGRAMS // triton.cdiv(outputs, BLOCK_N), blocks // SHORTEST_SPLIT)
        splits = 1
        while 2 * splits <= most_splits:
            splits *= 2
        split_length = triton.cdiv(blocks, splits) * block_k
        return cls(block_k, split_length, triton.cdiv(inputs, split_length))


@dataclass(frozen=True)
class LinearWeight:
    """The weight of a linear layer.

    Attributes:
        values: `[outputs, inputs]` in bfloat16, float16, float32 or int8; the numbers of a row are next to each other.
        bias: `[outputs]`, None for none.
        scale: float32 `[outputs]` factors of rows of int8, else None.

    Raises:
        ValueError: a shape, a dtype or the order in memory does not fit.
    """

    values: Tensor
    bias: Tensor | None = None
    scale: Tensor | None = None

    def __post_init__(self) -> None:
        if self.values.ndim != 2 or not self.values.numel() or not self.values.is_contiguous():
            raise ValueError(f"a weight {[*self.values.shape]} must have two dimensions and lie row by row")
        if self.values.dtype not in (torch.int8, *FLOATS):
            raise ValueError(f"weights of {self.values.dtype} are not known")
        if (self.scale is None) == (self.values.dtype == torch.int8):
            raise ValueError("a weight of int8 needs a scale for each row, and others take none")
        for tensor in (self.bias, self.scale):
            if tensor is not None and (tensor.shape != self.values.shape[:1] or not tensor.is_contiguous()):
                raise ValueError(f"{[*tensor.shape]} numbers do not fit the rows of a weight {[*self.values.shape]}")

    @classmethod
    def of(cls, layer: Any) -> "LinearWeight":
        """The weight of an `nn.Linear` or an `Int8Linear`, without a copy."""
        bias = None if layer.bias is None else layer.bias.detach()
        if hasattr(layer, "quantized"):
            return cls(layer.quantized.detach(), bias, layer.scale)
        return cls(layer.weight.detach(), bias)

    @property
    def outputs(self) -> int:
        """Number of rows."""
        return self.values.shape[0]

    @property
    def inputs(self) -> int:
        """Length of a row."""
        return self.values.shape[1]


class Addition(NamedTuple):
    """How a product `y` is added to the residual stream.

    The new residual is `scalar * (residual + multiplier * inner(y))`, rounded after each operation as modules do.

    Attributes:
        multiplier: factor of what is added (Granite).
        inner: norm of the product before it is added (Gemma, OLMo), None for none.
        scalar: factor of the new residual (Gemma 4).
        norm: norm of the new residual, which the next product reads; None for none.
    """

    multiplier: float = 1.0
    inner: RowNorm | None = None
    scalar: float = 1.0
    norm: RowNorm | None = None

    @property
    def needs_rows(self) -> bool:
        """Whether a program must see whole rows."""
        return self.inner is not None or self.norm is not None


class Added(NamedTuple):
    """The residual stream after an addition.

    Attributes:
        residual: `[rows, outputs]`.
        normed: the same after `Addition.norm`, None without one.
    """

    residual: Tensor
    normed: Tensor | None


NO_ADDITION = Addition()


def workspace_elements(weight: LinearWeight, rows: int, dtype: torch.dtype, addition: Addition = NO_ADDITION) -> int:
    """Number of float32 elements that the sums of splits need; 0 for a product of one launch.

    Args:
        weight: the weight.
        rows: number of rows.
        dtype: dtype of the rows.
        addition: how the product is added, for `add_linear`.
    """
    splits = Tiling.of(weight.outputs, weight.inputs, dtype).splits
    return splits * rows * weight.outputs if splits > 1 or addition.needs_rows else 0


def linear(x: Tensor, weight: LinearWeight, *, out: Tensor | None = None, workspace: Tensor | None = None) -> Tensor:
    """A linear layer: one launch, or two if the inputs are split.

    Args:
        x: `[rows, inputs]` in bfloat16, float16 or float32 with at least one row; the numbers of a row are next to
            each other.
        weight: the weight, in the dtype of `x` or in int8.
        out: `[rows, outputs]` in the dtype of `x` for the result, of any row stride, not `x` itself; None for a new
            tensor.
        workspace: contiguous float32 memory of at least `workspace_elements`, whatever it contains; None for new
            memory.

    Returns:
        `[rows, outputs]`.

    Raises:
        ValueError: a shape, a dtype or the order in memory does not fit, or the workspace is too small.
    """
    return _multiply_columns(x, weight, _Columns(_new(x, weight.outputs, out)), workspace)


def activate_linear(
    x: Tensor,
    weight: LinearWeight,
    activation: str,
    *,
    gated: bool = False,
    factors: Tensor | None = None,
    residual: Tensor | None = None,
    out: Tensor | None = None,
    workspace: Tensor | None = None,
) -> Tensor:
    """A linear layer with an activation function: one launch, or two if the inputs are split.

    Args:
        x: as of `linear`.
        weight: as of `linear`; with `gated`, rows of the gates and, after them, as many of the gated values.
        activation: name in transformers, a key of `ACTIVATIONS`.
        gated: whether the result is `activation(gate) * value`, else `activation(y)`.
        factors: `[rows, outputs]` in the dtype of `x`, of any row stride; without `gated`, the activations are
            multiplied by them (Gemma 4). None for none.
        residual: as of `add_linear`, rows that are added to the result (Medusa). None for none.
        out: as of `linear`, with half as many columns if `gated`.
        workspace: as of `linear`.

    Raises:
        ValueError: as of `linear`, or the activation is not known.
    """
    if activation not in ACTIVATIONS:
        raise ValueError(f"the activation function {activation!r} is not known; known are {', '.join(ACTIVATIONS)}")
    if gated and (weight.outputs % 2 or factors is not None):
        raise ValueError("a gated product needs as many gates as values, and takes no further factors")
    width = weight.outputs // 2 if gated else weight.outputs
    for rows in (factors, residual):
        if rows is not None:
            _check_rows(rows, x, width)
    columns = _Columns(_new(x, width, out), factors, residual, ACTIVATIONS[activation], gated)
    return _multiply_columns(x, weight, columns, workspace)


def add_linear(
    x: Tensor,
    weight: LinearWeight,
    residual: Tensor,
    addition: Addition = NO_ADDITION,
    *,
    out: Tensor | None = None,
    normed_out: Tensor | None = None,
    workspace: Tensor | None = None,
) -> Added:
    """A linear layer whose product is added to the residual stream: two launches, or one without splits and norms.

    Args:
        x: as of `linear`.
        weight: as of `linear`.
        residual: `[rows, outputs]` in the dtype of `x`, of any row stride.
        addition: how the product is added.
        out: as of `linear`, perhaps `residual` itself.
        normed_out: the same for the normed rows.
        workspace: as of `linear`.

    Raises:
        ValueError: as of `linear`, or a norm does not fit.
    """
    _check_rows(residual, x, weight.outputs)
    residual_out = _new(x, weight.outputs, out)
    if not addition.needs_rows:
        columns = _Columns(residual_out, residual=residual, multiplier=addition.multiplier, scalar=addition.scalar)
        return Added(_multiply_columns(x, weight, columns, workspace), None)
    for norm in (addition.inner, addition.norm):
        if norm is not None:
            check_norm(norm, [weight.outputs])
    results = Added(residual_out, _new(x, weight.outputs, normed_out) if addition.norm else None)
    sums = _sums(x, weight, workspace)
    _add_rows(sums, weight, residual, addition, results)
    return results


def activation_of(function: Any) -> str:
    """The name in `ACTIVATIONS` of an activation function of transformers or torch.

    Raises:
        AttributeError: the kernels do not know it.
    """
    name = type(function).__name__
    approximate = getattr(function, "approximate", "none")
    if name not in ACTIVATION_CLASSES or approximate not in ("none", "tanh"):
        raise AttributeError(f"{name} is not a known activation")
    class_name = "gelu_tanh" if approximate == "tanh" else ACTIVATION_CLASSES[name]
    return next(key for key, value in ACTIVATIONS.items() if value == class_name)


class _Columns(NamedTuple):
    """What becomes of the outputs of a product where each depends on no other output but, with gates, its gate.

    Attributes:
        out: where the results go.
        factors: what activations are multiplied by, None for 1.
        residual: what the results are added to, None for nothing.
        activation: activation function of the kernels, "" for none.
        is_gated: whether the first half of the outputs are gates.
        multiplier: as of `Addition`.
        scalar: as of `Addition`.
    """

    out: Tensor
    factors: Tensor | None = None
    residual: Tensor | None = None
    activation: str = ""
    is_gated: bool = False
    multiplier: float = 1.0
    scalar: float = 1.0

    def arguments(self) -> dict[str, Any]:
        """Arguments that the kernels have for them."""
        return {
            "factors": self.factors,
            "residual": self.residual,
            "out": self.out,
            "factors_stride": 0 if self.factors is None else self.factors.stride(0),
            "residual_stride": 0 if self.residual is None else self.residual.stride(0),
            "out_stride": self.out.stride(0),
            "rows": len(self.out),
            "multiplier": self.multiplier,
            "scalar": self.scalar,
            "ACTIVATION": self.activation,
            "IS_GATED": self.is_gated,
            "IS_MULTIPLIED": self.multiplier != 1,
            "IS_SCALED": self.scalar != 1,
        }


def _multiply_columns(x: Tensor, weight: LinearWeight, columns: _Columns, workspace: Tensor | None) -> Tensor:
    """Multiply and finish in one launch, or in two if the inputs are split."""
    _check_product(x, weight)
    tiling = Tiling.of(weight.outputs, weight.inputs, x.dtype)
    if tiling.splits == 1:
        _launch_product(x, weight, columns, keeps_sums=False)
        return columns.out
    sums = _sums(x, weight, workspace)
    _finish_kernel[(len(x), triton.cdiv(columns.out.shape[1], FINISHED_AT_ONCE))](
        sums,
        weight.bias,
        **columns.arguments(),
        N=weight.outputs,
        SPLITS=tiling.splits,
        BLOCK=FINISHED_AT_ONCE,
        ROUNDS_TWICE=weight.scale is not None,
        **launch_options(2),
    )
    return columns.out


def _sums(x: Tensor, weight: LinearWeight, workspace: Tensor | None) -> Tensor:
    """The sums of all splits, `[splits * rows, outputs]` in float32."""
    _check_product(x, weight)
    shape = (Tiling.of(weight.outputs, weight.inputs, x.dtype).splits * len(x), weight.outputs)
    elements = shape[0] * shape[1]
    if workspace is None:
        workspace = x.new_empty(elements, dtype=torch.float32)
    if workspace.dtype != torch.float32 or not workspace.is_contiguous() or workspace.numel() < elements:
        raise ValueError(f"{workspace.numel()} elements of {workspace.dtype} do not hold {elements} sums in float32")
    sums = workspace.view(-1)[:elements].view(shape)
    _launch_product(x, weight, _Columns(sums), keeps_sums=True)
    return sums


def _launch_product(x: Tensor, weight: LinearWeight, columns: _Columns, keeps_sums: bool) -> None:
    tiling = Tiling.of(weight.outputs, weight.inputs, x.dtype)
    rows = len(x)
    is_plain = weight.scale is None and x.dtype != torch.float32
    most_rows = 128 if is_plain else 64  # conversions and products in float32 need more registers
    block_m = min(max(triton.next_power_of_2(rows), FEWEST_ROWS), most_rows)
    _product_kernel[(triton.cdiv(rows, block_m), triton.cdiv(weight.outputs, BLOCK_N), tiling.splits)](
        x,
        weight.values,
        weight.scale,
        None if keeps_sums else weight.bias,
        x_stride=x.stride(0),
        **(columns.arguments() | {"rows": rows}),
        N=weight.outputs,
        K=weight.inputs,
        BLOCK_M=block_m,
        BLOCK_N=BLOCK_N,
        BLOCK_K=tiling.block_k,
        SPLIT_LENGTH=tiling.split_length,
        KEEPS_SUMS=keeps_sums,
        ROUNDS_TWICE=weight.scale is not None,
        **launch_options(4, 4 if block_m <= 32 else 3),
    )


def _add_rows(sums: Tensor, weight: LinearWeight, residual: Tensor, addition: Addition, results: Added) -> None:
    inner_norm = addition.inner
    norm = addition.norm
    width = weight.outputs
    _add_rows_kernel[(len(residual),)](
        sums,
        weight.bias,
        residual,
        results.residual,
        results.normed,
        inner_norm.scale if inner_norm else None,
        inner_norm.shift if inner_norm else None,
        norm.scale if norm else None,
        norm.shift if norm else None,
        residual_stride=residual.stride(0),
        out_stride=results.residual.stride(0),
        normed_stride=0 if results.normed is None else results.normed.stride(0),
        rows=len(residual),
        multiplier=addition.multiplier,
        scalar=addition.scalar,
        inner_epsilon=inner_norm.epsilon if inner_norm else 0.0,
        epsilon=norm.epsilon if norm else 0.0,
        N=width,
        SPLITS=len(sums) // len(residual),
        BLOCK=triton.next_power_of_2(width),
        ROUNDS_TWICE=weight.scale is not None,
        IS_MULTIPLIED=addition.multiplier != 1,
        IS_SCALED=addition.scalar != 1,
        HAS_INNER=inner_norm is not None,
        INNER_IS_CENTRED=inner_norm is not None and inner_norm.is_centred,
        INNER_ROUNDS_EARLY=inner_norm is not None and inner_norm.rounds_early,
        IS_CENTRED=norm is not None and norm.is_centred,
        ROUNDS_EARLY=norm is not None and norm.rounds_early,
        **launch_options(warps_of(width)),
    )


def _new(x: Tensor, width: int, out: Tensor | None) -> Tensor:
    """A tensor for the results `[rows, width]` of rows: the given one or a new one."""
    if out is None:
        return x.new_empty(len(x), width)
    _check_rows(out, x, width)
    return out


def _check_product(x: Tensor, weight: LinearWeight) -> None:
    if x.ndim != 2 or not len(x) or x.shape[1] != weight.inputs or x.stride(1) != 1:
        raise ValueError(f"rows {[*x.shape]} with strides {[*x.stride()]} do not fit {weight.inputs} inputs")
    if x.dtype not in FLOATS or (weight.scale is None and x.dtype != weight.values.dtype):
        raise ValueError(f"rows of {x.dtype} cannot be multiplied by a weight of {weight.values.dtype}")


def _check_rows(tensor: Tensor, x: Tensor, width: int) -> None:
    if tensor.shape != (len(x), width) or tensor.dtype != x.dtype or tensor.stride(1) != 1:
        shown_form = f"{[*tensor.shape]} of {tensor.dtype} with strides {[*tensor.stride()]}"
        raise ValueError(f"{shown_form} is not [{len(x)}, {width}] of {x.dtype}, or its rows are strided")


@triton.jit
def _activated(x, ACTIVATION: tl.constexpr):
    """The activations of float32 numbers, not rounded."""
    if ACTIVATION == "silu":
        y = x * _sigmoid(x)
    elif ACTIVATION == "gelu":
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    elif ACTIVATION == "gelu_tanh":
        # 0.5 * (1 + tanh(z)) = sigmoid(2 * z), with z = sqrt(2 / pi) * (x + 0.044715 * x ** 3)
        y = x * _sigmoid(1.5957691216057308 * (x + 0.044715 * x * x * x))
    else:
        tl.static_assert(ACTIVATION == "relu")
        y = tl.where(x < 0, 0.0, x)
    return y


@triton.jit
def _sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def _added(y, residual, multiplier, scalar, IS_MULTIPLIED: tl.constexpr, IS_SCALED: tl.constexpr, DTYPE: tl.constexpr):
    """The residual stream in float32, rounded after each operation; `y` is rounded, `residual` as it was loaded."""
    if IS_MULTIPLIED:
        y = rounded(y * multiplier, DTYPE)
    total = rounded(residual.to(tl.float32) + y, DTYPE)
    if IS_SCALED:
        total = rounded(total * scalar, DTYPE)
    return total


@triton.jit
def _sum_of_splits(sums, row, columns, is_inside, rows, N: tl.constexpr, SPLITS: tl.constexpr):
    """Add up the splits of a row's columns in order."""
    total = tl.load(sums + row * N + columns, mask=is_inside, other=0.0)
    for split in tl.static_range(1, SPLITS):
        total += tl.load(sums + (split * rows + row) * N + columns, mask=is_inside, other=0.0)
    return total


@triton.jit
def _biased(y, bias, columns, is_inside, ROUNDS_TWICE: tl.constexpr, DTYPE: tl.constexpr):
    """Add the bias to a row's columns and round, with `ROUNDS_TWICE` before and after."""
    if ROUNDS_TWICE:
        y = rounded(y, DTYPE)
    if bias is not None:
        y += tl.load(bias + columns, mask=is_inside, other=0.0).to(tl.float32)
    return rounded(y, DTYPE)


@triton.jit(do_not_specialize=["rows"])
def _product_kernel(
    x,
    weight,
    scale,
    bias,
    factors,
    residual,
    out,
    x_stride,
    factors_stride,
    residual_stride,
    out_stride,
    rows,
    multiplier,
    scalar,
    N: tl.constexpr,
    K: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    SPLIT_LENGTH: tl.constexpr,
    KEEPS_SUMS: tl.constexpr,
    ROUNDS_TWICE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_MULTIPLIED: tl.constexpr,
    IS_SCALED: tl.constexpr,
):
    """One tile of outputs `[BLOCK_N, BLOCK_M rows]`, of one split.

    Programs of the same outputs and other rows are next to each other, so that all but one find the weight in the
    cache. With gates, half of a tile's outputs are gates and the other half their values.
    """
    split = tl.program_id(2)
    row = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    is_row = row < rows
    parts: tl.constexpr = 2 if IS_GATED else 1
    width: tl.constexpr = N // parts
    part_block: tl.constexpr = BLOCK_N // parts
    lane = tl.arange(0, BLOCK_N)
    column = tl.program_id(1) * part_block + lane % part_block
    is_output = column < width
    output = column + lane // part_block * width
    weight_rows = weight + output.to(tl.int64)[:, None] * K
    x_rows = x + row.to(tl.int64)[None, :] * x_stride
    tile = tl.zeros([BLOCK_N, BLOCK_M], tl.float32)
    begin = split * SPLIT_LENGTH
    for start in range(begin, min(begin + SPLIT_LENGTH, K), BLOCK_K):
        k = start + tl.arange(0, BLOCK_K)
        is_input = k < K
        weights = tl.load(weight_rows + k[None, :], mask=is_output[:, None] & is_input[None, :], other=0)
        inputs = tl.load(x_rows + k[:, None], mask=is_row[None, :] & is_input[:, None], other=0)
        tile = tl.dot(weights.to(inputs.dtype), inputs, tile, input_precision="ieee")
    if scale is not None:
        tile *= tl.load(scale + output, mask=is_output, other=0.0)[:, None]
    out_rows = row.to(tl.int64)[None, :]
    if KEEPS_SUMS:
        is_result = is_output[:, None] & is_row[None, :]
        tl.store(out + (split * rows + out_rows) * N + output[:, None], tile, mask=is_result)
    else:
        dtype: tl.constexpr = out.dtype.element_ty
        if ROUNDS_TWICE:
            tile = rounded(tile, dtype)
        if bias is not None:
            tile += tl.load(bias + output, mask=is_output, other=0.0).to(tl.float32)[:, None]
        y = rounded(tile, dtype)
        if IS_GATED:
            gate, value = tl.split(tl.permute(tl.reshape(y, [2, part_block, BLOCK_M]), (1, 2, 0)))
            y = rounded(rounded(_activated(gate, ACTIVATION), dtype) * value, dtype)
            output = tl.program_id(1) * part_block + tl.arange(0, part_block)
            is_output = output < width
        elif ACTIVATION != "":
            y = rounded(_activated(y, ACTIVATION), dtype)
        is_result = is_output[:, None] & is_row[None, :]
        if factors is not None:
            factor = tl.load(factors + out_rows * factors_stride + output[:, None], mask=is_result, other=0.0)
            y = rounded(y * factor.to(tl.float32), dtype)
        if residual is not None:
            base = tl.load(residual + out_rows * residual_stride + output[:, None], mask=is_result, other=0.0)
            y = _added(y, base, multiplier, scalar, IS_MULTIPLIED, IS_SCALED, dtype)
        tl.store(out + out_rows * out_stride + output[:, None], y.to(dtype), mask=is_result)


@triton.jit(do_not_specialize=["rows"])
def _finish_kernel(
    sums,
    bias,
    factors,
    residual,
    out,
    factors_stride,
    residual_stride,
    out_stride,
    rows,
    multiplier,
    scalar,
    N: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUNDS_TWICE: tl.constexpr,
    ACTIVATION: tl.constexpr,
    IS_GATED: tl.constexpr,
    IS_MULTIPLIED: tl.constexpr,
    IS_SCALED: tl.constexpr,
):
    """Adds up the splits of some columns of one row and does what `_product_kernel` does without splits."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    width: tl.constexpr = N // 2 if IS_GATED else N
    is_inside = column < width
    dtype: tl.constexpr = out.dtype.element_ty
    y = _sum_of_splits(sums, row, column, is_inside, rows, N, SPLITS)
    y = _biased(y, bias, column, is_inside, ROUNDS_TWICE, dtype)
    if ACTIVATION != "":
        y = rounded(_activated(y, ACTIVATION), dtype)
    if IS_GATED:
        value = _sum_of_splits(sums, row, column + width, is_inside, rows, N, SPLITS)
        y = rounded(y * _biased(value, bias, column + width, is_inside, ROUNDS_TWICE, dtype), dtype)
    if factors is not None:
        factor = tl.load(factors + row * factors_stride + column, mask=is_inside, other=0.0)
        y = rounded(y * factor.to(tl.float32), dtype)
    if residual is not None:
        base = tl.load(residual + row * residual_stride + column, mask=is_inside, other=0.0)
        y = _added(y, base, multiplier, scalar, IS_MULTIPLIED, IS_SCALED, dtype)
    tl.store(out + row * out_stride + column, y.to(dtype), mask=is_inside)


@triton.jit(do_not_specialize=["rows"])
def _add_rows_kernel(
    sums,
    bias,
    residual,
    out,
    normed_out,
    inner_scale,
    inner_shift,
    scale,
    shift,
    residual_stride,
    out_stride,
    normed_stride,
    rows,
    multiplier,
    scalar,
    inner_epsilon,
    epsilon,
    N: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK: tl.constexpr,
    ROUNDS_TWICE: tl.constexpr,
    IS_MULTIPLIED: tl.constexpr,
    IS_SCALED: tl.constexpr,
    HAS_INNER: tl.constexpr,
    INNER_IS_CENTRED: tl.constexpr,
    INNER_ROUNDS_EARLY: tl.constexpr,
    IS_CENTRED: tl.constexpr,
    ROUNDS_EARLY: tl.constexpr,
):
    """Adds up the splits of one whole row, adds the row to the residual stream, and norms before and after."""
    row = tl.program_id(0).to(tl.int64)
    column = tl.arange(0, BLOCK)
    is_inside = column < N
    dtype: tl.constexpr = out.dtype.element_ty
    y = _sum_of_splits(sums, row, column, is_inside, rows, N, SPLITS)
    y = _biased(y, bias, column, is_inside, ROUNDS_TWICE, dtype)
    if HAS_INNER:
        y = normed(y, column, inner_scale, inner_shift, inner_epsilon, N, INNER_IS_CENTRED, INNER_ROUNDS_EARLY, dtype)
        y = rounded(y, dtype)
    base = tl.load(residual + row * residual_stride + column, mask=is_inside, other=0.0)
    total = _added(y, base, multiplier, scalar, IS_MULTIPLIED, IS_SCALED, dtype)
    tl.store(out + row * out_stride + column, total.to(dtype), mask=is_inside)
    if normed_out is not None:
        total = normed(total, column, scale, shift, epsilon, N, IS_CENTRED, ROUNDS_EARLY, dtype)
        tl.store(normed_out + row * normed_stride + column, total.to(dtype), mask=is_inside)
