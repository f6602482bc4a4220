"""Rotates queries and keys by position, and stores keys and values in their rows, in one launch."""
# pyright: reportMissingImports=false, reportArgumentType=false, reportCallIssue=false
# pyright: reportAttributeAccessIssue=false, reportIndexIssue=false
# pyright: reportPossiblyUnboundVariable=false

import triton
import triton.language as tl
from torch import Tensor


def rotate_and_store(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    rows: tuple[Tensor, Tensor],
    new_rows: Tensor,
    cosine: Tensor | None = None,
    sine: Tensor | None = None,
) -> None:
    """Rotate queries in place, and write rotated keys, and values, to their rows.

    The result is rounded as by `PassContext.rotate`: after the product with the cosine, and after the sum. `key` is
    not changed, so it may share memory with `value`. Each is read and written by one program, for all heads of a key.

    Args:
        query: `[nodes, heads, width]`, bfloat16, float16 or float32.
        key: `[nodes, key heads, width]`, of the query's dtype.
        value: `[nodes, key heads, width]`, of the query's dtype.
        rows: keys and values of a layer, each `[key heads, rows, width]`.
        new_rows: int32 or int64 `[nodes]`: the row of each node.
        cosine: `[nodes, 1, rotated]` of the query's dtype, where `rotated` is even and at most the width. None for
            layers without rotation; then queries are not touched.
        sine: the same, negative in its first half.

    Raises:
        ValueError: shapes do not fit together, or the last dimension of a tensor is not contiguous.
    """
    nodes, heads, width = query.shape
    key_heads = key.shape[1]
    if key.shape != value.shape or key.shape != (nodes, key_heads, width) or heads % key_heads:
        raise ValueError(
            f"queries {[*query.shape]}, keys {[*key.shape]} and values {[*value.shape]} do not fit together"
        )
    for stored_rows in rows:
        if stored_rows.shape[0] != key_heads or stored_rows.shape[2] != width:
            raise ValueError(f"rows {[*stored_rows.shape]} do not fit keys {[*key.shape]}")
    _launch(query, key, value, rows, new_rows, cosine, sine)


def rotate(query: Tensor, cosine: Tensor, sine: Tensor) -> None:
    """Rotate queries in place, for layers that read the rows of another layer.

    Args:
        query: `[nodes, heads, width]`.
        cosine: as of `rotate_and_store`.
        sine: as of `rotate_and_store`.

    Raises:
        ValueError: shapes do not fit together, or the last dimension of a tensor is not contiguous.
    """
    _launch(query, None, None, None, None, cosine, sine)


def refuse_strides(*tensors: Tensor) -> None:
    """Refuse tensors whose last dimension is not contiguous, which kernels read as if it were.

    Raises:
        ValueError: there is such a tensor.
    """
    for tensor in tensors:
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            raise ValueError(f"the last dimension of {[*tensor.shape]} has stride {tensor.stride(-1)}, not 1")


