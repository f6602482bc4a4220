"""Sampling against transformers' own logits warpers, and its errors."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from drafttree.distributions import Sampling, gumbel
from drafttree.errors import ConfigError


def random_logits(seed: int, rows: int, vocab: int) -> torch.Tensor:
    """Rows with a few ties, as half-precision models give them."""
    rng = random.Random(seed)
    return torch.tensor([[round(rng.gauss(0, 3), 1) for _ in range(vocab)] for _ in range(rows)])


def warp(logits: torch.Tensor, temperature: float, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    """What transformers' generate makes of logits, by its own classes in its own order."""
    warpers = [TemperatureLogitsWarper(temperature)]
    warpers += [TopKLogitsWarper(top_k)] if top_k else []
    warpers += [TopPLogitsWarper(top_p)] if top_p < 1 else []
    warpers += [MinPLogitsWarper(min_p)] if min_p else []
    for warper in warpers:
        logits = warper(None, logits)
    return logits


@settings(max_examples=80, deadline=None)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(1, 40),
    temperature=st.floats(0.05, 4),
    top_k=st.integers(0, 45),
    top_p=st.floats(0.01, 1),
    min_p=st.sampled_from([0.0, 0.013, 0.11, 0.37, 1.0]),
)
def test_process_is_transformers_warpers_in_order(seed, vocab, temperature, top_k, top_p, min_p):
    logits = random_logits(seed, 3, vocab)
    ours = Sampling(temperature, top_k, top_p, min_p).process(logits)
    assert torch.equal(ours, warp(logits, temperature, top_k, top_p, min_p))


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99])
def test_the_nucleus_of_a_large_vocabulary_is_transformers(top_p):
    """Peaked rows, of which only the best tokens are sorted, and flat ones, of which all are."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 3, 9000, generator=generator) * torch.tensor([0.1, 2.0, 5.0])[:, None]
    ours = Sampling(1.0, top_p=top_p).process(logits)
    assert torch.equal(ours, warp(logits.view(6, 9000), 1.0, 0, top_p, 0.0).view_as(logits))
    alone = [[Sampling(1.0, top_p=top_p).process(row) for row in rows] for rows in logits]
    assert torch.equal(ours, torch.stack([torch.stack(rows) for rows in alone]))


def test_process_works_on_any_number_of_axes():
    logits = random_logits(1, 6, 11)
    sampling = Sampling(0.7, top_k=8, top_p=0.9, min_p=0.02)
    assert torch.equal(sampling.process(logits.view(2, 3, 11)), sampling.process(logits).view(2, 3, 11))


def test_temperature_zero_passes_logits_unchanged():
    logits = random_logits(2, 2, 9)
    assert torch.equal(Sampling(0.0, top_k=2, top_p=0.5).process(logits), logits)
    assert Sampling().greedy
    assert not Sampling(0.1).greedy


def test_half_precision_logits_are_processed_in_single_precision():
    assert Sampling(0.7).process(torch.zeros(1, 4, dtype=torch.bfloat16)).dtype == torch.float32


@pytest.mark.parametrize(
    ("name", "value", "range_"),
    [
        ("temperature", -0.1, "at least 1e-06"),
        ("temperature", math.nan, "at least 1e-06"),
        ("temperature", math.inf, "at least 1e-06"),
        ("top_k", -1, "at least 0"),
        ("top_p", 0.0, "(0, 1]"),
        ("top_p", 1.01, "(0, 1]"),
        ("top_p", math.nan, "(0, 1]"),
        ("min_p", -0.01, "[0, 1]"),
        ("min_p", 1.5, "[0, 1]"),
        ("min_p", math.nan, "[0, 1]"),
        ("seed", 2**63, "64-bit"),
        ("seed", -(2**63) - 1, "64-bit"),
    ],
)
def test_a_value_out_of_range_is_an_error_that_states_the_range(name, value, range_):
    with pytest.raises(ConfigError, match=name) as error:
        Sampling(**{name: value})
    assert range_ in str(error.value)
    assert "\n" not in str(error.value)


def test_gumbel_noise_has_the_gumbel_law():
    noise = gumbel(3, torch.arange(200), 100)
    assert noise.dtype == torch.float32
    assert stats.kstest(noise.flatten().double().numpy(), stats.gumbel_r.cdf).pvalue > 1e-3


def test_the_largest_noisy_logit_has_the_law_of_the_softmax():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    drawn = (logits + gumbel(11, torch.arange(20_000), 4)).argmax(-1).bincount(minlength=4)
    assert stats.chisquare(drawn.numpy(), 20_000 * logits.double().softmax(-1).numpy()).pvalue > 1e-3
