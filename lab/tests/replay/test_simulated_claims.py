"""Claims that are true by construction: how many are decided rightly, and that hardly any is decided wrongly.

A paper measures chains of several depths with a drafter whose agreement is known here. It prints costs with an error. A
replay has a drafter of its own, fits it to the row of one depth on six prompts, and judges whether one depth is faster
than another on others.
"""

from collections import Counter

import numpy as np
import pytest

from drafttree_lab.replay.costs import draw_published_costs
from drafttree_lab.replay.intervals import Jackknife, total
from drafttree_lab.replay.judge import Evidence, judge
from drafttree_lab.replay.paper import Comparison, Model, RoundCost

REPLAYS, TOKENS, FITTED = 150, 128, 6
DRAFT, ROUND, ERROR = 0.3, 0.4, 0.02
"""c, h, and the relative standard error with which the cost of a round is printed."""
REFERENCE, DEPTHS = 5, (1, 2, 5, 9)
SPREAD = 0.4
"""Standard deviation of the logit of the agreement between prompts."""


def tau(agreement, depth):
    """Expected tokens of a round whose drafted tokens are each right as often as this."""
    return (1 - agreement ** (depth + 1)) / (1 - agreement)


def shares(centre, spread=SPREAD, count=20_000, generator=np.random.default_rng(0)):  # noqa: B008
    """Agreements of prompts."""
    return 1 / (1 + np.exp(-(centre + spread * generator.normal(size=count))))


def speed(centre, depth):
    """Tokens by cost in the paper, over many prompts."""
    return TOKENS / np.mean(TOKENS / tau(shares(centre), depth)) / (1 + DRAFT * depth + ROUND)


def rounds(agreements, depth, generator):
    """Rounds of texts of `TOKENS` tokens."""
    found = []
    for share in agreements:
        accepted = np.minimum(generator.geometric(1 - share, size=TOKENS) - 1, depth)
        found.append(int(np.searchsorted(np.cumsum(1 + accepted), TOKENS)) + 1)
    return np.array(found, float)


def replayed(centre, claim, prompts, generator):
    """The judgement of a replay."""
    own_logits = generator.normal(generator.normal(0, 1), SPREAD, FITTED + prompts)  # before it is fitted
    wanted = TOKENS / np.mean(TOKENS / tau(shares(centre), REFERENCE))

    def fitted(shift):
        return 1 / (1 + np.exp(-(own_logits[:FITTED] + shift)))

    def missing(shift, seed):
        counts = rounds(fitted(shift), REFERENCE, np.random.default_rng(seed))
        return np.log(TOKENS * FITTED / counts.sum() / wanted)

    seed = int(generator.integers(1 << 30))
    grid = np.linspace(-6, 6, 241)
    shift = grid[np.argmin([abs(missing(each, seed)) for each in grid])]
    counts = rounds(fitted(shift), REFERENCE, np.random.default_rng(seed))
    jackknife = Jackknife({"fit": FITTED})
    spread = total(jackknife.spreads(jackknife.mean([("fit", [(float(TOKENS), each) for each in counts])])))
    moved = grid[np.argmin([abs(missing(each, seed) - np.sqrt(spread.variance)) for each in grid])]

    texts = {  # the same prompts for both drafters, but draws of their own, as other drafters draw other trees
        place: {depth: rounds(1 / (1 + np.exp(-(own_logits[FITTED:] + place))), depth, generator) for depth in DEPTHS}
        for place in (shift, moved)
    }
    rows = [
        RoundCost(nodes=depth + 1, cost=cost * (1 + ERROR * generator.normal()), error=ERROR * cost)
        for depth in (5, 9)
        for cost in [1 + DRAFT * depth + ROUND]
    ]
    (four, eight) = (row.cost - 1 for row in rows)
    draft = (eight - four) / 4
    model = Model(
        draft_pass={"x": draft},
        round=four - 5 * draft,
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


@pytest.mark.slow
@pytest.mark.parametrize("agreement", [0.5, 0.7, 0.9])
@pytest.mark.parametrize(("left", "right"), [(2, 5), (1, 5), (9, 2)])
def test_claims_that_are_true_are_hardly_ever_contradicted(agreement, left, right):
    centre = np.log(agreement / (1 - agreement))
    truth = speed(centre, left) / speed(centre, right)
    about = {"id": "x", "text": "so", "line": 1, "metric": "speedup"}
    claim = Comparison(**about, left=f"chain {left}", right=f"chain {right}", sign=">" if truth > 1 else "<")
    generator = np.random.default_rng([left, right, int(100 * agreement)])
    found = Counter(replayed(centre, claim, 10, generator).outcome for _ in range(REPLAYS))
    told = ", ".join(f"{count / REPLAYS:.0%} {outcome}" for outcome, count in found.items())
    print(f"\nagreement {agreement}: chain {left} over chain {right} is {truth:.2f}: {told}")
    assert found["contradicted"] / REPLAYS <= 0.05