def _launch(
    query: Tensor,
    key: Tensor | None,
    value: Tensor | None,
    rows: tuple[Tensor, Tensor] | None,
    new_rows: Tensor | None,
    cosine: Tensor | None,
    sine: Tensor | None,
) -> None:
    nodes, heads, width = query.shape
    rotated = 0
    if cosine is not None and sine is not None:
        rotated = cosine.shape[-1]
        if cosine.shape != (nodes, 1, rotated) or sine.shape != cosine.shape or rotated % 2 or rotated > width:
            raise ValueError(f"cosines {[*cosine.shape]} and sines {[*sine.shape]} do not fit {[*query.shape]}")
    if not nodes:
        return
    # a kernel needs a tensor for every pointer, also for those that it does not use
    key = query if key is None else key
    value = query if value is None else value
    stored_keys, stored_values = (query, query) if rows is None else rows
    cosine = query if cosine is None else cosine
    sine = query if sine is None else sine
    refuse_strides(query, key, value, stored_keys, stored_values, cosine, sine)
    key_heads = 1 if rows is None else key.shape[1]
    groups = heads // key_heads
    _rotate_and_store_kernel[(nodes, key_heads)](
        query,
        key,
        value,
        stored_keys,
        stored_values,
        query if new_rows is None else new_rows,
        cosine,
        sine,
        *query.stride()[:2],
        *key.stride()[:2],
        *value.stride()[:2],
        *stored_keys.stride()[:2],
        *stored_values.stride()[:2],
        cosine.stride(0),
        sine.stride(0),
        GROUPS=groups,
        HEADS=triton.next_power_of_2(groups),
        WIDTH=width,
        COLUMNS=triton.next_power_of_2(width),
        ROTATED=rotated,
        PAIRS=triton.next_power_of_2(max(rotated // 2, 1)),
        REST=triton.next_power_of_2(max(width - rotated, 1)),
        STORES=rows is not None,
        enable_fp_fusion=False,
    )


@triton.jit
def _rotate_and_store_kernel(
    query,
    key,
    value,
    stored_keys,
    stored_values,
    new_rows,
    cosine,
    sine,
    query_node_stride,
    query_head_stride,
    key_node_stride,
    key_head_stride,
    value_node_stride,
    value_head_stride,
    keys_head_stride,
    keys_row_stride,
    values_head_stride,
    values_row_stride,
    cosine_stride,
    sine_stride,
    GROUPS: tl.constexpr,
    HEADS: tl.constexpr,
    WIDTH: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROTATED: tl.constexpr,
    PAIRS: tl.constexpr,
    REST: tl.constexpr,
    STORES: tl.constexpr,
):
    """One program for a node and a key head. Each thread holds both numbers of the pairs that it rotates in place."""
    node = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1).to(tl.int64)
    HALF: tl.constexpr = ROTATED // 2
    pairs = tl.arange(0, PAIRS)
    is_pair = pairs < HALF
    if ROTATED > 0:
        first_cosine = tl.load(cosine + node * cosine_stride + pairs, mask=is_pair, other=0.0).to(tl.float32)
        second_cosine = tl.load(cosine + node * cosine_stride + HALF + pairs, mask=is_pair, other=0.0).to(tl.float32)
        first_sine = tl.load(sine + node * sine_stride + pairs, mask=is_pair, other=0.0).to(tl.float32)
        second_sine = tl.load(sine + node * sine_stride + HALF + pairs, mask=is_pair, other=0.0).to(tl.float32)
        heads = tl.arange(0, HEADS)
        query_heads = query + node * query_node_stride + (head * GROUPS + heads[:, None]) * query_head_stride
        is_number = (heads[:, None] < GROUPS) & is_pair[None, :]
        first_places = query_heads + pairs[None, :]
        second_places = query_heads + HALF + pairs[None, :]
        first = tl.load(first_places, mask=is_number, other=0.0)
        second = tl.load(second_places, mask=is_number, other=0.0)
        first_rotated = _rotated(first, second, first_cosine[None, :], first_sine[None, :])
        second_rotated = _rotated(second, first, second_cosine[None, :], second_sine[None, :])
        tl.store(first_places, first_rotated, mask=is_number)
        tl.store(second_places, second_rotated, mask=is_number)
    if STORES:
        row = tl.load(new_rows + node).to(tl.int64)
        key_places = key + node * key_node_stride + head * key_head_stride
        key_row = stored_keys + head * keys_head_stride + row * keys_row_stride
        if ROTATED > 0:
            first_key = tl.load(key_places + pairs, mask=is_pair, other=0.0)
            second_key = tl.load(key_places + HALF + pairs, mask=is_pair, other=0.0)
            tl.store(key_row + pairs, _rotated(first_key, second_key, first_cosine, first_sine), mask=is_pair)
            tl.store(key_row + HALF + pairs, _rotated(second_key, first_key, second_cosine, second_sine), mask=is_pair)
        if ROTATED < WIDTH:
            rest = ROTATED + tl.arange(0, REST)
            tl.store(key_row + rest, tl.load(key_places + rest, mask=rest < WIDTH, other=0.0), mask=rest < WIDTH)
        columns = tl.arange(0, COLUMNS)
        is_column = columns < WIDTH
        value_places = value + node * value_node_stride + head * value_head_stride
        value_row = stored_values + head * values_head_stride + row * values_row_stride
        tl.store(value_row + columns, tl.load(value_places + columns, mask=is_column, other=0.0), mask=is_column)


@triton.jit
def _rotated(numbers, others, cosine, sine):
    """Products with the cosine, rounded, plus the products of the others of each pair with the sine."""
    scaled = (numbers.to(tl.float32) * cosine).to(numbers.dtype).to(tl.float32)
    return tl.fma(others.to(tl.float32), sine, scaled).to(numbers.dtype)
