"""What decoders of one target and one drafter share, and how measured costs are mended by the rounds of texts."""

from dataclasses import replace

import pytest

from drafttree import Decoder
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.core.errors import ConfigError
from drafttree.engine.drafting import measure
from drafttree.engine.drafting.measure import FEWEST, MeasuredCosts
from drafttree.engine.drafting.prices import KeptCosts, Prices
from drafttree.engine.metrics import TextRound
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.policies import Auto, Chain, DynaTree
from drafttree.verifiers import RRS, Block, Coupled, Greedy, PointMass, Traversal
from helpers.timed import FakeClock, TimedDrafter, TimedModel
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, LENGTH, PROMPT, TARGET
from testing.toy import ToyDrafter, ToyModel

pytestmark = pytest.mark.measured_costs
GREEDY = True, 0
"""The kind of drafts of greedy texts by a drafter of one model."""
SLOW_TREES = CostCurve(
    target=Costs((1, 4, 16, 64), (1.0, 1.5, 4.0, 9.0)),
    draft=(DraftCosts(0.2, Costs((1, 8), (0.2, 0.3))),),
    overhead=0.1,
    plain_overhead=0.05,
)


def decoder(policy=None, verifier=None) -> Decoder:
    return toy_decoder(ToyModel(TARGET), ToyDrafter(DRAFT), policy or Auto(), verifier)


def generate(made: Decoder, temperature: float = 0.0):
    return made.generate(PROMPT, max_new_tokens=LENGTH, temperature=temperature, seed=1)


def learned(made: Decoder, temperature: float = 0.0):
    request = made.new_request(PROMPT, temperature=temperature)
    return made.learned.controller_of(request)


def test_a_text_begins_with_what_the_last_one_has_learned():
    made = decoder()
    assert learned(made) is None
    generate(made)
    controller = learned(made)
    assert controller.acceptance(GREEDY).judged > 0
    generate(made)
    assert learned(made) is not controller


def test_a_text_that_is_broken_off_is_learned_from_and_one_without_rounds_is_not():
    made = decoder()
    stream = made.stream(PROMPT, max_new_tokens=LENGTH)
    next(stream)
    assert learned(made) is None
    stream.close()
    assert learned(made).acceptance(GREEDY).judged > 0
    before = learned(made)
    made.stream(PROMPT, max_new_tokens=LENGTH).close()
    assert learned(made) is before


def test_policies_and_greedy_texts_learn_apart():
    made = decoder()
    generate(made)
    assert learned(made) is not None
    assert learned(made, 1.0) is None
    assert learned(made.with_policy(Auto(budget=9))) is None
    assert learned(made.with_policy(Auto())) is learned(made)


@pytest.mark.parametrize("verifier", [PointMass, RRS, Traversal, Block])
def test_nothing_is_told_where_drafts_decide_the_draws(verifier):
    made = decoder(verifier=verifier)
    generate(made, 1.0)
    assert learned(made, 1.0) is None


def test_a_policy_that_weighs_nothing_leaves_nothing():
    made = decoder(Chain())
    generate(made)
    assert learned(made) is None


@pytest.mark.parametrize(("verifier", "temperature", "budget"), [(Greedy, 0.0, 1), (Coupled, 1.0, 0)])
def test_a_batch_has_no_controller_of_texts_that_were_written_alone(verifier, temperature, budget):
    """True and 1 are one key of a dict."""
    made = decoder(verifier=verifier)
    generate(made, temperature)
    made.batch_loop(1, budget=budget)
    found = made.learned.controller((made.policy, verifier, budget), lambda: pytest.fail("there is one"))
    assert found.budget == budget
    assert found is not learned(made, temperature)


def test_history_by_prompt_goes_from_text_to_text_and_history_by_round_does_not():
    made = decoder(DynaTree(per_prompt=True))
    for texts in range(3):
        state = made.new_request(PROMPT).drafting.state
        assert len(state.shares) == texts
        generate(made)
    by_round = decoder(DynaTree())
    generate(by_round)
    request = by_round.new_request(PROMPT)
    assert by_round.learned.policy_state(request.task.policy, request.task.verifier) is None


def test_history_by_prompt_begins_anew_where_drafts_decide_the_draws():
    made = decoder(DynaTree(per_prompt=True), Traversal)
    generate(made, 1.0)
    assert made.new_request(PROMPT, temperature=1.0).drafting.state.shares == ()


def test_forms_of_a_decoder_share_it_and_other_drafters_and_targets_do_not():
    made = decoder()
    assert made.with_policy(Chain()).learned is made.with_verifier(Coupled).learned is made.learned
    assert made.with_costs(SLOW_TREES).learned is not made.learned
    assert made.with_costs(SLOW_TREES).costs() is SLOW_TREES
    with pytest.raises(ConfigError, match="costs is dict; give a CostCurve"):
        made.with_costs(SLOW_TREES.to_json())
    assert made.with_drafter(ToyDrafter(DRAFT)).learned.given is None
    assert made.with_target(ToyModel(TARGET)).learned.given is None


def test_given_costs_are_those_of_batches_without_a_drafter_too():
    made = toy_decoder(ToyModel(TARGET), None, Chain(), None).with_costs(SLOW_TREES)
    made.batch_loop(1)
    prices = made.learned.controller((made.policy, None, None), lambda: pytest.fail("there is one")).prices
    assert prices.frozen
    assert prices.measured is SLOW_TREES


# Mending.


