"""Auto's trees and pauses under curves that are known, and that no clock and no drawn node decides them."""

import math
import random
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import ClassVar

import pytest
import torch

from drafttree import Decoder, DraftTree
from drafttree.core import Proposal
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine import grow, tree_growth
from drafttree.engine.compatibility import incompatibility
from drafttree.errors import ConfigError
from drafttree.evaluation.pair_trials import EXACT, toy_pair
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.exactness import law, trees
from drafttree.policies import Auto, TreePolicy
from drafttree.policies.auto import LOOK_EVERY, AutoSampled
from drafttree.policies.auto_state import (
    LARGEST_GAIN,
    LARGEST_LOSS,
    LONGER,
    LONGEST_PAUSE,
    MUCH_LONGER,
    SHORTEST_PAUSE,
    AutoState,
    Balance,
)
from drafttree.policies.base import RoundOutcome, TextContext
from drafttree.policies.tree_value import best_limits
from drafttree.verifiers import RRS, Block, Coupled, Greedy, PointMass, RRSw, Traversal
from helpers.trees import plain_draft, tree_of
from testing.costs import new_states
from testing.small_trees import DRAFT, LENGTH, PROMPT, TARGET, VOCAB
from testing.toy import ToyDraft, ToyDrafter, ToyModel, argmax, greedy_text

ONE = Costs((1,), (1.0,))


def curve(
    target: dict[int, float] | None = None, first: float = 0.02, later: float = 0.02, overhead: float = 0.1
) -> CostCurve:
    """Costs in plain passes, of nodes that are free where nothing is said of them."""
    drafting = DraftCosts(first, Costs((1,), (later,)))
    return CostCurve(Costs.of(target) if target else ONE, (drafting,), overhead, plain_overhead=0.05)


FREE, STEEP = curve(), curve({1: 1.0, 2: 1.3})
DEAR = curve({1: 1.0, 8: 1.4}, first=0.3, later=0.2, overhead=0.25)


def decoder(costs: CostCurve = TOY_COSTS, draft=DRAFT, policy: TreePolicy | None = None, verifier=None) -> Decoder:
    return Decoder(ToyModel(TARGET), ToyDrafter(draft), policy or Auto(), verifier).with_costs(costs)


def rounds_of(costs: CostCurve, draft=DRAFT, policy: TreePolicy | None = None, length: int = LENGTH) -> list:
    """The rounds of a greedy text in which the drafter was asked."""
    out = decoder(costs, draft, policy).generate(PROMPT, max_new_tokens=length)
    assert out.tokens == greedy_text(TARGET, PROMPT, length)
    return [each for each in out.metrics.rounds if each.widths]


def mean(values) -> float:
    values = list(values)
    return sum(values) / len(values)


def test_trees_grow_with_the_price_of_nodes():
    sizes = [mean(each.nodes for each in rounds_of(costs)) for costs in (FREE, TOY_COSTS, STEEP)]
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] > 2 * sizes[2]


@pytest.mark.parametrize("step", [2, 4, 16])
def test_a_tree_fills_a_step_of_the_curve_and_goes_no_further(step):
    steps = curve({1: 1.0, step: 1.0, step + 1: 9.0, 8 * step: 9.0}, later=0.0)
    assert {each.nodes for each in rounds_of(steps)[:-3]} == {step}


def test_levels_follow_the_price_of_drafting():
    free, usual, dear = (mean(len(each.widths) for each in rounds_of(curve(later=price))) for price in (0, 0.2, 9))
    assert free > usual > dear == 1


def test_wide_levels_are_drafted_where_width_is_free():
    narrow = replace(FREE, draft=(DraftCosts(0.02, Costs((1, 2), (0.02, 9.0))),))
    assert {width for each in rounds_of(narrow) for width in each.widths} == {1}
    assert max(width for each in rounds_of(FREE) for width in each.widths) > 1


