"""A toy target and drafters whose costs and speeds are given, so that no clock decides a test."""

import pytest

from drafttree import Decoder
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.evaluation.tune import tuning
from drafttree.loading import policy_spec
from helpers.timed_metrics import timed
from testing.toy import Table, ToyDrafter, ToyModel

CURVE = CostCurve(
    target=Costs((1, 8), (1.0, 1.35)),
    draft=(DraftCosts(0.1, Costs((1, 8), (0.1, 0.2))),),
    overhead=0.2,
    plain_overhead=0.1,
)
CHAIN_OF_2 = {"committed": 2, "nodes": 3, "levels": 2, "draft_passes": 2, "draft_seconds": 0.01, "widths": (1, 1)}


@pytest.fixture
def toy():
    """A decoder without a drafter."""
    return Decoder(ToyModel(Table()))


@pytest.fixture
def toy_drafters():
    found = {"good": ToyDrafter(Table()), "bad": ToyDrafter(Table().blurred(9.0))}
    for name, drafter in found.items():
        drafter.name = name
    return found


@pytest.fixture
def speeds(monkeypatch):
    """Seconds of a text by drafter, policy and perhaps draft temperature, and the texts that were written.

    Plain decoding takes 1.0, what is not named 1.5, and a draft temperature that is not named what 1 takes.
    """
    seconds: dict[tuple[str, str] | tuple[str, str, float], float] = {}
    written: list[tuple] = []

    def time_text(decoder, prompt, options):
        if decoder.drafter is None:
            metrics = timed(1.0 + 0.01 * len(prompt))
        else:
            arm = decoder.drafter.name, policy_spec(decoder.policy)
            warm = seconds.get((*arm, decoder.defaults.get("draft_temperature", 1.0)))
            own = seconds.get(arm, 1.5) if warm is None else warm
            metrics = timed(own + 0.01 * len(prompt), **CHAIN_OF_2)
        written.append((decoder, tuple(prompt), options))
        return metrics

    def measure(decoder, *, greedy):
        return tuning.MeasuredCosts(CURVE.to_json(), 0.0)

    monkeypatch.setattr(tuning, "time_text", time_text)
    monkeypatch.setattr(tuning, "measure_costs", measure)
    return seconds, written
