"""The reliability curve: its figures by hand, and that it notes what the policy thought before it learned."""

import math

import pytest
import torch

import drafttree
from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts
from drafttree.errors import ConfigError
from drafttree_lab.experiment.calibration import JudgedNode, RecordingAuto, ReliabilityCurve, bench_reliability

CURVE = CostCurve(Costs.of({1: 1.0, 8: 1.1, 64: 2.0}), (DraftCosts(0.1, Costs.of({1: 0.1, 8: 0.1})),), 0.1, 0.1)
PROMPT = "The old man looked at the sea"


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(dtype="float32")


def test_the_figures_by_hand():
    judged = [JudgedNode(0.25, 0.5, True), JudgedNode(0.28, 0.7, True), JudgedNode(1.0, 0.9, False)]
    curve = ReliabilityCurve.of("lookup", 0.0, judged)
    assert [(each.low, each.high, each.nodes, each.accepted) for each in curve.bins] == [
        (0.2, pytest.approx(0.3), 2, 1.0),
        (0.9, 1.0, 1, 0.0),
    ]
    assert (curve.bins[0].drafted, curve.bins[0].calibrated) == (pytest.approx(0.265), pytest.approx(0.6))
    assert curve.error_before == pytest.approx((0.75 + 0.72 + 1.0) / 3)
    assert curve.error_after == pytest.approx((0.5 + 0.3 + 0.9) / 3)


def test_no_node_at_all_is_no_error():
    assert ReliabilityCurve.of("lookup", 0.0, []).error_before == 0


def test_nodes_are_noted_as_the_policy_saw_them(decoder):
    """The children of the first root, which are always judged, are those of a tree that is proposed apart."""
    policy = RecordingAuto()
    engine = decoder.with_costs(CURVE).with_policy(policy)
    first, second = (engine.new_request(PROMPT, temperature=0.0, max_new_tokens=16) for _ in range(2))
    with torch.inference_mode():
        engine.loop.read_prompt(first)
        (tree,) = engine.loop.trees.draft([first]).trees
    engine.step(second)
    children = tree.children[0]
    accepted = second.tokens[second.prompt_length]
    assert [(node.drafted, node.calibrated, node.accepted) for node in policy.judged[: len(children)]] == [
        (
            pytest.approx(math.exp(tree.path_logprobs[child])),
            pytest.approx(math.exp(tree.scores[child])),
            tree.tokens[child] == accepted,
        )
        for child in children
    ]
    assert children
    assert all(node.drafted != node.calibrated for node in policy.judged)


def test_a_curve_for_every_drafter_and_temperature(decoder):
    seen = []
    ids = decoder.new_request(PROMPT).tokens
    result = bench_reliability(decoder, {"model": decoder.drafter}, [ids], max_new_tokens=8, progress=seen.append)
    assert [(curve.drafter, curve.temperature) for curve in result.curves] == [("model", 0.0), ("model", 1.0)]
    assert seen == ["model, 0.0", "model, 1.0"]
    assert result.summary()["curves"][0]["nodes"] == sum(each.nodes for each in result.curves[0].bins)


@pytest.mark.parametrize("lacking", ["drafter", "prompt", "temperature"])
def test_nothing_to_measure_is_said(decoder, lacking):
    given = {"drafters": {"model": decoder.drafter}, "prompts": [[1, 2]], "temperatures": [0.0]}
    given |= {f"{lacking}s": {} if lacking == "drafter" else []}
    with pytest.raises(ConfigError, match=f"there is no {lacking} to measure"):
        bench_reliability(decoder, **given)
