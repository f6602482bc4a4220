"""What the controller is asked before a round, while trees grow and at the end, and what it learns."""

import math
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from drafttree.core import Proposal
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.core.tree import GrowingTree
from drafttree.engine.drafting.acceptance import MAX_COUNTS, Acceptance
from drafttree.engine.drafting.acceptance_watch import HeadWatch
from drafttree.engine.drafting.controller import (
    FIRST_PROBE,
    LONGEST,
    LOOK_EVERY,
    LOSS,
    PLAIN_ROUNDS,
    SHORTEST,
    WATCHED,
    Controller,
    as_written,
)
from drafttree.engine.drafting.prices import Prices
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.policies import Auto, Chain
from helpers.trees import tree_of

CURVE = CostCurve(
    target=Costs.of({1: 1.0, 8: 1.14, 64: 3.0}),
    draft=(DraftCosts(0.2, Costs.of({1: 0.1, 8: 0.17})),),
    overhead=0.1,
    plain_overhead=0.05,
)
BOTH = replace(CURVE, draft=(DraftCosts(0.0, Costs.of({1: 0.0})), *CURVE.draft))
KIND, DRAFTS = (True, 0), [(0, (1, 1))]
LOOKUP, MODEL = [(0, (1,))], [(1, (1, 1))]
"""Drafts of a drafter that mixes two."""
TREE = tree_of([0, 0, 1], [0.6, 0.3, 0.5], widths=(1, 1))


def frozen(curve: CostCurve = CURVE, **options: Any) -> Controller:
    return Controller(Prices(curve, frozen=True), **options)


def session(expected: float | None = None, *, mixes: bool = False) -> Any:
    return SimpleNamespace(expected_accepted=expected, mixes=mixes)


def lose(controller: Controller, batch: int = 1, groups=DRAFTS) -> None:
    """Draft in vain until it pauses."""
    while not controller.rests(batch):
        controller.learn(batch, 4 * batch, batch, groups)


# Before a round.


def test_drafting_pauses_after_losses_and_is_tried_again():
    """After pauses twice as long each time, up to those by which trying loses no more than its share of time."""
    controller, pauses = frozen(), []
    for _ in range(9):
        lose(controller, groups=LOOKUP)
        pauses.append(0)
        while controller.rests(1):
            assert (controller.reason(1) is None) == (controller._size(1).models[0].waiting % LOOK_EVERY == 0)
            controller.learn(1, 1, 1, [])
            pauses[-1] += 1
        assert controller.reason(1) is None
    assert pauses[:4] == [SHORTEST, 2 * SHORTEST, 4 * SHORTEST, 8 * SHORTEST]
    assert pauses[-1] == pauses[-2] < 1.0 / LOSS
    assert max(pauses) <= LONGEST


def test_drafts_that_are_dearer_than_numbers_can_tell_pause():
    controller = frozen(CostCurve(Costs((1,), (5e-324,)), (DraftCosts(1e100, Costs((1,), (1e100,))),), 0.0, 0.0))
    controller.learn(1, 4, 4, DRAFTS)
    assert controller.rests(1)


def test_a_round_that_reads_prompts_tells_of_writing_only_where_that_was_not_seen():
    prices = Prices(CURVE)
    for _ in range(9):
        prices.observe(1, 1, 1.0, 0.0, 0.1, [])
    known = prices.round(1, 1), prices.target(1, 64)
    prices.observe(0, 512, 2.0, 0.0, 9.0, [])
    assert (prices.round(1, 1), prices.target(1, 64)) == known
    prices.observe(1, 1, 1.0, 0.0, None, [])
    assert prices.round(1, 1) == pytest.approx(known[0])
    unseen = Prices(None)
    unseen.observe(0, 512, 0.5, 0.0, None, [])
    assert unseen.target(4, 512) == pytest.approx(0.5)


def test_a_pause_tells_what_drafting_was():
    controller = frozen()
    lose(controller)
    controller.learn(1, 1, 1, [])
    assert controller.reason(1) == f"drafting was {controller.gain(1):.2f} times plain decoding at this batch"
    assert controller.none_wanted(1) == controller.reason(1)
    assert frozen().none_wanted(1) == "no request wants drafts"


def test_what_was_gained_is_soon_lost_and_batch_sizes_pause_apart():
    controller = frozen()
    for _ in range(100):
        controller.learn(8, 32, 24, DRAFTS)
    rounds = 0
    while not controller.rests(8):
        controller.learn(8, 32, 8, DRAFTS)
        rounds += 1
    assert rounds < 30
    assert not controller.rests(1)
    assert controller.rests(9)


