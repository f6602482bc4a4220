"""Claims that are true by construction: how many are decided rightly, and that hardly any is decided wrongly.

A paper measures chains of several depths with a drafter whose agreement is known here. It prints costs with an error. A
replay has a drafter of its own, fits it to the row of one depth on six prompts, and judges whether one depth is faster
than another on ten others. Texts are drawn token by token instead of decoded; there is one claim, so that nothing is
corrected for the number of claims, and one confidence.
"""

from collections import Counter

import numpy as np
import pytest

from drafttree_lab.replay.agreement import FARTHEST, START, find_root
from drafttree_lab.replay.costs import draw_published_costs
from drafttree_lab.replay.intervals import Jackknife, total
from drafttree_lab.replay.judge import Evidence, judge
from drafttree_lab.replay.paper import Comparison, Model, RoundCost

REPLAYS, TOKENS, FITTED = 150, 128, 6
ROUND, ERROR = 0.4, 0.02
"""h, and the relative standard error with which most costs of a round are printed."""
REFERENCE, DEPTHS = 5, (1, 2, 5, 9)
SPREAD = 0.4
"""Standard deviation of the logit of the agreement between prompts."""


def logit(share):
    return float(np.log(share / (1 - share)))


def tau(agreement, depth):
    """Expected tokens of a round whose drafted tokens are each right as often as this."""
    return (1 - agreement ** (depth + 1)) / (1 - agreement)


def shares(centre):
    """Agreements of many prompts."""
    return 1 / (1 + np.exp(-(centre + SPREAD * np.random.default_rng(0).normal(size=20_000))))


def long_run_tau(centre, depth):
    """Tokens per round in the paper, over many prompts."""
    return 1 / np.mean(1 / tau(shares(centre), depth))


def rounds(agreements, depth, generator):
    """Rounds of texts of `TOKENS` tokens."""
    found = []
    for share in agreements:
        accepted = np.minimum(generator.geometric(1 - share, size=TOKENS) - 1, depth)
        found.append(int(np.searchsorted(np.cumsum(1 + accepted), TOKENS)) + 1)
    return np.array(found, float)


def replayed(centre, cost, error, claim, prompts, generator):
    """The judgement of a replay, None where no drafter is so near to the target.

    Args:
        cost: of a draft pass.
        error: the relative standard error with which the costs of rounds are printed.
    """
    own_logits = generator.normal(generator.normal(0, 1), SPREAD, FITTED + prompts)  # before it is fitted
    wanted = long_run_tau(centre, REFERENCE)

    def fitted(shift):
        return 1 / (1 + np.exp(-(own_logits[:FITTED] + shift)))

    def missing(agreement):
        counts = rounds(fitted(logit(agreement)), REFERENCE, np.random.default_rng(seed))
        return np.log(TOKENS * FITTED / counts.sum() / wanted)

    seed = int(generator.integers(1 << 30))
    near = find_root(missing, START)
    if near is None:
        return None
    counts = rounds(fitted(logit(near)), REFERENCE, np.random.default_rng(seed))
    jackknife = Jackknife({"fit": FITTED})
    spread = total(jackknife.spreads(jackknife.mean([("fit", [(float(TOKENS), each) for each in counts])])))
    step = np.sqrt(spread.variance)
    moved = find_root(lambda each: missing(each) - missing(near) - step, near, step / 20) or FARTHEST
    shift, moved = logit(near), logit(moved)

    texts = {  # the same prompts for both drafters, but draws of their own, as other drafters draw other trees
        place: {depth: rounds(1 / (1 + np.exp(-(own_logits[FITTED:] + place))), depth, generator) for depth in DEPTHS}
        for place in (shift, moved)
    }
    rows = [
        RoundCost(nodes=depth + 1, cost=price * (1 + error * generator.normal()), error=error * price)
        for depth in (5, 9)
        for price in [1 + cost * depth + ROUND]
    ]
    (four, eight) = (row.cost - 1 for row in rows)
    draft = max((eight - four) / 4, 0.0)
    model = Model(
        draft_pass={"x": draft},
        round=max(four - 5 * draft, 0.0),  # no file may have costs below 0
        source="",
        line=1,
        rounds=rows,
        samples=30,
        target_pass={1: 1.0},
    )
    own = Jackknife({"a": prompts})

    def means(place, costs_draft, costs_round):
        def mean(name, _metric):
            depth = int(name.removeprefix("chain "))
            price = 1 + costs_draft * depth + costs_round
            return own.mean([("a", [(float(TOKENS) + 0 * price, each * price) for each in texts[place][depth]])])

        return mean

    drawn = draw_published_costs(model, "x")
    evidence = Evidence(
        means(shift, draft, model.round),
        own,
        prompts,
        drawn=means(shift, drawn.draft, drawn.round),
        moved=means(moved, draft, model.round),
        moved_freedom=spread.freedom,
    )
    return judge(claim, evidence, ())


def judged(agreement, left, right, cost, error=ERROR):
    """How many replays have each outcome, for the claim that is true of the long run."""
    centre = logit(agreement)
    truth = long_run_tau(centre, left) / long_run_tau(centre, right)
    truth *= (1 + cost * right + ROUND) / (1 + cost * left + ROUND)
    about = {"id": "x", "text": "so", "line": 1, "metric": "speedup"}
    claim = Comparison(**about, left=f"chain {left}", right=f"chain {right}", sign=">" if truth > 1 else "<")
    generator = np.random.default_rng([left, right, int(100 * agreement)])
    judgements = [replayed(centre, cost, error, claim, 10, generator) for _ in range(REPLAYS)]
    found = Counter(each.outcome if each else "not run" for each in judgements)
    told = ", ".join(f"{count / REPLAYS:.0%} {outcome}" for outcome, count in found.items())
    print(f"\nagreement {agreement}: chain {left} over chain {right} is {truth:.3f}: {told}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("agreement", [0.5, 0.7, 0.9])
@pytest.mark.parametrize(("left", "right"), [(2, 5), (1, 5), (9, 2)])
def test_claims_that_are_true_are_hardly_ever_contradicted(agreement, left, right):
    found = judged(agreement, left, right, 0.3)
    assert found["contradicted"] / REPLAYS <= 0.05


@pytest.mark.slow
@pytest.mark.parametrize("agreement", [0.5, 0.7, 0.9])
@pytest.mark.parametrize(("left", "right"), [(2, 5), (1, 9)])
@pytest.mark.parametrize("error", [ERROR, 0.0])
def test_between_equal_methods_hardly_any_claim_is_decided(agreement, left, right, error):
    ours, theirs = (long_run_tau(logit(agreement), each) for each in (left, right))
    equal = (theirs - ours) * (1 + ROUND) / (ours * right - theirs * left)  # the c at which both are as fast
    found = judged(agreement, left, right, equal, error)
    assert (found["reproduced"] + found["contradicted"]) / REPLAYS <= 0.1  # 5 % within two standard errors of 150
