"""Prompt, seed and costs repeat a text that is written alone by a verifier that draws, whatever was written before.

What texts teach is wide here: the head's watch, acceptance, pauses, costs that rounds mend, states of policies and the
automata of grammars. An equal text has equal random numbers, so any of it would also bias the second one.
"""

import pytest

from drafttree import Decoder, Engine
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.drafters import MixedDrafter, PromptLookupDrafter
from drafttree.engine.compatibility import incompatibility, is_text_of_seed
from drafttree.engine.drafting import acceptance_watch, controller, measure
from drafttree.engine.drafting.prices import KeptCosts
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.policies import Auto, Chain, DynaTree
from drafttree.verifiers import VERIFIERS, RRSw, Traversal
from helpers.timed import FakeClock, TimedDrafter, TimedModel
from testing.small_trees import DRAFT, PROMPT, TARGET, VOCAB
from testing.toy import ToyDrafter, ToyModel

DRAWING = [verifier for verifier in VERIFIERS.values() if not is_text_of_seed(verifier)]
DEAR_NODES = CostCurve(
    target=Costs((1, 2), (1.0, 2.4)),
    draft=(DraftCosts(0.14, Costs((1, 8), (0.2, 0.3))),),
    overhead=0.1,
    plain_overhead=0.05,
)
"""Drafts are cheap to ask for and never worth their rows, so texts pause most of the time."""
ASKED = {"max_new_tokens": 60, "temperature": 1.0, "seed": 7}


class ToyHead(ToyDrafter):
    """A toy drafter that says it reads the target's states, as heads do."""

    def __init__(self, law) -> None:
        super().__init__(law)
        self.hidden_layers = (0,)


def decoder(verifier, policy=None, drafter=None, costs: CostCurve = DEAR_NODES) -> Decoder:
    made = Decoder(ToyModel(TARGET), drafter or ToyHead(DRAFT), policy or Auto(), verifier)
    return made.with_costs(costs)


def mixed() -> MixedDrafter:
    return MixedDrafter(PromptLookupDrafter(VOCAB), ToyHead(DRAFT))


def write_others(made: Decoder) -> None:
    """Texts that teach whatever can be taught: by other policies, verifiers and prompts, whole and broken off."""
    by_chains, coupled = made.with_policy(Chain(depth=2)).with_verifier(None), made.with_verifier(None)
    by_chains.generate([5, 2, 6], **ASKED)
    by_chains.generate([[7, 2], [6, 5, 3]], **ASKED)
    coupled.generate(PROMPT, **ASKED)
    made.generate([2, 2], **ASKED)
    stream = made.stream([4, 4, 1], **ASKED)
    next(stream)
    stream.close()
    with Engine(made, max_batch=2) as engine:
        engine.submit(PROMPT, **ASKED).result()


@pytest.mark.parametrize(
    ("verifier", "mixes"), [(RRSw, True), (Traversal, True), *((verifier, False) for verifier in DRAWING)]
)
def test_other_texts_do_not_change_a_text(verifier, mixes):
    made = decoder(verifier, drafter=mixed() if mixes else None)
    first = made.generate(PROMPT, **ASKED)
    rounds = [turn.widths for turn in first.metrics.rounds]
    assert rounds.count(()) > len(rounds) / 3  # it pauses, so what decides pauses matters
    write_others(made)
    assert not made.learned.head_watch.is_open
    again = made.generate(PROMPT, **ASKED)
    assert [turn.widths for turn in again.metrics.rounds] == rounds
    assert again.tokens == first.tokens


@pytest.mark.parametrize("verifier", DRAWING)
def test_equal_calls_are_equal_at_any_strictness_of_the_watch(verifier, monkeypatch):
    """With small constants a few rounds of the first text end the watch, so that it would show in many texts."""
    monkeypatch.setattr(acceptance_watch, "FEWEST", 2)
    monkeypatch.setattr(acceptance_watch, "MOST", 3)
    monkeypatch.setattr(controller, "LOST", 0.5)
    monkeypatch.setattr(controller, "SHORTEST", 1)
    monkeypatch.setattr(controller, "WATCHED", 0.9)
    for seed in range(6):
        made, options = decoder(verifier), {"max_new_tokens": 24, "temperature": 1.0, "seed": seed}
        texts = [made.generate(PROMPT, **options).tokens for _ in range(3)]
        assert texts[1:] == texts[:1] * 2
        assert not made.learned.head_watch.is_open


@pytest.mark.parametrize("policy", [DynaTree(), DynaTree(per_prompt=True), Auto(budget=9), Chain(depth=3)])
def test_no_policy_takes_over_what_it_learned(policy):
    verifier = next(each for each in (Traversal, RRSw) if not incompatibility(policy, each))
    made = decoder(verifier, policy)
    first = made.generate(PROMPT, **ASKED).tokens
    write_others(made)
    assert made.generate(PROMPT, **ASKED).tokens == first


@pytest.mark.measured_costs
def test_costs_that_other_texts_have_mended_do_not_change_a_text(monkeypatch):
    clock = FakeClock(monkeypatch)
    monkeypatch.setattr(measure, "measure_costs", lambda *_: KeptCosts(TOY_COSTS, 1.5))
    draft = TARGET.blurred(1.0)
    made = Decoder(TimedModel(TARGET, clock, DEAR_NODES), TimedDrafter(draft, clock, DEAR_NODES), Auto(), Traversal)
    first = made.generate(PROMPT, **ASKED)
    made.with_verifier(None).generate(PROMPT, **ASKED)
    assert made.costs(greedy=False) is not TOY_COSTS
    again = made.generate(PROMPT, **ASKED)
    assert again.costs is first.costs is TOY_COSTS
    assert again.tokens == first.tokens


def test_texts_of_batches_have_numbers_of_their_own_at_any_costs():
    """The decoders share the watch on heads, so a text of one teaches the others about numbers they have yet to use."""
    made = decoder(Traversal)
    seeds = [each.learned.unshared_seed(7) for each in (made, made.with_costs(TOY_COSTS), made.with_policy(Chain()))]
    assert len(set(seeds)) == 3
