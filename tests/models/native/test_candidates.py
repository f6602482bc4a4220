"""The best tokens of rows of logits, found in one call: those of a sort, with log-probabilities near float64's."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from drafttree.engine.drafting.tree_growth import best_candidates
from drafttree.models.native.kernels import MOST_CANDIDATES, native_candidates
from testing.marks import needs_native

pytestmark = needs_native


def expected(logits: torch.Tensor, count: int, allowed: int) -> tuple[np.ndarray, np.ndarray]:
    """By a stable sort in float64."""
    exact = logits.double().log_softmax(-1).numpy()
    order = np.argsort(-logits.numpy()[:, :allowed], axis=1, kind="stable")[:, :count]
    return np.take_along_axis(exact, order, 1), order


@given(
    st.integers(1, 9),
    st.integers(1, 300),
    st.integers(1, MOST_CANDIDATES),
    st.integers(0, 40),
    st.sampled_from([0.1, 3.0, 60.0]),
    st.booleans(),
    st.integers(0, 1 << 30),
)
def test_they_are_those_of_a_sort(rows, columns, count, unused, scale, has_ties, seed):
    generator = torch.Generator().manual_seed(seed)
    allowed = max(columns - unused, 1)
    count = min(count, allowed)
    logits = torch.randn(rows, columns + 3, generator=generator)[:, :columns] * scale
    logits = logits.round() if has_ties else logits
    logprobs, tokens = native_candidates(logits, count, allowed) or ()
    exact, order = expected(logits, count, allowed)
    assert (tokens == order).all()
    np.testing.assert_allclose(logprobs, exact, atol=1e-5, rtol=1e-5)


def test_tokens_that_cannot_be_drafted_are_the_last():
    logits = torch.full((2, 40), -torch.inf)
    logits[:, 33], logits[1, 7] = 1.0, 2.0
    logprobs, tokens = native_candidates(logits, 3, 40) or ()
    assert tokens[:, 0].tolist() == [33, 7]
    assert len({*tokens[0].tolist()}) == 3
    np.testing.assert_allclose(logprobs[0, :1], 0, atol=1e-6)
    assert np.isneginf(logprobs[0, 1:]).all()


def test_many_long_rows_are_shared_by_the_threads():
    logits = torch.randn(7, 50_000, generator=torch.Generator().manual_seed(1))
    logprobs, tokens = native_candidates(logits, 5, 50_000) or ()
    exact, order = expected(logits, 5, 50_000)
    assert (tokens == order).all()
    np.testing.assert_allclose(logprobs, exact, atol=1e-5)


def test_a_row_with_a_number_that_is_none_has_no_probabilities():
    logits = torch.zeros(1, 64)
    logits[0, 50] = torch.nan
    logprobs, _ = native_candidates(logits, 2, 64) or ()
    assert np.isnan(logprobs).all()


@pytest.mark.parametrize(
    ("logits", "count"),
    [(torch.zeros(2, 9, dtype=torch.float64), 2), (torch.zeros(1, 9).expand(2, -1), 2), (torch.zeros(2, 99), 65)],
    ids=["float64", "expanded", "many"],
)
def test_what_it_does_not_take_torch_does(logits, count):
    assert native_candidates(logits, count, logits.shape[1]) is None
    logprobs, tokens = best_candidates(logits, count)
    assert logprobs.shape == tokens.shape == (2, count)
