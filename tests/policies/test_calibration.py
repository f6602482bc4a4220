"""What calibration counts, by hand, and the probabilities it makes of the counts, in plain Python."""

import itertools
import math
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from drafttree.policies.calibration import (
    BIN_SCALE,
    BINS,
    CLASSES,
    DEPTHS,
    PLACE_PRIOR,
    POOLED_WEIGHT,
    PRIOR_LOGITS,
    PRIOR_SLOPE,
    PRIOR_WEIGHT,
    RANKS,
    Cell,
    SurvivalCalibration,
    next_level,
    place_rates,
)
from helpers.trees import tree_of

EMPTY = SurvivalCalibration.empty()


def bin_of(prob: float) -> int:
    """The bin that a drafter's probability falls into."""
    return min(int(BIN_SCALE * math.sqrt(-math.log(prob))), BINS - 1)


def counted(calibration: SurvivalCalibration) -> dict[Cell, tuple[float, float]]:
    """Hits and trials of all cells that have any."""
    both = calibration.hits, calibration.trials
    hits, trials = ({cell: count for cell, count in counts.items() if count} for counts in both)
    assert hits.keys() <= trials.keys()
    return {cell: (hits.get(cell, 0.0), count) for cell, count in trials.items()}


@pytest.fixture
def tree():
    """Two children of the root; two below the first, one below the second; three below the first of the first.

    0 - 1 - 3 - 6, 7, 8
      |   - 4
      - 2 - 5
    """
    return tree_of([0, 0, 1, 1, 2, 3, 3, 3], [0.6, 0.3, 0.9, 0.05, 0.8, 0.5, 0.3, 0.1])


def test_an_accepted_path_counts_its_nodes_their_siblings_and_what_follows_its_end(tree):
    assert counted(EMPTY.observe(tree, [0, 1, 3])) == {
        (0, 0, bin_of(0.6)): (1, 1),
        (0, 1, bin_of(0.3)): (0, 1),
        (1, 0, bin_of(0.9)): (1, 1),
        (1, 1, bin_of(0.05)): (0, 1),
        (2, 0, bin_of(0.5)): (0, 1),
        (2, 1, bin_of(0.3)): (0, 1),
        (2, 2, bin_of(0.1)): (0, 1),
    }


def test_what_lies_below_a_rejected_node_says_nothing(tree):
    assert counted(EMPTY.observe(tree, [0])) == {(0, 0, bin_of(0.6)): (0, 1), (0, 1, bin_of(0.3)): (0, 1)}
    second = counted(EMPTY.observe(tree, [0, 2, 5]))
    assert second == {
        (0, 0, bin_of(0.6)): (0, 1),
        (0, 1, bin_of(0.3)): (1, 1),
        (1, 0, bin_of(0.8)): (1, 1),
    }


def test_rounds_add_up_and_leave_what_was_counted_before_as_it_is(tree):
    once = EMPTY.observe(tree, [0, 1])
    twice = once.observe(tree, [0])
    assert counted(twice)[0, 0, bin_of(0.6)] == (1, 2)
    assert counted(once)[0, 0, bin_of(0.6)] == (1, 1)
    assert not counted(EMPTY)


def test_siblings_of_one_cell_are_counted_one_by_one():
    """Ranks 3 to 5 are one class."""
    same = EMPTY.observe(tree_of([0] * 6, [0.3, 0.2, 0.1, 0.05, 0.05, 0.05]), [0, 5])
    assert counted(same)[0, 3, bin_of(0.05)] == (1, 3)


def test_deep_levels_share_the_last_cells_and_far_ranks_the_last_class():
    chain = EMPTY.observe(tree_of(range(DEPTHS + 2), [0.5] * (DEPTHS + 2)), range(DEPTHS + 3))
    assert [cell[0] for cell in counted(chain)] == list(range(DEPTHS))
    assert counted(chain)[DEPTHS - 1, 0, bin_of(0.5)] == (3, 3)
    wide = EMPTY.observe(tree_of([0] * 20, [0.05] * 20), [0])
    assert sum(trials for (_, rank, _), (_, trials) in counted(wide).items() if rank == CLASSES - 1) == 20 - 6


def test_a_lone_root_is_not_counted():
    assert not counted(EMPTY.observe(tree_of([], [], ()), [0]))


def test_bins_are_finest_where_the_drafter_is_sure():
    edges = [math.exp(-((edge / BIN_SCALE) ** 2)) for edge in range(BINS)]
    found = [next(iter(counted(EMPTY.observe(tree_of([0], [edge * (1 - 1e-4)]), [0])))) for edge in edges]
    assert [cell[2] for cell in found] == list(range(BINS))
    assert next(iter(counted(EMPTY.observe(tree_of([0], [1.0]), [0]))))[2] == 0
    assert next(iter(counted(EMPTY.observe(tree_of([0], [1e-30]), [0]))))[2] == BINS - 1


counts = st.lists(
    st.tuples(
        st.tuples(st.integers(0, DEPTHS - 1), st.integers(0, CLASSES - 1), st.integers(0, BINS - 1)),
        st.integers(0, 50),
        st.integers(0, 50),
    ),
    max_size=12,
)


def calibration_of(found) -> SurvivalCalibration:
    hits, trials = Counter(), Counter()
    for cell, accepted, rejected in found:
        hits[cell] += accepted
        trials[cell] += accepted + rejected
    return SurvivalCalibration(hits, trials)


