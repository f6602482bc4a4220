"""The limiting factor of laws worked out by hand."""

import pytest

from drafttree import Metrics, SpeedupLaw
from drafttree.engine.metrics import TextRound
from drafttree.measure.law import LimitingFactor


def found(levels: list[int], **terms: float) -> LimitingFactor:
    rounds = [TextRound(1, 0, 1 + level, level, level, 0.0, 1.0, 1.0) for level in levels]
    return LimitingFactor.of(SpeedupLaw(**terms, measured=0.0, decoding=0.0), Metrics(rounds))


@pytest.mark.parametrize(
    ("factor", "levels", "terms", "possible", "said"),
    [
        # R = 2.1 * 1.1 / 2 = 1.16; with 6 tokens a round 6 * 1.1 / 2
        ("acceptance", [4, 6], (2.1, 1.2, 0.1, 5, 0.3, 0.1), 3.3, "a round yields 2.1 of 6.0 possible tokens"),
        # R = 3 / 3; acceptance 4 / 3, v = 1 gives 3 / 1.5, drafting 3 / 2.7, overhead 3 / 2.8
        ("verification", [3], (3, 2.5, 0.1, 3, 0.2, 0), 2, "scoring a tree costs 2.50 plain passes"),
        # R = 4.5 / 4.5; acceptance 6 / 4.5, drafting 4.5 / 1.5
        ("drafting", [3], (3, 1, 1, 3, 0.5, 0.5), 3, "drafting costs 3.00 plain passes a round"),
        # R = 3.6 / 3.3; acceptance 4.8 / 3.3, drafting 3.6 / 3, overhead 3.6 / 1.5
        ("overhead", [3], (3, 1, 0.1, 3, 2, 0.2), 2.4, "2.00 plain passes outside the models, plain decoding 0.20"),
    ],
)
def test_the_term_whose_ideal_value_would_raise_the_ratio_most(factor, levels, terms, possible, said):
    limit = found(levels, **dict(zip(("tau", "v", "c", "delta", "h", "h0"), terms, strict=True)))
    assert limit.factor == factor
    assert limit.possible == pytest.approx(possible)
    assert limit.sentence.startswith(f"{factor.capitalize()} limits the gain: ")
    assert said in limit.sentence
    assert limit.sentence.endswith(f"(without this limit: {possible:.2f} times plain decoding).")


def test_where_most_rounds_drafted_nothing_that_is_the_limit():
    limit = found([0, 0, 3], tau=1.2, v=1.1, c=0.1, delta=1, h=0.5, h0=0.1)
    assert limit.factor == "acceptance"
    assert "in 2 of 3 rounds nothing was drafted, because it did not pay" in limit.sentence


def test_ideal_terms_leave_nothing_to_name():
    limit = found([3], tau=4, v=0.9, c=0, delta=3, h=0.1, h0=0.1)
    assert (limit.factor, limit.possible) == ("nothing", pytest.approx(4.4))
    assert limit.sentence == "Nothing limits the gain with trees of this depth; try deeper trees."


def test_where_nothing_was_drafted_the_drafter_is_the_limit():
    limit = found([0, 0], tau=1, v=1.1, c=0, delta=0, h=0.5, h0=0.1)
    assert limit.factor == "acceptance"
    assert limit.possible == pytest.approx(1.1 / 1.6)
    assert limit.sentence == "Acceptance limits the gain: nothing was drafted; try another drafter."