def test_many_texts_show_a_loss_sooner():
    rounds = {}
    for batch in (1, 16):
        controller, rounds[batch] = frozen(), 0
        while not controller.rests(batch):
            controller.learn(batch, 2 * batch, batch, DRAFTS)
            rounds[batch] += 1
    assert rounds[16] * 2 < rounds[1]


def test_by_the_clock_plain_rounds_come_first_and_now_and_then():
    controller, reasons = Controller(Prices(CURVE)), []
    for _ in range(200):
        reasons.append(controller.reason(1))
        groups = [] if reasons[-1] else DRAFTS
        controller.prices.observe(1, 4 if groups else 1, 1.0, 0.3, 0.1, groups)
        controller.learn(1, 4 if groups else 1, 3 if groups else 1, groups)
    plain = [place for place, reason in enumerate(reasons) if reason == "a plain round, to know what it costs"]
    assert plain[:PLAIN_ROUNDS] == [*range(PLAIN_ROUNDS)]
    later = plain[PLAIN_ROUNDS:]
    assert later[0] == PLAIN_ROUNDS + FIRST_PROBE
    assert later[1] - later[0] > FIRST_PROBE
    assert not any(frozen().reason(1) for _ in range(9))


def test_a_model_drafts_unless_it_pauses_and_with_a_budget_always():
    controller, with_budget = frozen(), frozen(budget=3)
    assert controller.choose(session(), 1) == 0
    for each in (controller, with_budget):
        for _ in range(40):
            each.learn(1, 4, 1, [(0, (1, 1))])
    assert controller.choose(session(), 1) is None
    assert (with_budget.choose(session(), 1), with_budget.reason(1), with_budget.rests(1)) == (0, None, False)


def test_lookup_drafts_where_what_it_expects_beats_plain_decoding():
    """With doubt while it pauses: its last expectations did not come true."""
    controller = frozen(BOTH)
    assert controller.choose(session(0.0), 1) is None
    least = next(each / 100 for each in range(1, 99) if controller.choose(session(each / 100), 1) == 0)
    assert 0.02 < least < 0.12
    lose(controller, groups=LOOKUP)
    assert controller.choose(session(1.5 * least), 1) is None
    assert controller.choose(session(2.5 * least), 1) == 0


def test_lookup_and_a_model_draft_by_turns():
    controller = frozen(BOTH)
    assert controller.choose(session(0.1, mixes=True), 1) == 1
    assert controller.choose(session(2.0, mixes=True), 1) == 0
    for _ in range(20):
        controller.learn(1, 4, 4, MODEL)
    assert controller.choose(session(1.5, mixes=True), 1) == 1  # the model has become better than usual
    for _ in range(60):
        controller.learn(1, 4, 1, MODEL)
    assert controller.choose(session(0.2, mixes=True), 1) == 0
    assert controller.choose(session(0.0, mixes=True), 1) is None  # and now it pauses
    controller = frozen(BOTH)
    lose(controller, groups=LOOKUP)
    assert controller.choose(session(0.5, mixes=True), 1) == 1  # lookup's pause is its own


def test_mixed_lookup_has_to_beat_plain_decoding_unless_a_budget_has_drafts_in_any_case():
    """If it does not, the model drafts until it pauses, however slow it is."""
    dear = replace(BOTH, draft=(DraftCosts(0.5, Costs.of({1: 0.0})), DraftCosts(5.0, Costs.of({1: 5.0}))))
    unsure = session(0.2, mixes=True)
    assert frozen(dear).choose(unsure, 1) == 1
    assert frozen(dear, budget=3).choose(unsure, 1) == 0
    assert frozen(dear, budget=3).choose(session(0.0, mixes=True), 1) == 1


def test_what_is_assumed_of_a_model_counts_for_fewer_rounds_of_many_texts():
    chosen = {}
    for batch in (1, 16):
        controller = as_written()
        controller.choose(session(0.0, mixes=True), batch)
        for _ in range(2):
            controller.learn(batch, 4 * batch, 4 * batch, MODEL)
        chosen[batch] = controller.choose(session(1.3, mixes=True), batch)
    assert chosen == {1: 0, 16: 1}


def test_trees_as_they_are_written_are_not_dear_for_their_rows():
    """Lookup's would have as many; so what counts are tokens and draft passes."""
    controller, large = as_written(), [(1, (1,) * 14)]
    assert controller.choose(session(0.0, mixes=True), 1) == 1
    for _ in range(20):
        controller.learn(1, 60, 7, large)
    assert controller.choose(session(2.0, mixes=True), 1) == 1
    assert controller.choose(session(4.0, mixes=True), 1) == 0


