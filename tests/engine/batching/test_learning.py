"""What an engine learns from its rounds: their costs, whether drafting pays, and what it says of that."""

from itertools import pairwise

import pytest

from drafttree.engine.batching import Engine
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.drafting.prices import Prices
from drafttree.engine.metrics import EngineMetrics
from drafttree.policies import Fixed, Talon
from testing.costs import toy_decoder
from testing.small_trees import DRAFT, TARGET, VOCAB
from testing.toy import ToyDrafter, ToyModel, argmax

PROMPTS = [[1, 2, 3], [4, 5], [6]]


def engine() -> Engine:
    return Engine(toy_decoder(ToyModel(TARGET), ToyDrafter(DRAFT), Talon(width=4, budget=12)))


def write(served: Engine) -> None:
    with served:
        for handle in [served.submit(prompt, max_new_tokens=40) for prompt in PROMPTS]:
            handle.result(60)


@pytest.fixture
def finished(monkeypatch) -> list[int]:
    """How many texts have ended by every round."""
    found, record = [], EngineMetrics.record
    monkeypatch.setattr(
        EngineMetrics, "record", lambda metrics, turn: found.append(metrics.finished) or record(metrics, turn)
    )
    return found


def test_the_costs_learn_from_every_round(monkeypatch):
    seen, observe = [], Prices.observe

    def watched(prices, batch, rows, target, draft, *others):
        seen.append((batch, rows, target, draft))
        observe(prices, batch, rows, target, draft, *others)

    monkeypatch.setattr(Prices, "observe", watched)
    write(served := engine())
    rounds = served.metrics.rounds
    assert seen == [(turn.batch, turn.rows, turn.target_seconds, turn.draft_seconds) for turn in rounds]


def test_what_else_a_round_costs_is_learned_where_texts_are_only_written(finished, monkeypatch):
    """Drafters read prompts beside the passes, and what texts leave is kept: nothing of a further round of writing."""
    seen, observe = [], Prices.observe

    def watched(prices, *given):
        seen.append(given[4] is not None)
        observe(prices, *given)

    monkeypatch.setattr(Prices, "observe", watched)
    write(served := engine())
    ends = [after > before for before, after in pairwise([0, *finished])]
    assert seen == [not turn.prefill_rows and not end for turn, end in zip(served.metrics.rounds, ends, strict=True)]
    assert {*seen} == {True, False}


def test_drafting_is_judged_by_every_round_in_which_nothing_was_read(finished, monkeypatch):
    seen, learn = [], Controller.learn

    def watched(controller, batch, rows, committed, groups, expected):
        seen.append((batch, committed, bool(groups)))
        learn(controller, batch, rows, committed, groups, expected)

    monkeypatch.setattr(Controller, "learn", watched)
    write(served := engine())
    ends = [after > before for before, after in pairwise([0, *finished])]
    assert any(ends)
    judged = [
        turn
        for turn, end in zip(served.metrics.rounds, ends, strict=True)
        if turn.batch and not turn.prefill_rows and (turn.draft_passes or not end)
    ]
    assert seen == [(turn.batch, turn.committed, turn.draft_passes > 0) for turn in judged]
    assert any(drafted for *_, drafted in seen)


def test_what_is_accepted_is_counted_by_its_rank():
    """The drafter always thinks the target's choice the second best, so only second children are ever accepted."""

    def second_best(prefix) -> list[float]:
        best = argmax(TARGET(prefix))
        return [{best: 1.0, (best + 1) % VOCAB: 2.0}.get(token, -9.0) for token in range(VOCAB)]

    decoder = toy_decoder(ToyModel(TARGET), ToyDrafter(second_best), Fixed(depth=3, breadth=2))
    write(Engine(decoder, budget=6))
    controller = decoder.learned.controller((decoder.policy, decoder.verifier, 6), pytest.fail)
    (first, _) = controller.acceptance((True, 0)).drawn_rates(1, 2)
    assert first < 0.1
    assert controller.acceptance((True, 0)).children(0)[1] > 0.6


def test_the_gain_is_told_as_predicted_and_as_measured():
    write(served := engine())
    assert served.metrics.predicted_gain is not None
    assert served.metrics.measured_gain is not None
    assert served.metrics.drafting_off == served.metrics.rounds[-1].reason


def test_an_engine_without_a_drafter_says_why_nothing_is_drafted():
    write(served := Engine(toy_decoder(ToyModel(TARGET), ToyDrafter(DRAFT), Talon()).plain()))
    assert served.metrics.drafting_off == "there is no drafter"
    assert served.metrics.predicted_gain is None
