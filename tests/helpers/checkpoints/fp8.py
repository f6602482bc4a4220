"""Weights of checkpoints in FP8, by the schemes that are published, and what they stand for, entry by entry."""

from typing import Any

import torch

from helpers.checkpoints.formats import Tensors

LARGEST = 448.0
BLOCK = (24, 20)
SCHEMES = ("whole", "rows", "blocks")


def in_fp8(tensors: Tensors, scheme: str) -> tuple[Tensors, dict[str, Any]]:
    """Tensors with the matrices among them in FP8, but for embeddings and routers, and the quantization_config."""
    made = Tensors()
    for name, tensor in tensors.items():
        if tensor.ndim != 2 or not name.endswith(".weight") or "embed" in name or name.endswith(".gate.weight"):
            made[name] = tensor
            continue
        rows, columns = tensor.shape
        size = {"blocks": BLOCK, "rows": (1, columns), "whole": (rows, columns)}[scheme]
        parts = [[part.abs().max() / LARGEST for part in row.split(size[1], 1)] for row in tensor.split(size[0])]
        scale = torch.tensor(parts)
        made[name] = (tensor / _spread(scale, size, rows, columns)).to(torch.float8_e4m3fn)
        made[f"{name}_scale{'_inv' * (scheme == 'blocks')}"] = scale[0] if scheme == "whole" else scale
        if scheme == "whole":
            made[f"{name.removesuffix('weight')}input_scale"] = torch.ones(1)
    blocks = {"quant_method": "fp8", "weight_block_size": [*BLOCK]}
    return made, blocks if scheme == "blocks" else {"quant_method": "compressed-tensors", "format": "float-quantized"}


def out_of_fp8(tensors: Tensors, settings: dict[str, Any]) -> Tensors:
    """The tensors that checkpoints of `in_fp8` stand for."""
    made = Tensors()
    for name, tensor in tensors.items():
        if tensor.dtype == torch.float8_e4m3fn:
            scale = tensors[f"{name}_scale" if f"{name}_scale" in tensors else f"{name}_scale_inv"]
            rows, columns = tensor.shape
            size = BLOCK if "weight_block_size" in settings else (rows if scale.numel() == 1 else 1, columns)
            made[name] = tensor.float() * _spread(scale.view(-(-rows // size[0]), -1), size, rows, columns)
        elif "_scale" not in name:
            made[name] = tensor
    return made


def _spread(scale: torch.Tensor, size: tuple[int, int], rows: int, columns: int) -> torch.Tensor:
    """The scale of every entry."""
    return torch.stack([torch.stack([scale[i // size[0], j // size[1]] for j in range(columns)]) for i in range(rows)])