def test_a_model_that_was_worse_is_tried_again_while_lookup_drafts():
    controller = as_written()
    for _ in range(20):
        controller.learn(1, 4, 1, MODEL)
    assert controller.choose(session(0.8, mixes=True), 1) == 0
    for _ in range(200):
        controller.learn(1, 4, 2, LOOKUP)
    assert controller.choose(session(0.2, mixes=True), 1) == 1


def test_a_head_that_may_be_misread_is_asked_more_often():
    """So that some thirty of its claims come within a thousand rounds, at a small share of the time."""
    watch = HeadWatch()
    asked = {}
    for name, heads in (("head", (0,)), ("other", ())):
        controller = frozen(heads=heads, head_watch=watch)
        asked[name] = 0
        for _ in range(1000):
            drafts = not controller.reason(1) and controller.choose(session(), 1) is not None
            asked[name] += drafts
            controller.learn(1, 2 if drafts else 1, 1, LOOKUP if drafts else [])
    assert asked["head"] > 64
    assert asked["head"] * controller.prices.drafting(0, (1,)) < 3 * WATCHED * 1000
    assert asked["other"] < asked["head"] / 2
    watch.is_open = False
    controller = frozen(heads=(0,), head_watch=watch)
    assert controller._longest_pause(0, 1) == LONGEST


# While trees grow, and at the end.


def growing(*parents: int, chance: float = 0.5) -> GrowingTree:
    """A tree of one level at whose end a gate is asked."""
    text = GrowingTree(1, 9)
    paths = [math.log(chance / (1 + place)) for place in range(len(parents))]
    text.add([*range(len(parents))], [*parents], paths, paths)
    text.frontier = [*range(1, len(text.tokens))]
    return text


def expanded(texts: list[GrowingTree], controller: Controller, rows: int = 0) -> list[list[int]]:
    limits = controller.limits(Auto(), Proposal.TOP_K, [KIND] * len(texts), len(texts), rows or len(texts))
    return [[*nodes] for nodes in limits.choose_frontier(texts, 1)]


def test_the_likeliest_nodes_of_all_texts_are_expanded():
    sure, unsure = growing(0, 0, chance=0.99), growing(0, 0, chance=0.02)
    assert expanded([sure, unsure], frozen()) == [[1, 2], []]
    free = replace(CURVE, target=Costs.of({1: 1.0}), draft=(DraftCosts(0.0, Costs.of({1: 0.0})),))
    assert expanded([sure, unsure], frozen(free)) == [[1, 2], [1, 2]]
    dear = replace(CURVE, draft=(DraftCosts(9.0, Costs.of({1: 9.0})),))
    assert expanded([sure, unsure], frozen(dear)) == [[], []]


def test_a_policy_that_weighs_nothing_is_limited_in_company_and_grows_as_written_alone():
    assert as_written().limits(Chain(), Proposal.TOP_K, [KIND], 1, 1) is None
    assert frozen(budget=4).limits(Chain(), Proposal.TOP_K, [KIND], 1, 1) is None
    assert frozen().limits(Chain(), Proposal.TOP_K, [KIND], 1, 1) is not None
    assert as_written().limits(Auto(), Proposal.TOP_K, [KIND], 1, 1) is not None  # it has no limits of its own


def test_drawn_trees_are_limited_by_places_before_the_draws():
    controller = frozen()
    limits = controller.limits(Auto(), Proposal.WITH_REPLACEMENT, [(False, 0)], 1, 1)
    root = GrowingTree(1, 9)
    (most,) = limits.max_children([root], 1)
    assert 1 <= most[0] < 10
    for token in (7, 8):  # whatever was drawn
        text = GrowingTree(1, 9)
        text.add([token] * 3, [0] * 3, [-0.1 * token] * 3, [])
        text.frontier = [1, 2, 3]
        again = controller.limits(Auto(), Proposal.WITH_REPLACEMENT, [(False, 0)], 1, 1)
        first = [*again.choose_frontier([text], 1)]
        assert first == [[*nodes] for nodes in [[1, 2, 3][: len(first[0])]]]


def test_the_nodes_that_stay_are_the_likeliest_of_all_trees_within_their_budgets():
    controller = frozen(budget=1)
    unlikely = tree_of([0, 0], [0.02, 0.01])
    trees, expected = controller.cut([TREE, unlikely], [KIND] * 2, [64] * 2, 2, [None] * 2)
    assert [tree.size for tree in trees] == [3, 1]
    assert 2 < expected < 4
    trees, _ = controller.cut([TREE, unlikely], [KIND] * 2, [2, 64], 2, [None] * 2)
    assert [tree.size for tree in trees] == [2, 2]
    trees, expected = as_written().cut([TREE], [KIND], [64], 1, [None])
    assert (trees, expected) == ([TREE], 1.0)