def test_depth_children_budget_and_the_drafters_levels_are_bounds():
    policy = Auto(depth=2, children=2, budget=5)
    for each in rounds_of(curve(later=0), policy=policy):
        assert each.levels <= 2
        assert each.nodes <= 5
    heads = Decoder(ToyModel(TARGET), ToyDrafter(DRAFT, levels=1), Auto()).with_costs(FREE)
    out = heads.generate(PROMPT, max_new_tokens=LENGTH)
    assert {each.widths for each in out.metrics.rounds} <= {(1,), ()}


def test_flat_trees_are_chains_with_at_most_two_nodes_on_the_first_level():
    """On free passes, which would make any other tree wide, and as deep as the others."""
    flat, wide = (rounds_of(curve(later=0), policy=Auto(flat=flat)) for flat in (True, False))
    assert {width for each in flat for width in each.widths} == {1}
    assert {each.nodes - 1 - each.levels for each in flat} == {1}
    assert max(width for each in wide for width in each.widths) > 1
    assert max(each.levels for each in flat) > 3


def test_a_second_node_is_dropped_from_flat_trees_where_it_does_not_pay():
    assert {each.nodes - 1 - each.levels for each in rounds_of(STEEP, policy=Auto(flat=True))} == {0, 1}


THREE = tree_of([0, 0, 1], [0.6, 0.3, 0.5], widths=(1, 2))


def likely(accepted: float) -> SimpleNamespace:
    return SimpleNamespace(expected_accepted=accepted)


def wrong(prefix) -> list[float]:
    """Certain of a token that the target does not choose."""
    chosen = argmax(TARGET(prefix))
    return [0.0 if token == (chosen + 1) % VOCAB else -math.inf for token in range(VOCAB)]


@pytest.mark.parametrize("costs", [TOY_COSTS, STEEP, DEAR], ids=["cheap", "steep", "dear"])
@pytest.mark.parametrize(
    "options", [{}, {"temperature": 0.01, "seed": 1}, {"temperature": 0.01, "seed": 1, "verifier": Traversal}]
)
def test_a_drafter_that_is_always_wrong_is_hardly_asked(costs, options):
    made = decoder(costs, wrong, verifier=options.get("verifier"))
    options = {name: value for name, value in options.items() if name != "verifier"}
    rounds = made.generate(PROMPT, max_new_tokens=400, **options).metrics.rounds
    assert len(rounds) == 400
    asked = sum(bool(each.widths) for each in rounds)
    spent = sum(costs.round(each.nodes, each.widths) for each in rounds)
    assert 0 < asked < (0.05 if costs is DEAR else 0.2) * len(rounds)  # asking costs a tenth of a round elsewhere
    assert len(rounds) * costs.plain_round / spent > 0.97


def test_a_round_without_a_draft_does_not_ask_the_drafter():
    made = decoder(DEAR, wrong)
    rounds = made.generate(PROMPT, max_new_tokens=100).metrics.rounds
    assert made.drafter.drafts[-1].passes == sum(len(each.widths) for each in rounds)


@pytest.mark.parametrize(("accepted", "longer"), [(0, MUCH_LONGER), (2, LONGER)])
def test_pauses_become_longer_up_to_the_longest_and_faster_where_more_is_lost(accepted, longer):
    costs = curve(first=2.2)  # two accepted tokens are nearly worth it
    state, pauses = AutoState.begin(TextContext(costs)), []
    alone, drafted = RoundOutcome(tree_of([], [], ()), [0]), RoundOutcome(THREE, [0, 1, 3][: 1 + accepted])
    while len(pauses) < 8:
        if state.model.waiting:
            pauses.append(state.model.waiting)
            for _ in range(pauses[-1]):
                state = state.observe(alone)
        state = state.observe(drafted)
    assert pauses == [min(SHORTEST_PAUSE * longer**place, LONGEST_PAUSE) for place in range(8)]


def test_each_model_of_a_drafter_pauses_by_itself():
    two = replace(TOY_COSTS, draft=(DraftCosts(0.0, ONE), DraftCosts(0.5, Costs((1,), (2.0,)))))
    state = AutoState.begin(TextContext(two))
    for _ in range(3):
        state = state.observe(RoundOutcome(replace(THREE, source=1), [0]))
    lookup, model = state.balances
    assert (bool(model.waiting), lookup.waiting, state.is_paused) == (True, 0, False)
    assert Auto().wants_draft(state, likely(3.0))
    assert not Auto().wants_draft(state, SimpleNamespace(expected_accepted=None))


