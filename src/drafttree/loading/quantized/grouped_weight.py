"""Weights of small integers with a scale per group of inputs, independent of how a file packs them."""

from typing import NamedTuple

import torch
from torch import Tensor

from drafttree.models.quantization.blocks import GROUP, pack_q4_0, pack_q4_1, pack_q4_zero, pack_q8_0

WORD, BYTE = 32, 8
"""Bits of the words that numbers are packed into, and of a byte."""


class Scheme(NamedTuple):
    """How a config quantises a weight.

    Attributes:
        bits: bits of a number.
        group_size: number of inputs that share a scale; None for all inputs of an output.
        offset: what is subtracted from numbers before scaling. "middle": half of their range; "zero": an integer of
            each group; "minimum": nothing, since a minimum of each group is added after scaling.
    """

    bits: int
    group_size: int | None
    offset: str

    def groups(self, inputs: int) -> int:
        """Number of groups of an output."""
        return 1 if self.group_size is None else -(-inputs // self.group_size)

    def __str__(self) -> str:
        size = "a scale for each output" if self.group_size is None else f"groups of {self.group_size} inputs"
        return f"{self.bits} bits in {size}" + (" and zeros" if self.offset == "zero" else "")


class GroupedWeight(NamedTuple):
    """A weight of integers, each of which encodes `scale * (number - zero) + minimum`.

    Attributes:
        scheme: how the config quantises it.
        numbers: uint8 `[out, in]`.
        scales: `[out, groups]`.
        zeros: uint8 `[out, groups]`; None if all zeros are half of the range, or if there are minima.
        minima: `[out, groups]`; None for 0.
        group_of: the group of each input, int64 `[in]`; None if groups are equal runs of inputs.
    """

    scheme: Scheme
    numbers: Tensor
    scales: Tensor
    zeros: Tensor | None = None
    minima: Tensor | None = None
    group_of: Tensor | None = None

    def dequantized(self) -> Tensor:
        """The weight, `[out, in]` in float32."""
        scales = self._of_inputs(self.scales.float())
        if self.minima is not None:
            return self.numbers * scales + self._of_inputs(self.minima.float())
        zeros = 1 << self.scheme.bits - 1 if self.zeros is None else self._of_inputs(self.zeros.float())
        return (self.numbers.float() - zeros) * scales

    def blocks(self, form: str) -> Tensor:
        """The same weight in blocks, uint8 `[out, bytes]`.

        Args:
            form: the result of `block_form` for its scheme.

        Raises:
            ValueError: a scale is not finite, or is not representable in float16.
        """
        repeats = self.numbers.shape[1] // GROUP // self.scales.shape[1]
        scales = _as_halves(self.scales).repeat_interleave(repeats, 1)
        if form == "q4_1":
            assert self.minima is not None
            return pack_q4_1(self.numbers, scales, _as_halves(self.minima).repeat_interleave(repeats, 1))
        if form == "q4_zero":
            assert self.zeros is not None
            return pack_q4_zero(self.numbers, scales, self.zeros.repeat_interleave(repeats, 1))
        return pack_q4_0(self.numbers, scales) if form == "q4_0" else pack_q8_0(self.numbers, scales)

    def _of_inputs(self, values: Tensor) -> Tensor:
        """Values of groups `[out, groups]`, repeated for the inputs of each group: `[out, in]`."""
        inputs = self.numbers.shape[1]
        if self.group_of is not None:
            return values[:, self.group_of]
        if values.shape[1] == 1:
            return values.expand(-1, inputs)
        assert self.scheme.group_size
        return values.repeat_interleave(self.scheme.group_size, 1)[:, :inputs]


def block_form(scheme: Scheme, inputs: int) -> str:
    """Name, in `drafttree.models.quantization.blocks`, of the blocks that hold a weight exactly; empty if none do."""
    if inputs % GROUP or (scheme.group_size and (inputs % scheme.group_size or scheme.group_size % GROUP)):
        return ""
    forms = {(4, "middle"): "q4_0", (4, "zero"): "q4_zero", (4, "minimum"): "q4_1", (8, "middle"): "q8_0"}
    return forms.get((scheme.bits, scheme.offset), "")


def unpacked(words: Tensor, bits: int, count: int) -> Tensor:
    """Unpack words int32 `[rows, words]` into numbers uint8 `[rows, count]`, lowest bits first.

    A number may lie across two words.
    """
    mask = (1 << bits) - 1
    if BYTE % bits == 0:
        shifts = torch.arange(0, BYTE, bits, dtype=torch.uint8)
        return (words.contiguous().view(torch.uint8)[..., None] >> shifts & mask).flatten(1)[:, :count]
    padded_words = torch.nn.functional.pad(words, (0, 1)).long() & 0xFFFFFFFF
    first_bit = torch.arange(count) * bits
    word, shift = first_bit // WORD, first_bit % WORD
    return ((padded_words[:, word] | padded_words[:, word + 1] << WORD) >> shift & mask).to(torch.uint8)


def _as_halves(values: Tensor) -> Tensor:
    halves = values.half()
    if not bool(halves.isfinite().all()):
        raise ValueError("a scale is not finite")
    if values.dtype != torch.float16 and not torch.equal(halves.to(values.dtype), values):
        raise ValueError("a scale is not a float16")
    return halves
