"""Blocked argmax and sampling, compared with Python's `max` and cumulative sums."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from drafttree.core import vocab_ops

WIDTHS = [1, 5, 128, 129, 5000, 9000, 12_800]
seeds = st.integers(0, 10**6)


def plain_draw(weights: list[float], share: float) -> int:
    """The first column at which the cumulative weight reaches its fraction of the total."""
    ends = list(itertools.accumulate(weights))
    return next(index for index, end in enumerate(ends) if end >= (1 - share) * ends[-1])


def weights_of(seed: int, width: int, empty: float = 0.5) -> torch.Tensor:
    """Random eighths, so that every sum is exact; some of them 0, never all."""
    generator = torch.Generator().manual_seed(seed)
    weights = torch.randint(0, 9, (width,), generator=generator) / 8
    weights[torch.rand(width, generator=generator) < empty] = 0
    weights[seed % width] = 0.125
    return weights


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("seed", range(4))
def test_argmax_ties_go_to_the_lowest_index(width, seed):
    values = torch.randint(0, 200, (2, 3, width), generator=torch.Generator().manual_seed(seed)).float()
    expected = [[row.index(max(row)) for row in group] for group in values.tolist()]
    assert vocab_ops.argmax(values).tolist() == expected


@pytest.mark.parametrize("width", WIDTHS)
def test_argmax_of_rows_of_minus_infinity(width):
    values = torch.full((width,), -torch.inf)
    assert vocab_ops.argmax(values) == 0
    values[width - 1] = -3
    assert vocab_ops.argmax(values) == width - 1


@settings(max_examples=60)
@given(seeds, st.sampled_from(WIDTHS), st.floats(0, 1, exclude_max=True))
def test_a_draw_is_the_column_at_its_cumulative_weight(seed, width, share):
    weights = weights_of(seed, width)
    assert vocab_ops.draw(weights, torch.tensor(share, dtype=torch.float64)) == plain_draw(weights.tolist(), share)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("share", [0.0, 1 - 2.0**-53, 0.5])
def test_a_column_without_weight_is_never_drawn(width, share):
    for seed in range(20):
        weights = weights_of(seed, width, empty=0.95) * 1e-30
        assert weights[vocab_ops.draw(weights, torch.tensor(share, dtype=torch.float64))] > 0


def test_rows_are_drawn_from_each_on_its_own():
    weights = torch.stack([weights_of(seed, 300) for seed in range(6)]).view(2, 3, 300)
    shares = torch.linspace(0, 0.99, 6, dtype=torch.float64).view(2, 3)
    drawn = vocab_ops.draw(weights, shares)
    for index in itertools.product(range(2), range(3)):
        assert drawn[index] == plain_draw(weights[index].tolist(), shares[index].item())


def test_draws_have_the_law_of_the_weights():
    weights = torch.rand(200, generator=torch.Generator().manual_seed(1))
    shares = torch.rand(50_000, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = vocab_ops.draw(weights.expand(50_000, -1), shares).bincount(minlength=200)
    expected = 50_000 * weights.double() / weights.double().sum()
    assert stats.chisquare(found.numpy(), expected.numpy()).pvalue > 1e-4


def test_a_row_without_weight_gives_some_column():
    assert 0 <= vocab_ops.draw(torch.zeros(2, 130), torch.tensor([0.0, 0.7], dtype=torch.float64)).max() < 130