def test_what_lookup_expects_is_doubted_while_its_drafts_pause():
    state = new_states(Auto())[0]
    least = TOY_COSTS.round(2, (1,)) / TOY_COSTS.plain_round - 1
    paused = replace(state, balances=(Balance(waiting=LOOK_EVERY, pause=8),))
    for current, needed in ((state, least), (paused, 2 * least)):
        assert Auto().wants_draft(current, likely(1.01 * needed))
        assert not Auto().wants_draft(current, likely(0.99 * needed))
    assert not Auto().wants_draft(paused.observe(RoundOutcome(tree_of([], [], ()), [0])), likely(9.0))


def test_a_drafter_that_becomes_right_is_taken_up_again():
    def late(prefix) -> list[float]:
        return wrong(prefix) if len(prefix) < 150 else TARGET(prefix)

    rounds = decoder(DEAR, late).generate(PROMPT, max_new_tokens=600).metrics.rounds
    assert mean(each.committed for each in rounds[:100]) == 1
    assert mean(each.committed for each in rounds[-20:]) > 2


def test_trees_are_the_same_whatever_the_clock_says(monkeypatch):
    def grown():
        made = decoder(DEAR, policy=Auto(budget=12))
        texts = [made.generate(prompt, max_new_tokens=LENGTH) for prompt in (PROMPT, PROMPT[::-1])]
        return [(each.nodes, each.widths, each.committed) for text in texts for each in text.metrics.rounds]

    before, now = grown(), [0.0]

    def clock() -> float:
        now[0] += random.expovariate(1.0)
        return now[0]

    monkeypatch.setattr(time, "perf_counter", clock)
    assert grown() == before


def test_the_costs_are_a_part_of_a_drawn_text_and_the_text_tells_them():
    options = {"max_new_tokens": LENGTH, "temperature": 1.0, "seed": 7}
    one, other = (decoder(costs, verifier=Traversal).generate(PROMPT, **options) for costs in (TOY_COSTS, STEEP))
    assert (one.costs, other.costs) == (TOY_COSTS, STEEP)
    assert one.tokens != other.tokens
    assert decoder(one.costs, verifier=Traversal).generate(PROMPT, **options).tokens == one.tokens


def test_coupled_texts_are_those_of_plain_decoding_and_learn_from_each_other():
    made = decoder(DEAR)
    for seed in range(8):
        options = {"max_new_tokens": LENGTH, "temperature": 1.0, "seed": seed}
        assert made.generate(PROMPT, **options).tokens == made.plain().generate(PROMPT, **options).tokens
    verifier = made.new_request(PROMPT, temperature=1.0).verifier
    assert type(verifier) is Coupled
    learned = made.learned.policy_state(Auto(), verifier)
    assert sum(learned.calibrations[0].trials.values()) > 50


def test_auto_has_a_form_for_every_kind_of_verifier():
    policy = Auto(depth=5, children=3, budget=17)
    assert policy.form_for(Proposal.TOP_K, chain=False) is policy
    for proposal in Proposal:
        assert policy.form_for(proposal, chain=True) == AutoSampled(depth=5, children=1, budget=17)
        if proposal is not Proposal.TOP_K:
            assert policy.form_for(proposal, chain=False) == AutoSampled(depth=5, children=3, budget=17)
    assert not AutoSampled(children=1).branches
    assert Auto(flat=True).form_for(Proposal.TOP_K, chain=True) == AutoSampled(children=1)


# What is drawn decides nothing.


@pytest.mark.parametrize("later", [0.0, 0.1, 0.2, 9.0])
def test_drawn_trees_are_drafted_as_deep_as_their_limits(later):
    costs = curve({1: 1.0, 16: 1.3}, later=later)
    made = decoder(costs, policy=Auto(depth=8, children=2, budget=16), verifier=RRSw)
    request = made.new_request(PROMPT, temperature=1.0)
    with torch.inference_mode():
        made.loop.read_prompt(request)
        (tree,) = made.loop.draft([request])
    state = request.drafting.state
    places = tuple(map(tuple, state.calibration(0).places))
    limits = best_limits(places, 2, 8, 16, costs.target, costs.draft_of(0).later, state.rate)
    assert len(tree.widths) == made.drafter.drafts[-1].passes == limits[0]


