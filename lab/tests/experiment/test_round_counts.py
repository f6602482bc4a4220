"""Counted rounds and the law's terms, by hand."""

import pytest

from drafttree import SpeedupLaw
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.metrics import Round
from drafttree_lab.experiment.round_counts import RoundCounts, RoundTerms

CURVE = CostCurve(
    target=Costs.of({1: 1.0, 5: 2.0}),
    draft=(DraftCosts(0.2, Costs.of({1: 0.1, 2: 0.3})), DraftCosts(0.5, Costs.of({1: 0.4}))),
    overhead=0.4,
    plain_overhead=0.25,
)


def turn(committed, nodes, widths=(), source=0):
    return Round(committed, committed - 1, nodes, len(widths), len(widths), 0.0, 0.0, 0.0, widths=widths, source=source)


ROUNDS = [turn(3, 5, (1, 2)), turn(2, 5, (1, 2)), turn(1, 1), turn(4, 3, (1,), 1)]


def test_the_terms_are_those_of_the_rounds():
    counts = RoundCounts.of(ROUNDS)
    assert [(shape.rounds, shape.committed) for shape in counts.shapes] == [(2, 5), (1, 1), (1, 4)]
    assert (counts.rounds, counts.tau, counts.delta, counts.nodes, counts.levels) == (4, 2.5, 1.25, 3.5, 1.25)
    terms = counts.terms(CURVE)
    plain = 4 * 1.25
    assert terms.verification == pytest.approx((2 + 2 + 1 + 1.5) / plain)
    assert terms.drafting == pytest.approx((2 * (0.2 + 0.3) + 0.5) / plain)
    assert terms.overhead == pytest.approx((3 * 0.4 + 0.25) / plain)
    spent = sum(CURVE.round(each.nodes, each.widths, each.source) for each in ROUNDS)
    assert terms.speedup == pytest.approx(10 / spent * CURVE.plain_round)


def test_plain_rounds_are_as_fast_as_plain_decoding():
    assert RoundCounts.of([turn(1, 1)] * 3).terms(CURVE).speedup == pytest.approx(1)


def test_the_terms_of_a_law_give_its_r():
    law = SpeedupLaw(tau=3.0, v=1.4, c=0.1, delta=4.0, h=0.3, h0=0.2, measured=0.0, decoding=0.0)
    assert RoundTerms.of(law).speedup == pytest.approx(law.predicted)


@pytest.mark.parametrize(
    ("better", "term"),
    [
        (RoundTerms(3.0, 1.5, 0.6, 0.3), "acceptance"),
        (RoundTerms(2.0, 1.0, 0.6, 0.3), "verification"),
        (RoundTerms(1.9, 1.5, 0.1, 0.3), "drafting"),
        (RoundTerms(2.0, 1.5, 0.5, 0.1), "overhead"),
    ],
)
def test_the_term_that_explains_most_is_named(better, term):
    assert RoundTerms(2.0, 1.5, 0.6, 0.3).shortfall(better) == term
