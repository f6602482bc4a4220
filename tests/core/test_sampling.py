"""Sampling against transformers' own logits warpers, and its errors."""

import math
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from drafttree import Sampling
from drafttree.core.randomness import gumbel
from drafttree.errors import ConfigError


def random_logits(seed: int, rows: int, vocab: int) -> torch.Tensor:
    """Rows with a few ties, as half-precision models give them."""
    rng = random.Random(seed)
    return torch.tensor([[round(rng.gauss(0, 3), 1) for _ in range(vocab)] for _ in range(rows)])


def warp(logits: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """Apply transformers' own warpers in the order of its `generate`."""
    warpers = [TemperatureLogitsWarper(sampling.temperature)]
    warpers += [TopHLogitsWarper(sampling.top_h)] if sampling.top_h else []
    warpers += [TopKLogitsWarper(sampling.top_k)] if sampling.top_k else []
    warpers += [TopPLogitsWarper(sampling.top_p)] if sampling.top_p < 1 else []
    warpers += [MinPLogitsWarper(sampling.min_p)] if sampling.min_p else []
    warpers += [TypicalLogitsWarper(sampling.typical_p)] if sampling.typical_p < 1 else []
    warpers += [EpsilonLogitsWarper(sampling.epsilon_cutoff)] if sampling.epsilon_cutoff else []
    warpers += [EtaLogitsWarper(sampling.eta_cutoff)] if sampling.eta_cutoff else []
    for warper in warpers:
        logits = warper(None, logits)
    return logits


@settings(max_examples=80)
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
    sampling = Sampling(temperature, top_k, top_p, min_p)
    assert torch.equal(sampling.process(logits), warp(logits, sampling))


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.99])
def test_top_p_over_a_large_vocabulary_is_transformers(top_p):
    """Peaked rows, whose most probable tokens alone are sorted, and flat rows, which are sorted in full."""
    generator = torch.Generator().manual_seed(3)
    logits = torch.randn(2, 3, 9000, generator=generator) * torch.tensor([0.1, 2.0, 5.0])[:, None]
    ours = Sampling(1.0, top_p=top_p).process(logits)
    assert torch.equal(ours, warp(logits.view(6, 9000), Sampling(1.0, top_p=top_p)).view_as(logits))
    alone = [[Sampling(1.0, top_p=top_p).process(row) for row in rows] for rows in logits]
    assert torch.equal(ours, torch.stack([torch.stack(rows) for rows in alone]))


@settings(max_examples=80)
@given(
    seed=st.integers(0, 10**6),
    vocab=st.integers(1, 130),
    temperature=st.floats(0.05, 4),
    top_k=st.sampled_from([0, 0, 7]),
    typical_p=st.one_of(st.just(1.0), st.floats(0.01, 0.99)),
    epsilon_cutoff=st.sampled_from([0.0, 3e-4, 0.02, 0.5]),
    eta_cutoff=st.sampled_from([0.0, 4e-4, 0.03, 0.6]),
    top_h=st.one_of(st.just(0.0), st.floats(0.01, 1)),
)
def test_process_is_transformers_rarer_warpers_in_order(seed, vocab, temperature, top_k, **cuts):
    logits = random_logits(seed, 3, vocab)
    sampling = Sampling(temperature, top_k, **cuts)
    assert torch.equal(sampling.process(logits), warp(logits, sampling))


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(0.7, top_k=8, top_p=0.9, min_p=0.02),
        Sampling(0.7, typical_p=0.6),
        Sampling(1.0, epsilon_cutoff=0.05, eta_cutoff=0.2, top_h=0.7),
    ],
)
def test_process_works_on_any_number_of_axes(sampling):
    logits = random_logits(1, 6, 11)
    assert not torch.equal(sampling.process(logits), logits / sampling.temperature)
    assert torch.equal(sampling.process(logits.view(2, 3, 11)), sampling.process(logits).view(2, 3, 11))


@pytest.mark.parametrize("cut", [{"top_h": 0.3}, {"typical_p": 0.5}, {"epsilon_cutoff": 0.1}, {"eta_cutoff": 0.1}])
def test_rows_that_say_nothing_stay_as_they_are(cut):
    sampling, rows = Sampling(temperature=0.5, **cut), random_logits(1, 3, 12)
    rows[0], rows[1, 3] = -math.inf, math.nan
    found = sampling.process(rows)
    assert (found[0] == -math.inf).all()
    assert found[1].isnan().any()
    assert torch.equal(found[2:], warp(rows[2:], sampling))


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
        ("typical_p", 0.0, "(0, 1]"),
        ("typical_p", math.nan, "(0, 1]"),
        ("epsilon_cutoff", -0.1, "[0, 1)"),
        ("epsilon_cutoff", 1.0, "[0, 1)"),
        ("eta_cutoff", 1.5, "[0, 1)"),
        ("top_h", 1.5, "[0, 1]"),
        ("top_h", math.nan, "[0, 1]"),
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
    randomness = gumbel(3, torch.arange(200), 100)
    assert randomness.dtype == torch.float32
    assert stats.kstest(randomness.flatten().double().numpy(), stats.gumbel_r.cdf).pvalue > 1e-3


def test_the_largest_noisy_logit_has_the_law_of_the_softmax():
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0])
    drawn = (logits + gumbel(11, torch.arange(20_000), 4)).argmax(-1).bincount(minlength=4)
    assert stats.chisquare(drawn.numpy(), 20_000 * logits.double().softmax(-1).numpy()).pvalue > 1e-3
