"""Weights in FP8, which are multiplied by their scales as a drafter's files are read.

DeepSeek publishes a scale for every block of a weight, `weight_scale_inv`; compressed-tensors one for the whole weight
or for each of its rows, `weight_scale`.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from drafttree.core.errors import ModelError
from drafttree.drafters.formats.checkpoints import OBJECT, Wanted, entry, few, read_config, read_tensors

FP8 = torch.float8_e4m3fn
SCALES = ("_scale_inv", "_scale")
"""What the names of scales add to those of weights."""
BLOCK = [128, 128]
BLOCKS = Wanted(
    "two positive integers",
    lambda value: isinstance(value, list) and len(value) == 2 and all(type(size) is int and size > 0 for size in value),
)
PACKED = re.compile(r".*\.(qweight|qzeros|g_idx|weight_packed|weight\.absmax)$")
"""Parts of weights that GPTQ, AWQ, compressed-tensors and bitsandbytes pack."""


def read_weights(folder: Path, dtype: torch.dtype, wanted: Collection[str] | None = None) -> dict[str, Tensor]:
    """What `read_tensors` reads, weights in FP8 as numbers of another dtype.

    Raises:
        ModelError: as `read_tensors`; scales are missing or misshapen, or weights are quantised otherwise.
    """
    return dequantised(read_tensors(folder, wanted), read_config(folder), dtype)


def dequantised(tensors: Mapping[str, Tensor], config: Mapping[str, Any], dtype: torch.dtype) -> dict[str, Tensor]:
    """Tensors with their weights in FP8 multiplied out, and without the scales of these.

    Args:
        tensors: by name.
        config: `config.json` beside them.
        dtype: of the weights that were in FP8; the other tensors are as they were.

    Raises:
        ModelError: as in `read_weights`.
    """
    settings = entry(config, "quantization_config", OBJECT) or {}
    if packed := sorted(name for name in tensors if PACKED.match(name) or _is_scaled_integer(name, tensors)):
        method = " ".join(str(settings[key]) for key in ("quant_method", "format") if settings.get(key))
        raise ModelError(
            f"{few(packed)} quantised by {method or 'a method that config.json does not name'}; take weights that are "
            "not quantised or in FP8 (float8_e4m3fn)"
        )
    found, block = dict(tensors), entry(settings, "weight_block_size", BLOCKS) or BLOCK
    for name, weight in tensors.items():
        if weight.dtype == FP8:
            scale = next((found.pop(name + end) for end in SCALES if name + end in found), None)
            if scale is None:
                raise ModelError(f"{name} is in FP8, and {name}_scale_inv or {name}_scale is missing")
            found[name] = _multiplied(name, weight, scale, block).to(dtype)
            found.pop(f"{name.rpartition('.')[0]}.input_scale", None)  # of rounded activations, which are none here
    return found


def _is_scaled_integer(name: str, tensors: Mapping[str, Tensor]) -> bool:
    return not tensors[name].is_floating_point() and any(name + end in tensors for end in SCALES)


def _multiplied(name: str, weight: Tensor, scale: Tensor, block: list[int]) -> Tensor:
    """A weight times the scales of its whole, its rows or its blocks, in float32."""
    factors, shape = scale.float(), list(scale.shape)
    grid = [-(-length // size) for length, size in zip(weight.shape, block, strict=False)]
    if weight.ndim == 2 and shape == grid:
        rows, columns = weight.shape
        factors = factors.repeat_interleave(block[0], 0)[:rows].repeat_interleave(block[1], 1)[:, :columns]
    elif shape not in ([], [1], [len(weight), 1]):
        raise ModelError(
            f"the scales of {name} in FP8 are {shape} and should be {grid} for blocks of {block[0]} x {block[1]}, "
            f"{[len(weight), 1]} for rows, or [1]"
        )
    return weight.float() * factors