def test_the_shape_of_a_drawn_tree_is_known_before_the_draws():
    shapes = {
        tuple(tree.parents)
        for seed in range(2)
        for _, tree in trees(toy_pair(7 * seed).draft, AutoSampled(depth=2, children=2, budget=5), RRSw, levels=2)
    }
    assert len(shapes) == 1


class NoOtherForm(Auto):
    """Cuts what was drawn, as a policy that re-ranks does."""

    form_for = TreePolicy.form_for


@pytest.mark.parametrize("verifier", [RRSw, RRS, Traversal])
def test_a_policy_that_cuts_drawn_trees_is_refused(verifier):
    assert "exists in selected form only" in (incompatibility(NoOtherForm(), verifier) or "")
    with pytest.raises(ConfigError, match="is not lossless"):
        Decoder(ToyModel(TARGET), ToyDrafter(DRAFT), NoOtherForm(), verifier)


class CutsDrawn(NoOtherForm):
    """What auto must not do: cut a drawn tree to the nodes that are worth their cost by their own probabilities."""

    reranks: ClassVar[bool] = True

    def form_for(self, proposal, *, chain):
        return self


@pytest.mark.parametrize("verifier", [RRSw, RRS, Traversal])
def test_the_enumeration_finds_a_drawn_tree_that_was_cut_by_what_was_drawn(verifier, monkeypatch):
    policy, forms = CutsDrawn(depth=2, children=2, budget=4), AutoSampled(depth=2, children=2, budget=4)
    pairs = [toy_pair(seed) for seed in (0, 1)]

    def worst(policy: TreePolicy) -> float:
        found = [law(each.target, each.draft, policy, verifier, levels=2, costs=STEEP) for each in pairs]
        return max(each.total_variation for each in found)

    assert worst(policy) < EXACT  # growth leaves drawn trees whole, whatever the policy says
    whole = tree_growth.Growth.trees

    def cut(growth: tree_growth.Growth) -> list[DraftTree]:
        sized = zip(whole(growth), growth._states, strict=True)
        return [tree.best(policy.size(tree.scores, state)) for tree, state in sized]

    with monkeypatch.context() as patched:
        patched.setattr(tree_growth.Growth, "trees", cut)
        assert worst(policy) > 1e-3
    assert worst(forms) < EXACT


@pytest.mark.parametrize("verifier", [PointMass, RRSw, Traversal, Block])
@pytest.mark.parametrize("place", [{"earlier": 3, "rounds": 2}, {"earlier": 12}], ids=str)
def test_texts_that_pause_have_the_targets_law(verifier, place):
    """Drafting costs three passes, so that it pauses after the first round and is tried again in the eleventh."""
    tables, costs = toy_pair(8), curve(first=3.0)
    policy = Auto(depth=1, children=2, budget=4)
    found = law(tables.target, tables.draft, policy, verifier, levels=1, costs=costs, **place)
    assert found.total_variation < EXACT


# What a state counts.


def test_a_round_counts_its_tokens_and_its_cost_by_the_curve():
    (state,) = new_states(Auto())
    after = state.observe(RoundOutcome(THREE, [0, 1, 3]))
    cost = TOY_COSTS.round(4, (1, 2))
    assert (after.tokens, after.cost) == pytest.approx((3, cost))
    assert after.model.surplus == pytest.approx(3 - cost / TOY_COSTS.plain_round)
    assert sum(after.calibrations[0].trials.values()) == 3
    later = after.observe(RoundOutcome(THREE, [0]))
    assert 1 < later.tokens < 4
    assert state.rate == pytest.approx(1 / TOY_COSTS.plain_round)
    assert after.rate > later.rate > state.rate


