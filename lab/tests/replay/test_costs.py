"""What passes cost where counts decide."""

import math
from dataclasses import replace

import pytest

from drafttree.core.cost_curve import Costs
from drafttree.errors import ConfigError
from drafttree_lab.replay.costs import CostSource, PassCosts, draw_published_costs
from drafttree_lab.replay.paper_files import read_paper
from lab_helpers.replay_cells import counted, keep_times, measured, plain


def test_costs_are_named_or_given():
    assert CostSource.parse("published") == CostSource("published")
    assert CostSource.parse("measured") == CostSource("measured")
    given = CostSource.parse("c=0.08, v=1.2").given
    assert given.draft == 0.08
    assert [given.target.at(nodes) for nodes in (1, 60)] == [1.2, 1.2]


@pytest.mark.parametrize("text", ["", "c=0.1", "v=1,c=0.1", "c=-1,v=1", "mine"])
def test_other_costs_are_refused(text):
    with pytest.raises(ConfigError, match=r"--cost is .*; give \"published\", \"measured\" or such as"):
        CostSource.parse(text)


def test_a_text_costs_its_passes():
    # two rounds over 4 nodes, halfway between those that are known, with 3 draft passes each
    costs = PassCosts(0.1, Costs((1, 7), (1.0, 2.0)))
    assert costs.total(counted([3, 0])) == pytest.approx(2 * (1.5 + 0.3))
    assert costs.fraction("tokens_per_second", counted([3, 0])) == (5, pytest.approx(3.6))
    assert costs.fraction("tpot", counted([3, 0])) == (pytest.approx(3.6), 5)


def test_drawn_costs_are_those_that_the_rows_of_dynatree_allow():
    model = read_paper("dynatree-v2").models["Pythia-2.8B"]
    draws = draw_published_costs(model, "Pythia")
    assert min(*draws.draft, *draws.round) >= 0
    # its two rows say what 8 and 5 draft passes cost with the rest of a round: 4.640 and 3.619, of which 7 and 9 % are
    # open by the deviation of eight texts
    for depth, cost, error in ((8, 4.640, 0.316), (5, 3.619, 0.341)):
        costs = 1 + depth * draws.draft + draws.round
        assert costs.mean() == pytest.approx(cost, abs=0.15)
        assert costs.std() == pytest.approx(error, rel=0.35)
    # a text costs what its passes do by each draw
    assert draws.total(counted([3, 0])) == pytest.approx(2 + 6 * draws.draft + 2 * draws.round)
    assert set(draw_published_costs(model, None).total(plain(5))) == {5.0}
    assert draw_published_costs(read_paper("talon").models["Vicuna-13B"], "EAGLE-3") is None


def test_the_errors_of_dynatrees_rows_are_those_it_prints_of_them_and_of_plain_decoding():
    model = read_paper("dynatree-v2").models["Pythia-2.8B"]
    (speeds,) = (
        each for each in read_paper("dynatree-v2").results["1"].published if each.metric == "tokens_per_second"
    )
    for column, row in enumerate(model.rounds):  # tau / R is a ratio of both speeds
        parts = [speeds.errors[name][column] / speeds.rows[name][column] for name in ("Linear Spec", "AR")]
        assert row.error / row.cost == pytest.approx(math.hypot(*parts) / math.sqrt(model.samples), rel=0.01)
    # h = v + c depth - cost of the shallow row, with c a third of the difference of both
    deep, shallow = (row.error for row in model.rounds)
    assert read_paper("dynatree-v1").models["Pythia-2.8B"].round_error == pytest.approx(
        math.hypot(8 / 3 * shallow, 5 / 3 * deep), abs=0.005
    )


def test_measured_costs_are_those_of_the_turns(experiment):
    texts = [{"AR": plain(5), "chain": counted([3]), "tree": counted([3])}] * 2
    found = measured(experiment, {"a": texts, "b": texts}, costs=CostSource.parse("measured"))
    block = experiment.blocks[0]
    assert found.pass_costs(block, "tree") is None
    keep_times(found, {"AR": 1.0, "chain": 1.0, "tree": 1.0})
    costs = found.pass_costs(block, "tree")
    assert (costs.draft, costs.target.at(60)) == (pytest.approx(0.1), pytest.approx(1.0))


def test_given_costs_are_not_plain_decodings(experiment):
    known = replace(experiment, costs={"AR": PassCosts(0.0, Costs((1,), (1.0,)))})
    found = measured(known, {"a": [], "b": []}, costs=CostSource.parse("c=0.2,v=1.5"))
    assert found.pass_costs(known.blocks[0], "AR").target.at(1) == 1.0
    assert found.pass_costs(known.blocks[0], "tree@3").draft == 0.2
