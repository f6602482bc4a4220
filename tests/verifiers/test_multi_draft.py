"""Greedy multi-draft accepts what its paper says it can, and SpecHub is two of its children."""

import pytest

from drafttree.core import Proposal
from drafttree.exactness import law
from drafttree.policies import Template
from drafttree.verifiers import RRS, GreedyMultiDraft, RRSw
from testing.toy_pairs import constant, drawn_tree, judged

ROWS = [
    ([0.2, 0.4, 0.3, 0.1], [0.5, 0.3, 0.15, 0.05]),
    ([0.7, 0.1, 0.1, 0.1], [0.1, 0.2, 0.3, 0.4]),
    ([0.25, 0.25, 0.5, 0.0], [0.6, 0.4, 0.0, 0.0]),
]


def siblings(count: int) -> Template:
    return Template(paths=tuple((rank,) for rank in range(count)))


def acceptance(p: list[float], q: list[float], count: int) -> float:
    best = sorted(range(len(q)), key=lambda token: -q[token])[: count - 1]
    rest = 1 - sum(q[token] for token in best)
    drawn = sum(min(p[token], q[token] / rest) for token in range(len(q)) if token not in best)
    return sum(p[token] for token in best) + drawn


@pytest.mark.parametrize(("p", "q"), ROWS)
@pytest.mark.parametrize("count", [1, 2, 3])
def test_acceptance_is_the_best_tokens_and_the_overlap_with_the_rest(p, q, count):
    count = min(count, sum(part > 0 for part in q))
    tables = constant(p, q)
    found = law(tables.target, tables.draft, siblings(count), GreedyMultiDraft)
    assert found.expected_accepted == pytest.approx(acceptance(p, q, count))
    assert found.total_variation < 1e-12


@pytest.mark.parametrize(("p", "q"), ROWS[:2])
def test_two_children_are_spechub(p, q):
    tables, hub = constant(p, q), q.index(max(q))
    formula = p[hub] + sum(min(p[x], q[x] / (1 - q[hub])) for x in range(len(q)) if x != hub)
    found = law(tables.target, tables.draft, siblings(2), GreedyMultiDraft)
    assert found.expected_accepted == pytest.approx(formula)


def test_one_child_is_rejection_sampling():
    tables = constant(*ROWS[0])
    found = [law(tables.target, tables.draft, siblings(1), v).expected_accepted for v in (GreedyMultiDraft, RRS, RRSw)]
    assert found == pytest.approx([found[0]] * 3)


def test_a_rejected_draw_may_fall_on_a_best_token_and_go_on_from_there():
    tree = drawn_tree([0, 2], [0, 0], [0.0, 0.75, 0.25], Proposal.TOP_K_PLUS_SAMPLE)
    verdict, randomness = judged(GreedyMultiDraft, tree, [0.8, 0.1, 0.1], False)
    assert randomness.asked == pytest.approx([0.4])
    assert randomness.drawn[0] == pytest.approx([1, 0, 0])
    assert verdict == ([0, 1], 0)