def test_what_drafting_has_gained_is_soon_lost_again():
    """However long drafting went well, the drafter pauses once it has fallen behind by a few tokens."""
    (state,) = new_states(Auto())
    for _ in range(50):
        state = state.observe(RoundOutcome(THREE, [0, 1, 3]))
    assert state.model.surplus == LARGEST_GAIN
    loss = TOY_COSTS.round(4, (1, 2)) / TOY_COSTS.plain_round - 1
    rounds = math.ceil((LARGEST_GAIN - LARGEST_LOSS) / loss)
    for _ in range(rounds):
        assert not state.model.waiting
        state = state.observe(RoundOutcome(THREE, [0]))
    assert state.model.waiting


def test_the_rate_is_never_below_plain_decodings():
    (state,) = new_states(Auto())
    for _ in range(50):
        state = state.observe(RoundOutcome(THREE, [0]))
    assert state.rate == 1 / TOY_COSTS.plain_round


def test_rounds_of_plain_decoding_only_pass_the_time():
    (state,) = new_states(Auto())
    alone = RoundOutcome(tree_of([], [], ()), [0])
    assert state.observe(alone) == state
    waiting = replace(state, balances=(Balance(waiting=2),))
    assert not Auto().wants_draft(waiting, None)
    assert waiting.observe(alone).model.waiting == 1
    assert Auto().wants_draft(waiting.observe(alone).observe(alone), None)


def test_each_model_of_a_drafter_has_costs_and_counts_of_its_own():
    two = replace(TOY_COSTS, draft=(DraftCosts(0.0, ONE), DraftCosts(0.5, Costs((1,), (2.0,)))))
    state = AutoState.begin(TextContext(two)).observe(RoundOutcome(replace(THREE, source=1), [0, 1]))
    assert [int(sum(each.trials.values())) for each in state.calibrations] == [0, 3]
    assert state.cost == pytest.approx(two.round(4, (1, 2), source=1))
    assert state.costs.draft_of(1) is two.draft[1]
    assert state.costs.draft_of(5) is two.draft[1]


def test_a_later_text_begins_with_what_was_learned_and_the_costs_of_its_own():
    (state,) = new_states(Auto())
    for _ in range(100):
        state = state.observe(RoundOutcome(THREE, [0, 1]))
    later = AutoState.begin(TextContext(STEEP, learned=state))
    assert later.costs is STEEP
    assert 0 < later.tokens < state.tokens
    assert later.tokens / later.cost == pytest.approx(state.tokens / state.cost)
    assert max(later.calibrations[0].trials.values()) < max(state.calibrations[0].trials.values())


def test_without_costs_there_is_no_state():
    with pytest.raises(ConfigError, match="the policy auto weighs nodes by their costs; give it a cost curve"):
        Auto().init_state(TextContext())


def test_texts_of_a_batch_have_states_of_their_own():
    (fresh,) = new_states(Auto())
    sure = unsure = fresh
    for _ in range(100):
        sure, unsure = (
            state.observe(RoundOutcome(tree_of([0, 1, 2], [prob] * 3, (1, 1, 1)), path))
            for state, prob, path in ((sure, 0.9, [0, 1, 2, 3]), (unsure, 0.4, [0]))
        )

    def grown(*states: AutoState) -> list[list[int]]:
        sessions, count = [ToyDraft([DRAFT], [PROMPT], torch.float64) for _ in states], len(states)
        trees = grow(Auto(budget=12), plain_draft(sessions), [PROMPT[-1]] * count, [6] * count, states=states)
        return [tree.tokens for tree in trees]

    apart = [grown(state)[0] for state in (sure, fresh, unsure)]
    assert grown(sure, fresh, unsure) == apart
    assert len(set(map(tuple, apart))) == 3


def test_greedy_and_sampled_texts_learn_apart():
    made = decoder()
    made.generate(PROMPT, max_new_tokens=LENGTH)
    greedy, sampled = (made.new_request(PROMPT, temperature=temperature).verifier for temperature in (0.0, 1.0))
    assert type(greedy) is Greedy
    assert made.learned.policy_state(Auto(), greedy) is not None
    assert made.learned.policy_state(Auto(), sampled) is None
