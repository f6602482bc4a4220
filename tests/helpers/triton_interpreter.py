"""Runs Triton's kernels on a CPU, in its interpreter. Import this before any module that defines kernels.

Where torch sees a GPU, as with `-m cuda`, whoever imports this is skipped: kernels of a process are either interpreted
or compiled.

The interpreter of Triton 3.9 differs from a GPU in three ways, which are mended here:

1. `tl.dot` multiplies the bit patterns of bfloat16.
2. `tl.dot` calls BLAS, whose sums depend on a row's place in a tile. Here products are added one after the other, as
   tensor cores do in effect, so that equal bits prove something about a kernel.
3. A conversion from float32 to bfloat16 cuts digits off. Here it rounds to nearest, ties to even.
"""

import os
from typing import Any

import numpy as np
import pytest
import torch

if torch.cuda.is_available():
    pytest.skip("kernels are compiled for the GPU here, not interpreted", allow_module_level=True)
os.environ["TRITON_INTERPRET"] = "1"

import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

_cast_elsewise = interpreter.InterpreterBuilder.cast_impl
_convert_elsewise = interpreter.InterpreterBuilder.create_fp_to_fp


def to_bfloat16_bits(numbers: np.ndarray) -> np.ndarray:
    """The bit patterns (uint16) of float32 numbers rounded to bfloat16."""
    bits = np.ascontiguousarray(numbers, dtype=np.float32).view(np.uint32)
    rounded_bits = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(numbers), np.uint32(0x7FC0), rounded_bits).astype(np.uint16)


def of_bfloat16_bits(bits: np.ndarray) -> np.ndarray:
    """The float32 numbers of bit patterns of bfloat16."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def _floats(handle: Any) -> np.ndarray:
    """The numbers of an operand of `tl.dot`, as float32."""
    return of_bfloat16_bits(handle.data) if handle.dtype.scalar == tl.bfloat16 else handle.data.astype(np.float32)


def _dot(self: Any, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any) -> Any:
    left = _floats(a)
    right = _floats(b)
    total = d.data.astype(np.float32, copy=True)
    for k in range(left.shape[-1]):
        total += left[..., :, k : k + 1] * right[..., k : k + 1, :]
    return interpreter.TensorHandle(total.astype(d.data.dtype), d.dtype.scalar)


def _cast(self: Any, source: Any, dst_type: Any) -> Any:
    types = source.dtype.scalar, dst_type.scalar
    if types == (tl.bfloat16, tl.float32):
        return interpreter.TensorHandle(of_bfloat16_bits(source.data), tl.float32)
    if types[1] == tl.bfloat16 and types[0] != tl.bfloat16:
        return interpreter.TensorHandle(to_bfloat16_bits(source.data.astype(np.float32)), tl.bfloat16)
    if types[0] == tl.bfloat16 and types[1] != tl.bfloat16:
        return _cast_elsewise(self, _cast(self, source, tl.float32), dst_type)
    return _cast_elsewise(self, source, dst_type)


def _convert(self: Any, source: Any, dst_type: Any, rounding_mode: Any) -> Any:
    has_bfloat16 = tl.bfloat16 in (source.dtype.scalar, dst_type.scalar)
    return _cast(self, source, dst_type) if has_bfloat16 else _convert_elsewise(self, source, dst_type, rounding_mode)


def _call(self: Any, *arguments: Any, **named_arguments: Any) -> Any:
    """Call a function of Triton's own that was defined before this module was imported: transformers imports Triton."""
    return interpreter.InterpretedFunction(self.fn)(*arguments, **named_arguments)


JITFunction.__call__ = _call
interpreter.InterpreterBuilder.create_dot = _dot
interpreter.InterpreterBuilder.cast_impl = _cast
interpreter.InterpreterBuilder.create_fp_to_fp = _convert