def test_rows_that_cost_too_much_are_left_out():
    steep = replace(CURVE, target=Costs.of({1: 1.0, 2: 9.0}))
    assert frozen(steep).cut([TREE], [KIND], [64], 1, [None])[0][0].size == 1
    assert frozen().cut([TREE], [KIND], [64], 1, [None])[0][0].size == 4


# Afterwards.


def test_the_rate_follows_rounds_and_is_never_below_plain_decodings():
    controller, plain = frozen(), 1 / TOY_COSTS.plain_round
    assert controller.rate(1) == pytest.approx(plain)
    for _ in range(50):
        controller.learn(1, 4, 3, DRAFTS)
    assert controller.rate(1) == pytest.approx(3 / CURVE.round(4, (1, 1)), rel=0.05)
    assert controller.gain(1) == pytest.approx(3 * CURVE.plain_round / CURVE.round(4, (1, 1)))
    for _ in range(100):
        controller.learn(1, 4, 1, DRAFTS)
    assert controller.rate(1) == pytest.approx(plain)


def test_texts_are_asked_in_vain_in_few_rounds_of_small_models():
    for seconds, batch, unasked in ((1e-3, 4, 16), (1e-3, 1, 5), (2e-2, 4, 1), (0.1, 4, 0), (1.0, 64, 0)):
        curve = replace(CURVE, target=Costs((1, 64), (seconds, seconds)), overhead=0.0, plain_overhead=0.0)
        controller = frozen(curve)
        controller.asked_in_vain(batch, batch)
        silent = 0
        while controller.reason(batch) is not None:
            assert controller.reason(batch) == "no request wants drafts"
            controller.learn(batch, batch, batch, [])
            silent += 1
        assert silent == unasked


def test_what_was_predicted_is_told_beside_what_was_measured():
    controller = frozen()
    assert (controller.gain(1), controller.predicted_gain(1)) == (None, None)
    controller.learn(1, 4, 3, DRAFTS, expected=2.0)
    assert controller.predicted_gain(1) == pytest.approx(controller.gain(1) * 2 / 3)


@pytest.mark.parametrize("pace", [1.0, 5.0])
def test_a_later_text_begins_with_what_was_learned_at_its_own_costs(pace):
    earlier = frozen()
    for _ in range(60):
        earlier.learn(1, 4, 3, DRAFTS)
        earlier.accept(KIND, TREE, [0, 1, 3])
    slower = CostCurve(
        Costs(CURVE.target.sizes, tuple(pace * cost for cost in CURVE.target.costs)),
        tuple(
            DraftCosts(pace * own.first, Costs(own.later.sizes, tuple(pace * cost for cost in own.later.costs)))
            for own in CURVE.draft
        ),
        pace * CURVE.overhead,
        pace * CURVE.plain_overhead,
    )
    later = frozen(slower)
    later.begin_with(earlier)
    assert later.gain(1) == pytest.approx(earlier.gain(1))
    assert pace * later.rate(1) == pytest.approx(earlier.rate(1), rel=0.02)
    assert 0 < later.acceptance(KIND).judged < earlier.acceptance(KIND).judged
    assert expanded([growing(0, 0)], later) == expanded([growing(0, 0)], earlier)


def chance(acceptance: Acceptance, tree=TREE) -> list[float]:
    return [*map(math.exp, acceptance.chances(tree))]


def test_chances_follow_what_was_accepted_and_never_rise():
    acceptance = Acceptance()
    before = chance(acceptance)
    assert before[0] == 1 >= before[1] >= max(before[2:])
    for _ in range(200):
        acceptance.observe(TREE, [0, 1])
    after = chance(acceptance)
    assert after[1] > 0.75 > 0.25 > after[2]
    assert after[3] < 0.25
    assert acceptance.judged < 4 * MAX_COUNTS
    assert chance(acceptance.copy()) == pytest.approx(after, abs=0.15)


def test_second_children_that_are_accepted_alone_raise_the_first_ones_place():
    acceptance = Acceptance()
    for _ in range(100):
        acceptance.observe(TREE, [0, 2])
    first, second = acceptance.drawn_rates(1, 2)
    assert first == second < 0.1  # they never rise
    assert acceptance.children(0)[1] > 0.9


def test_impossible_tokens_have_no_chance():
    tree = replace(TREE, path_logprobs=(0.0, -0.5, -math.inf, -1.0))
    assert chance(Acceptance(), tree)[2] == 0
