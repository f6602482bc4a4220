"""GPTQ against its definition: what rounding one weight costs is made up for by those that are not rounded yet."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from drafttree.models.quantization import gptq
from drafttree.models.quantization.blocks import dequantized
from drafttree.models.quantization.gptq import DAMPING, Hessian, find_scales, round_weight


def example(inputs: int = 96, outputs: int = 40, rows: int = 300) -> tuple[Tensor, Tensor]:
    """A weight, and rows whose inputs depend on each other and are not equally large."""
    generator = torch.Generator().manual_seed(1)
    mixed = torch.randn(inputs, inputs, generator=generator) / inputs**0.5 + torch.eye(inputs)
    rows_ = torch.randn(rows, inputs, generator=generator) @ mixed * torch.linspace(0.1, 3, inputs)
    return torch.randn(outputs, inputs, generator=generator) / 10, rows_


def hessian_of(rows: Tensor) -> Tensor:
    hessian = Hessian(rows.shape[1])
    hessian.add(rows)
    return hessian.matrix()


def by_definition(weight: Tensor, rows: Tensor) -> np.ndarray:
    """Numbers that are rounded one column after the other, by the least-squares solution for all columns left.

    When a column is rounded, the weights of the others become those with which the outputs change least, as they come
    out of the damped normal equations; nothing is factored or updated.
    """
    own = weight.double().numpy().copy()
    hessian = (rows.double().t() @ rows.double()).numpy()
    damped = hessian + np.eye(len(hessian)) * DAMPING * np.diag(hessian).mean()
    scales, zeros = (each.double().numpy() for each in find_scales(weight))
    order = np.argsort(-np.diag(hessian), kind="stable")
    numbers = np.zeros(own.shape, int)
    for place, column in enumerate(order):
        scale, zero = scales[:, column // 32], zeros[:, column // 32]
        numbers[:, column] = np.clip(np.round(own[:, column] / scale + zero), 0, 15)
        change = (numbers[:, column] - zero) * scale - own[:, column]
        left = order[place + 1 :]
        if len(left):
            pull = np.linalg.solve(damped[np.ix_(left, left)], damped[left, column])
            own[:, left] -= change[:, None] * pull
    return numbers


def test_numbers_are_those_of_the_definition():
    weight, rows = example()
    found = round_weight(weight, hessian_of(rows)).numbers.numpy()
    expected = by_definition(weight, rows)
    assert (found != expected).mean() < 0.001  # of float32 against float64, where a number lies between two
    assert abs(found - expected).max() <= 1


def test_it_changes_outputs_less_than_rounding_to_the_nearest():
    weight, rows = example(256)
    rounded = round_weight(weight, hessian_of(rows)).dequantized()
    scales, zeros = find_scales(weight)
    grouped, units = weight.unflatten(1, (-1, 32)), scales.float()[..., None]
    numbers = (grouped / units + zeros[..., None]).round().clamp(0, 15)
    nearest = ((numbers - zeros[..., None].float()) * units).flatten(1)
    errors = {
        name: float((rows @ (each - weight).t()).norm()) for name, each in {"gptq": rounded, "nearest": nearest}.items()
    }
    assert errors["gptq"] < 0.7 * errors["nearest"]


def test_scales_are_both_kinds_of_sixteen_bits_and_better_than_the_range():
    weight, _ = example()
    scales, zeros = find_scales(weight)
    assert torch.equal(scales.bfloat16().half(), scales)
    assert int(zeros.max()) <= 15

    def error(scale: Tensor, zero: Tensor) -> float:
        grouped, unit = weight.unflatten(1, (-1, 32)), scale.float()[..., None]
        numbers = (grouped / unit + zero[..., None]).round().clamp(0, 15) - zero[..., None].float()
        return float((numbers * unit - grouped).square().sum())

    grouped = weight.unflatten(1, (-1, 32))
    low, high = grouped.amin(-1).clamp(max=0), grouped.amax(-1).clamp(min=0)
    unit = (high - low) / 15
    assert error(scales, zeros) < 0.95 * error(unit, (-low / unit).round())


@pytest.mark.parametrize("outputs", [1, 40])
def test_blocks_stand_for_the_rounded_weight(outputs):
    weight, rows = example(outputs=outputs)
    rounded = round_weight(weight, hessian_of(rows))
    assert torch.equal(dequantized(rounded.blocks(), "q4_zero"), rounded.dequantized())


@pytest.mark.parametrize("inputs", [32, 96, 1000])
def test_a_hessian_is_the_sum_of_products(inputs):
    generator = torch.Generator().manual_seed(0)
    parts = [torch.randn(2, 7, inputs, generator=generator), torch.randn(5, inputs, generator=generator).bfloat16()]
    hessian = Hessian(inputs)
    for part in parts:
        hessian.add(part)
    rows: Any = torch.cat([part.flatten(0, -2).double() for part in parts])
    torch.testing.assert_close(hessian.matrix().double(), rows.t() @ rows, rtol=1e-5, atol=1e-4)


def test_inputs_that_nothing_came_through_are_rounded_to_the_nearest():
    weight, rows = example()
    rows[:, 5] = 0
    for hessian in (hessian_of(rows), torch.zeros(96, 96)):
        rounded = round_weight(weight, hessian)
        error = (rounded.dequantized() - weight)[:, 5].abs().unflatten(0, (-1, 1))
        assert bool((error <= rounded.scales.float()[:, :1] * 8).all())
        assert bool(rounded.dequantized().isfinite().all())


def test_groups_of_zeros_stay_zeros():
    weight, _ = example()
    weight[:, 32:64] = 0
    scales, zeros = find_scales(weight)
    assert bool((scales >= gptq.SMALLEST_SCALE).all())
    assert not zeros[:, 1].any()