def rounds_of(curve: CostCurve, count: int = 16, pace: float = 1.0) -> list[TextRound]:
    """Rounds that cost what a curve says: a quarter of one node, the others of four on two levels."""
    made = []
    for number in range(count):
        nodes, widths = (4, (1, 2)) if number % 4 else (1, ())
        target = curve.target.at(nodes)
        drafting = curve.draft[0].first + curve.draft[0].later.at(2) if widths else 0.0
        spent = pace * curve.round(nodes, widths)
        made.append(
            TextRound(1, 0, nodes, len(widths), len(widths), pace * drafting, pace * target, spent, widths=widths)
        )
    return made


SHAPES = ((1, ()), (4, (1, 2)), (8, (1, 4, 4)))
"""Nodes of rounds and the widths of their levels."""


@pytest.fixture
def costs(monkeypatch) -> MeasuredCosts:
    monkeypatch.setattr(measure, "measure_costs", lambda *_: KeptCosts(TOY_COSTS, 1.5))
    return MeasuredCosts(ToyModel(TARGET), ToyDrafter(DRAFT), lambda *_: iter([]), greedy=True)


def ratios(curve: CostCurve) -> list[float]:
    """What rounds cost over plain ones, which is all that decides."""
    return [curve.round(*shape) / curve.plain_round for shape in SHAPES]


@pytest.mark.parametrize("pace", [1.0, 0.3, 5.0])
def test_a_machine_that_is_slower_as_a_whole_changes_nothing_that_decides(costs, pace):
    costs.watch(rounds_of(TOY_COSTS, 64, pace))
    assert ratios(costs.curve) == pytest.approx(ratios(TOY_COSTS), rel=0.02)


def test_few_rounds_change_nothing(costs):
    costs.watch(rounds_of(SLOW_TREES, FEWEST))  # the first does not count
    assert costs.curve is TOY_COSTS
    costs.watch(rounds_of(SLOW_TREES, 2))
    assert costs.curve is not TOY_COSTS


def test_a_mended_curve_agrees_with_the_rounds_in_all_that_decides(costs):
    dear = replace(TOY_COSTS, draft=(DraftCosts(0.4, Costs((1, 4), (0.2, 0.24))),))
    costs.watch(rounds_of(dear, 64))
    for shape in ((4, (1,)), (4, (1, 2)), (4, (1, 4, 4))):
        wanted = dear.round(*shape) / dear.plain_round
        assert costs.curve.round(*shape) / costs.curve.plain_round == pytest.approx(wanted, rel=0.1)


def test_small_differences_are_mended_too(costs):
    """A twentieth that plain decoding is cheaper than was measured is what drafting may lose."""
    cheap = replace(
        TOY_COSTS,
        target=Costs.of({1: 0.9, **dict(zip(TOY_COSTS.target.sizes[1:], TOY_COSTS.target.costs[1:], strict=True))}),
    )
    for _ in range(8):
        costs.watch(rounds_of(cheap, 64))
    found, wanted = (curve.round(4, (1, 2)) / curve.plain_round for curve in (costs.curve, cheap))
    assert found == pytest.approx(wanted, rel=0.03)


def test_a_correction_is_told_once(costs, caplog):
    caplog.set_level("INFO", "drafttree")
    for factor in (2.0, 8.0, 0.5):
        dear = replace(TOY_COSTS, draft=(DraftCosts(0.1 * factor, Costs((1, 4), (0.05 * factor, 0.06 * factor))),))
        costs.watch(rounds_of(dear, 64))
    assert len([each for each in caplog.records if "the measured costs were wrong" in each.message]) == 1


def test_costs_of_lone_and_of_batched_rounds_are_learned_apart():
    costs = Prices(TOY_COSTS)
    for each in rounds_of(TOY_COSTS, 64):
        costs.observe(8, each.nodes, 3 * each.target_seconds, each.drafting_seconds, 0.0, [])
        costs.observe(1, each.nodes, each.target_seconds, each.drafting_seconds, 0.0, [])
    assert costs.curve().target.at(4) == pytest.approx(TOY_COSTS.target.at(4))
    assert costs.target(8, 4) == pytest.approx(3 * TOY_COSTS.target.at(4))


@pytest.fixture
def clock(monkeypatch) -> FakeClock:
    return FakeClock(monkeypatch)


def test_measured_costs_are_mended_between_texts_and_given_ones_are_not(clock, monkeypatch):
    monkeypatch.setattr(measure, "measure_costs", lambda *_: KeptCosts(TOY_COSTS, 1.5))
    drafter = TimedDrafter(DRAFT, clock, SLOW_TREES)
    made = Decoder(TimedModel(TARGET, clock, SLOW_TREES), drafter, Auto(budget=12))
    first = made.generate(PROMPT, max_new_tokens=384)
    assert first.costs is TOY_COSTS
    later = made.generate(PROMPT, max_new_tokens=8).costs
    assert later not in (TOY_COSTS, None)
    assert made.costs() not in (TOY_COSTS, later)  # that text has mended them further
    assert made.costs(greedy=False) is TOY_COSTS
    assert later.draft[0].first / later.target.at(6) > 2 * TOY_COSTS.draft[0].first / TOY_COSTS.target.at(6)
    given = made.with_costs(TOY_COSTS)
    for _ in range(2):
        assert given.generate(PROMPT, max_new_tokens=384).costs is TOY_COSTS
    assert given.costs() is given.costs(greedy=False) is TOY_COSTS
