"""Weights in blocks are what the package `gguf` reads of the same bytes, and what was packed."""

import numpy as np
import pytest
import torch

from drafttree.models.quantization import blocks

gguf = pytest.importorskip("gguf")
OF_FILES = [name for name in blocks.FORMATS if name != "q4_zero"]


def type_of(name: str) -> object:
    """The type that `gguf` has of a format."""
    return getattr(gguf.GGMLQuantizationType, name.upper())


@pytest.mark.parametrize("name", OF_FILES)
def test_every_bit_is_read_as_gguf_reads_it(name):
    given = np.random.default_rng(0).integers(0, 256, (6, 3 * blocks.FORMATS[name].nbytes), dtype=np.uint8)
    with np.errstate(all="ignore"):
        expected = torch.from_numpy(gguf.quants.dequantize(given, type_of(name)))
    found = blocks.dequantized(torch.from_numpy(given), name)
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("name", OF_FILES)
def test_sizes_are_those_of_gguf(name):
    assert gguf.GGML_QUANT_SIZES[type_of(name)] == blocks.FORMATS[name][:2]


@pytest.mark.parametrize("name", blocks.FORMATS)
def test_scales_that_are_not_finite_are_seen(name):
    form = blocks.FORMATS[name]
    for at in form.float16_offsets:
        for scale in (torch.inf, -torch.inf, torch.nan):
            weight = blocks.random_blocks(name, 3, 2 * form.inputs)
            assert blocks.has_finite_scales(weight, name)
            place = form.nbytes + at
            weight[1, place : place + 2] = torch.tensor([scale]).half().view(torch.uint8)
            assert not blocks.has_finite_scales(weight, name)


def test_what_is_packed_is_what_numbers_and_scales_stand_for():
    generator = torch.Generator().manual_seed(0)
    numbers = torch.randint(16, (5, 96), generator=generator)
    scales, mins = (torch.randn(5, 3, generator=generator).half().float() for _ in range(2))
    zeros = torch.randint(17, (5, 3), generator=generator)
    wide = {name: each.repeat_interleave(32, 1) for name, each in {"scale": scales, "min": mins, "zero": zeros}.items()}
    packed = blocks.pack_q4_0(numbers, scales), blocks.pack_q4_1(numbers, scales, mins)
    torch.testing.assert_close(blocks.dequantized(packed[0], "q4_0"), wide["scale"] * (numbers - 8))
    torch.testing.assert_close(blocks.dequantized(packed[1], "q4_1"), wide["scale"] * numbers + wide["min"])
    zero = blocks.pack_q4_zero(numbers, scales, zeros)
    torch.testing.assert_close(blocks.dequantized(zero, "q4_zero"), wide["scale"] * (numbers - wide["zero"]))