def acceptance(found, level: int, rank: int, bin_: int) -> float:
    """The back-off written out: a level's cell, then that cell of all levels, then the curve."""

    def total(*levels: int) -> tuple[float, float]:
        here = [(h, m) for (depth, r, b), h, m in found if depth in levels and (r, b) == (rank, bin_)]
        return sum(h for h, _ in here), sum(h + m for h, m in here)

    log_odds = PRIOR_LOGITS[rank] - PRIOR_SLOPE * ((bin_ + 0.5) / BIN_SCALE) ** 2
    prior = 1 / (1 + math.exp(-log_odds))
    hits, trials = total(*range(DEPTHS))
    pooled = (hits + PRIOR_WEIGHT * prior) / (trials + PRIOR_WEIGHT)
    hits, trials = total(level)
    return (hits + POOLED_WEIGHT * pooled) / (trials + POOLED_WEIGHT)


@settings(max_examples=40)
@given(counts, st.integers(0, DEPTHS - 1))
def test_a_cell_backs_off_to_all_levels_and_these_to_the_curve(found, level):
    made = calibration_of(found)
    for rank, bin_ in itertools.product(range(CLASSES), range(BINS)):
        assert made.rate((level, rank, bin_)) == pytest.approx(acceptance(found, level, rank, bin_), rel=1e-9)


@settings(max_examples=40)
@given(counts, st.integers(1, 2 * DEPTHS), st.lists(st.floats(1e-9, 1), min_size=1, max_size=12))
def test_acceptance_follows_the_table_and_never_rises_along_siblings(found, depth, probs):
    probs = sorted(probs, reverse=True)
    made = calibration_of(found).log_acceptance(list(map(math.log, probs)), depth)
    lowest, expected = math.inf, []
    for rank, prob in enumerate(probs):
        cell = min(depth, DEPTHS) - 1, RANKS[min(rank, len(RANKS) - 1)], bin_of(prob)
        lowest = min(lowest, acceptance(found, *cell))
        expected.append(lowest)
    assert list(map(math.exp, made)) == pytest.approx(expected, rel=1e-9)
    assert max(expected) < 1


def test_a_parents_probability_is_multiplied_with_its_childrens():
    logprobs = [math.log(0.5), math.log(0.4)]
    alone, below = EMPTY.log_acceptance(logprobs, 2), EMPTY.log_acceptance(logprobs, 2, parent=-1.5)
    assert below == pytest.approx([each - 1.5 for each in alone])


def test_a_candidate_that_cannot_be_is_never_accepted_and_an_improbable_one_may_be():
    found = EMPTY.log_acceptance([-0.1, -1e4, -math.inf], 1)
    assert found[2] == -math.inf < found[1]


def test_many_counts_outweigh_the_curve():
    """A drafter whose probability of 0.29 is right 79 times of 100."""
    found = [((0, 0, bin_of(0.29)), 790, 210)]
    (made,) = calibration_of(found).log_acceptance([math.log(0.29)], 1)
    assert math.exp(made) == pytest.approx(0.79, abs=0.01)


def test_faded_counts_keep_their_rates_and_small_ones_stay_as_they_are():
    made = calibration_of([((0, 0, 3), 60, 20), ((1, 2, 5), 1, 3), ((0, 1, 0), 0, 100)]).faded(8)
    assert counted(made) == {(0, 0, 3): (6, 8), (1, 2, 5): (1, 4), (0, 1, 0): (0, 8)}


def test_accepted_children_per_parent_by_hand(tree):
    """Three rounds on level 1: the first child is accepted once and the second once."""
    made = EMPTY.observe(tree, [0, 1]).observe(tree, [0, 2]).observe(tree, [0])
    pooled = [(hits + PRIOR_WEIGHT * PLACE_PRIOR[rank]) / (5 + PRIOR_WEIGHT) for rank, hits in ((0, 1), (1, 1))]
    expected = [(1 + POOLED_WEIGHT * each) / (3 + POOLED_WEIGHT) for each in pooled]
    assert made.children[0][:2] == pytest.approx(expected)
    assert next_level(made.children, 1) == made.children[1]
    assert next_level(made.children, 99) == made.children[DEPTHS - 1]


def test_the_rates_of_places_by_hand(tree):
    """The second place is tried twice on level 1 and once on level 2."""
    made = EMPTY.observe(tree, [0, 1]).observe(tree, [0, 1, 3])
    pooled = (0 + PRIOR_WEIGHT * PLACE_PRIOR[1]) / (2 + 2 + 1 + PRIOR_WEIGHT)
    assert made.places[0][1] == pytest.approx((0 + POOLED_WEIGHT * pooled) / (2 + POOLED_WEIGHT))
    first = (3 + PRIOR_WEIGHT * PLACE_PRIOR[0]) / (2 + 2 + 1 + PRIOR_WEIGHT)
    assert made.places[1][0] == pytest.approx((1 + POOLED_WEIGHT * first) / (2 + POOLED_WEIGHT))


@settings(max_examples=40)
@given(counts)
def test_rates_of_places_never_rise(found):
    made = calibration_of(found)
    for level in range(DEPTHS):
        rates = place_rates(made.places, level + 1, 9)
        assert all(0 < after <= before < 1 for before, after in itertools.pairwise(rates))
        assert rates == [made.places[level][RANKS[min(rank, len(RANKS) - 1)]] for rank in range(9)]
    assert place_rates(made.places, 99, 2) == place_rates(made.places, DEPTHS, 2)
