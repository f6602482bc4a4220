"""Few tokens that are proposed on the host are what the logits of the whole vocabulary would be."""

import math

import numpy as np
import pytest
import torch

from drafttree.core.candidates import Candidates
from drafttree.core.randomness import SeededRandomness
from drafttree.core.sampling import Sampling
from drafttree.engine.drafting.tree_growth import best_candidates
from drafttree.verifiers import Coupled, Greedy, RRSw

VOCAB = 150_000
CPU = torch.device("cpu")
ROWS = [
    ([7, 3, 149_999], [math.log(0.5), math.log(0.2), math.log(0.2)], math.log(0.1)),
    ([], [], 0.0),
    ([12], [math.log(0.75)], math.log(0.25)),
]


@pytest.fixture
def candidates():
    return Candidates.of_rows(ROWS, VOCAB)


def test_the_best_tokens_are_those_of_the_whole_vocabulary(candidates):
    for width, allowed in ((1, VOCAB), (2, VOCAB), (4, VOCAB), (3, 100), (2, 1)):
        logprobs, tokens = candidates.best(width, allowed)
        wanted, ids = best_candidates(candidates.dense(CPU), width, allowed)
        assert logprobs.dtype == np.float32
        assert logprobs.shape == wanted.shape
        np.testing.assert_allclose(logprobs, wanted, atol=1e-6)
        possible = wanted > -np.inf
        assert (tokens[possible] == ids[possible]).all()


def test_equal_tokens_are_ordered_by_their_ids(candidates):
    _, tokens = candidates.best(3, VOCAB)
    assert tokens[0].tolist() == [7, 3, 149_999]
    assert candidates.tokens[0].tolist() == [3, 7, 149_999]


def test_the_dense_rows_have_a_column_for_all_others(candidates):
    rows = candidates.dense(CPU)
    assert rows.shape == (3, VOCAB + 1)
    assert rows.exp().sum(1).tolist() == pytest.approx([1, 1, 1])
    assert rows[1, -1] == 0
    assert (rows > -torch.inf).sum(1).tolist() == [4, 1, 2]


@pytest.mark.parametrize("shape", [{}, {"temperature": 0.6}, {"top_k": 2}, {"top_p": 0.6}, {"min_p": 0.5}])
def test_noise_is_added_as_to_the_whole_vocabulary(candidates, shape):
    verifier, randomness = (
        Coupled(Sampling(**{"temperature": 1.0, "seed": 5, **shape})),
        SeededRandomness(5, VOCAB, CPU),
    )
    guided = verifier.guide_candidates(candidates, 2, randomness)
    assert guided is not None
    wanted = verifier.guide(candidates.dense(CPU), 2, randomness)
    for part, other in zip(guided.best(3, VOCAB), best_candidates(wanted, 3, VOCAB), strict=True):
        possible = best_candidates(wanted, 3, VOCAB)[0] > -np.inf
        np.testing.assert_allclose(part[possible], other[possible], rtol=1e-5)


def test_who_changes_nothing_leaves_them_and_who_draws_wants_all_columns(candidates):
    randomness = SeededRandomness(5, VOCAB, CPU)
    assert Greedy(Sampling()).guide_candidates(candidates, 1, randomness) is candidates
    assert RRSw(Sampling(1.0)).guide_candidates(candidates, 1, randomness) is None


class Louder(Coupled):
    """A user's own, which shows other noise."""

    def guide(self, logits, depth, randomness):
        return super().guide(logits, depth, randomness) * 2


def test_a_guide_of_ones_own_is_asked_with_all_columns(candidates):
    assert Louder(Sampling(1.0)).guide_candidates(candidates, 1, SeededRandomness(5, VOCAB, CPU)) is None


def test_a_row_without_a_possible_token_has_none(candidates):
    rows = candidates.divided(1e-45)
    logprobs, _ = rows._replace(logits=np.full_like(rows.logits, -np.inf)).best(2, VOCAB)
    assert (logprobs == -np.inf).all()
    assert rows.best(1, VOCAB)[1][0] == 7 or not np.isfinite(rows.best(1, VOCAB)[0][0])


def test_parts_are_joined_again(candidates):
    joined = candidates.part(2, 3).joined([candidates.part(1, 2), candidates.part(0, 1)])
    assert joined.nodes == 3
    assert torch.equal(joined.dense(CPU), candidates.dense(CPU)[[2, 1, 0]])
