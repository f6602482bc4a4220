"""Auto's trees and pauses under curves that are known, and that no clock and no drawn node decides them."""

import math
import random
import time
from dataclasses import replace

import pytest
import torch

from drafttree import Decoder, DraftTree
from drafttree.core import Proposal
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.engine.compatibility import incompatibility
from drafttree.engine.drafting import tree_growth
from drafttree.engine.drafting.controller import Controller
from drafttree.errors import ConfigError
from drafttree.evaluation.pair_trials import EXACT, toy_pair
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.exactness import law, trees
from drafttree.policies import Auto, TreePolicy
from drafttree.verifiers import RRS, Block, Coupled, PointMass, RRSw, Traversal
from testing.small_trees import DRAFT, LENGTH, PROMPT, TARGET, VOCAB
from testing.toy import ToyDrafter, ToyModel, argmax, greedy_text

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
    assert {each.nodes - 1 - each.levels for each in rounds_of(STEEP, policy=Auto(flat=True))} >= {0, 1}


def wrong(prefix) -> list[float]:
    """Certain of a token that the target does not choose."""
    chosen = argmax(TARGET(prefix))
    return [0.0 if token == (chosen + 1) % VOCAB else -math.inf for token in range(VOCAB)]


@pytest.mark.few(4)
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
    request = made.new_request(PROMPT, temperature=1.0)
    assert type(request.task.verifier) is Coupled
    assert request.drafting.controller.acceptance((False, 0)).judged > 50


def test_auto_has_a_form_for_every_kind_of_verifier():
    policy = Auto(depth=5, children=3, budget=17)
    for proposal in Proposal:
        assert policy.form_for(proposal, chain=False) is policy
        assert policy.form_for(proposal, chain=True) == Auto(depth=5, children=1, budget=17)
    assert not Auto(children=1).branches
    flat = Auto(flat=True)
    assert flat.form_for(Proposal.TOP_K, chain=False) is flat
    assert flat.form_for(Proposal.WITH_REPLACEMENT, chain=False) == Auto(children=1)


# What is drawn decides nothing.


@pytest.mark.parametrize("later", [0.0, 0.1, 0.2, 9.0])
def test_drawn_trees_are_drafted_as_deep_as_their_limits(later, monkeypatch):
    limits, own = [], Controller.limits
    monkeypatch.setattr(Controller, "limits", lambda *args: limits.append(own(*args)) or limits[-1])
    made = decoder(curve({1: 1.0, 16: 1.3}, later=later), policy=Auto(depth=8, children=2, budget=16), verifier=RRSw)
    request = made.new_request(PROMPT, temperature=1.0)
    with torch.inference_mode():
        made.loop.read_prompt(request)
        (tree,) = made.loop.trees.draft([request]).trees
    assert len(tree.widths) == made.drafter.drafts[-1].passes == limits[0].levels


def test_the_shape_of_a_drawn_tree_is_known_before_the_draws():
    shapes = {
        tuple(tree.parents)
        for seed in range(2)
        for _, tree in trees(toy_pair(7 * seed).draft, Auto(depth=2, children=2, budget=5), RRSw, levels=2)
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


@pytest.mark.few(1)
@pytest.mark.parametrize("verifier", [RRSw, RRS, Traversal])
def test_the_enumeration_finds_a_drawn_tree_that_was_cut_by_what_was_drawn(verifier, monkeypatch):
    """By one node, the least likely by the drafter."""
    policy, pairs = Auto(depth=2, children=2, budget=4), [toy_pair(seed) for seed in (0, 1)]

    def worst() -> float:
        found = [law(each.target, each.draft, policy, verifier, levels=2) for each in pairs]
        return max(each.total_variation for each in found)

    assert worst() < EXACT
    whole = tree_growth.Growth.trees

    def cut(growth: tree_growth.Growth) -> list[DraftTree]:
        return [tree.best(max(tree.size - 1, 2), [math.inf, *tree.path_logprobs[1:]]) for tree in whole(growth)]

    monkeypatch.setattr(tree_growth.Growth, "trees", cut)
    assert worst() > 1e-3


@pytest.mark.parametrize("verifier", [PointMass, RRSw, Traversal, Block])
@pytest.mark.parametrize("place", [{"earlier": 3, "rounds": 2}, {"earlier": 12}], ids=str)
def test_texts_that_pause_have_the_targets_law(verifier, place):
    """Drafting costs three passes, so that it pauses after the first round and is tried again in the eleventh."""
    tables, costs = toy_pair(8), curve(first=3.0)
    policy = Auto(depth=1, children=2, budget=4)
    found = law(tables.target, tables.draft, policy, verifier, levels=1, costs=costs, **place)
    assert found.total_variation < EXACT
