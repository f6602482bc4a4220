"""Weights in blocks, as in GGUF files. A block has the numbers and scales for a few inputs of one output.

The layouts are those of llama.cpp (`ggml-common.h`, decoded in `ggml-quants.c`). One is our own, for GPTQ and AWQ
files: numbers of four bits with an integer zero point for each group.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

GROUP = 32
"""Number of inputs that share a scale."""
EXPONENT = 0x7C
"""The exponent bits in the upper byte of a float16. All are set if the number is infinite or NaN."""


class BlockFormat(NamedTuple):
    """The layout of a block.

    Attributes:
        inputs: number of inputs in a block.
        nbytes: bytes of a block.
        float16_offsets: offsets in bytes of its float16 numbers.
        read: converts blocks uint8 `[blocks, nbytes]` to float32 `[blocks, inputs]`.
    """

    inputs: int
    nbytes: int
    float16_offsets: tuple[int, ...]
    read: Callable[[Tensor], Tensor]


def dequantized(blocks: Tensor, name: str) -> Tensor:
    """Convert blocks uint8 `[out, bytes]` to a weight `[out, in]` in float32."""
    block_format = FORMATS[name]
    return block_format.read(blocks.reshape(-1, block_format.nbytes)).reshape(len(blocks), -1)


def has_finite_scales(blocks: Tensor, name: str) -> bool:
    """Whether all scales in blocks uint8 `[out, bytes]` are finite."""
    block_format = FORMATS[name]
    block_bytes = blocks.view(len(blocks), -1, block_format.nbytes)
    exponents = (block_bytes[..., offset + 1] & EXPONENT for offset in block_format.float16_offsets)
    return not any(bool((exponent == EXPONENT).any()) for exponent in exponents)


def pack_q4_0(numbers: Tensor, scales: Tensor) -> Tensor:
    """Make `q4_0` blocks, for weights `scale * (number - 8)`.

    Args:
        numbers: `[out, in]` from 0 to 15.
        scales: `[out, groups]`.

    Returns:
        The blocks, uint8 `[out, bytes]`.
    """
    return _packed(numbers, _float16_bytes(scales))


def pack_q4_1(numbers: Tensor, scales: Tensor, mins: Tensor) -> Tensor:
    """Make `q4_1` blocks as `pack_q4_0` does, for weights `scale * number + min`; `mins` are `[out, groups]`."""
    return _packed(numbers, _float16_bytes(scales), _float16_bytes(mins))


def pack_q4_zero(numbers: Tensor, scales: Tensor, zeros: Tensor) -> Tensor:
    """Make `q4_zero` blocks as `pack_q4_0` does, for weights `scale * (number - zero)`; `zeros` are `[out, groups]`."""
    return _packed(numbers, _float16_bytes(scales), zeros.to(torch.uint8)[..., None])


def pack_q8_0(numbers: Tensor, scales: Tensor) -> Tensor:
    """Make `q8_0` blocks as `pack_q4_0` does, for weights `scale * (number - 128)` with numbers from 0 to 255."""
    grouped_numbers = numbers.to(torch.uint8).unflatten(1, (-1, GROUP)) ^ 128
    return torch.cat((_float16_bytes(scales), grouped_numbers), -1).flatten(1)


def random_blocks(name: str, outputs: int, inputs: int) -> Tensor:
    """Random blocks uint8 `[outputs, bytes]` with small scales, for trials; the same in every call."""
    block_format = FORMATS[name]
    generator = torch.Generator().manual_seed(0)
    # a float16 whose upper byte is below 64 is finite, and below 2
    return torch.randint(
        64,
        (outputs, inputs // block_format.inputs * block_format.nbytes),
        dtype=torch.uint8,
        generator=generator,
        device="cpu",
    )


def _packed(numbers: Tensor, *heads: Tensor) -> Tensor:
    grouped_numbers = numbers.to(torch.uint8).unflatten(1, (-1, GROUP))
    low_numbers, high_numbers = grouped_numbers.chunk(2, -1)
    return torch.cat([*heads, low_numbers | high_numbers << 4], -1).flatten(1)


def _float16_bytes(values: Tensor) -> Tensor:
    return values.half().contiguous()[..., None].view(torch.uint8)


def _float16_at(blocks: Tensor, offset: int) -> Tensor:
    """The float16 number at an offset in each block, as float32 `[blocks, 1]`."""
    return blocks[:, offset : offset + 2].contiguous().view(torch.float16).float()


def _nibbles(blocks: Tensor) -> Tensor:
    """Split n bytes into numbers of four bits `[blocks, 2 n]`: first all lower bits, then all upper bits."""
    return torch.cat((blocks & 15, blocks >> 4), 1)


def _bits(blocks: Tensor) -> Tensor:
    """Split n bytes into bits `[blocks, 8 n]`, the lowest of each byte first."""
    return (blocks[..., None] >> torch.arange(8, dtype=torch.uint8, device=blocks.device) & 1).flatten(1)


def _q4_0(blocks: Tensor) -> Tensor:
    return _float16_at(blocks, 0) * (_nibbles(blocks[:, 2:]).float() - 8)


def _q4_1(blocks: Tensor) -> Tensor:
    return _float16_at(blocks, 0) * _nibbles(blocks[:, 4:]).float() + _float16_at(blocks, 2)


def _q4_zero(blocks: Tensor) -> Tensor:
    return _float16_at(blocks, 0) * (_nibbles(blocks[:, 3:]).float() - blocks[:, 2:3].float())


def _q5_0(blocks: Tensor) -> Tensor:
    numbers = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _float16_at(blocks, 0) * (numbers.float() - 16)


def _q5_1(blocks: Tensor) -> Tensor:
    numbers = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return _float16_at(blocks, 0) * numbers.float() + _float16_at(blocks, 2)


def _q8_0(blocks: Tensor) -> Tensor:
    return _float16_at(blocks, 0) * blocks[:, 2:].view(torch.int8).float()


def _scales_and_mins(blocks: Tensor) -> tuple[Tensor, Tensor]:
    """The scales and mins of eight groups, float32 `[blocks, 8, 1]` each; 12 bytes store them in six bits each."""
    scale_bytes, min_bytes, nibble_bytes = blocks[:, 4:16].chunk(3, 1)
    scales = torch.cat((scale_bytes & 63, nibble_bytes & 15 | scale_bytes >> 6 << 4), 1)
    mins = torch.cat((min_bytes & 63, nibble_bytes >> 4 | min_bytes >> 6 << 4), 1)
    return (_float16_at(blocks, 0) * scales)[..., None], (_float16_at(blocks, 2) * mins)[..., None]


def _pairs_of_groups(blocks: Tensor) -> Tensor:
    """Numbers of four bits `[blocks, 8, 32]`. The lower bits of 32 bytes are a group, and the upper bits the next."""
    packed_groups = blocks.unflatten(1, (4, 1, GROUP))
    return torch.cat((packed_groups & 15, packed_groups >> 4), 2).flatten(1, 2)


def _q4_k(blocks: Tensor) -> Tensor:
    scales, mins = _scales_and_mins(blocks)
    return (scales * _pairs_of_groups(blocks[:, 16:]) - mins).flatten(1)


def _q5_k(blocks: Tensor) -> Tensor:
    scales, mins = _scales_and_mins(blocks)
    fifth_bits = (
        blocks[:, 16:48].unflatten(1, (1, GROUP)) >> torch.arange(8, dtype=torch.uint8, device=blocks.device)[:, None]
        & 1
    )
    return (scales * (_pairs_of_groups(blocks[:, 48:]) | fifth_bits << 4) - mins).flatten(1)


def _q6_k(blocks: Tensor) -> Tensor:
    low_bytes = blocks[:, :128].unflatten(1, (2, 1, 64))
    high_bytes = blocks[:, 128:192].unflatten(1, (2, 1, GROUP))
    low_bits = torch.cat((low_bytes & 15, low_bytes >> 4), 2).unflatten(3, (2, GROUP)).flatten(2, 3)
    high_bits = high_bytes >> torch.arange(0, 8, 2, dtype=torch.uint8, device=blocks.device)[:, None] & 3
    scales = _float16_at(blocks, 208) * blocks[:, 192:208].view(torch.int8)
    numbers = (low_bits | high_bits << 4).float() - 32
    return (scales[..., None] * numbers.reshape(len(blocks), 16, 16)).flatten(1)


FORMATS = {
    "q4_0": BlockFormat(32, 18, (0,), _q4_0),
    "q4_1": BlockFormat(32, 20, (0, 2), _q4_1),
    "q4_zero": BlockFormat(32, 19, (0,), _q4_zero),
    "q4_k": BlockFormat(256, 144, (0, 2), _q4_k),
    "q5_0": BlockFormat(32, 22, (0,), _q5_0),
    "q5_1": BlockFormat(32, 24, (0, 2), _q5_1),
    "q5_k": BlockFormat(256, 176, (0, 2), _q5_k),
    "q6_k": BlockFormat(256, 210, (208,), _q6_k),
    "q8_0": BlockFormat(32, 34, (0,), _q8_0),
}
"""The formats by name: llama.cpp's names in lower case, and `q4_zero`."""
