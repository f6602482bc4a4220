"""Published values beside given cells."""

from dataclasses import replace

import pytest

from drafttree.core.cost_curve import Costs
from drafttree.policies import Chain, Talon
from drafttree_lab.replay.costs import CostSource, PassCosts
from drafttree_lab.replay.paper import Axis, Published
from drafttree_lab.replay.plan import Block, ReplayMethod, Setting
from drafttree_lab.replay.results import summarise
from lab_helpers.replay_cells import counted, measured, plain

AUTOREGRESSIVE, TREE = plain(2), counted([3, 3])


def published(columns, row, **changes):
    return Published(line=1, metric="tau", model="large", columns=columns, rows={"tree": row}, **changes)


def entries(experiment, texts, costs="published", **result):
    """The entries of the tree, by set, temperature, value and metric."""
    own = replace(experiment, result=experiment.result.model_copy(update=result))
    found = summarise(measured(own, texts, costs=CostSource.parse(costs)), end_reason=None, done=1, tasks=1)
    return {
        (each.set, each.temperature, each.value, each.metric): each
        for each in found.entries
        if each.method.startswith("tree")
    }


def values(found):
    return {place: each.published for place, each in found.items() if place[-1] == "tau"}


def texts(experiment):
    return {name: [dict.fromkeys(experiment.blocks[0].ways, TREE) | {"AR": AUTOREGRESSIVE}] for name in "ab"}


def test_values_are_those_of_the_set_and_the_first_model(experiment):
    blocks = [
        published(["b", "a"], [2.0, float("nan")]),
        published(
            ["a", "b"],
            [3.0, 4.0],
        ),
    ]
    found = entries(experiment, texts(experiment), published=blocks)
    assert values(found) == {("a", 0.0, None, "tau"): 3.0, ("b", 0.0, None, "tau"): 2.0}


def test_values_of_another_temperature_or_set_are_not_taken(experiment):
    blocks = [published(["a"], [2.0], temperature=1.0), published([8], [3.0], set="b")]
    axis = Axis(name="N", values=[8])
    found = entries(experiment, texts(experiment), published=blocks, axis=axis)
    assert set(values(found).values()) == {None}


@pytest.mark.parametrize("varies", ["temperature", "max_new_tokens"])
def test_values_of_an_axis_of_settings_are_those_of_the_block(experiment, varies):
    points = [0.5, 1.0] if varies == "temperature" else [50, 100]
    base = Setting("a", 0.0, 24, None)
    blocks = [Block(replace(base, **{varies: point}), point, experiment.blocks[0].ways) for point in points]
    axis = Axis(name="T", values=points, varies=varies)
    told = [published(points, [2.0, 3.0], set="a", temperature=1.0 if varies == "temperature" else 0.0)]
    cells = {f"a@{point}": texts(experiment)["a"] for point in points}
    found = entries(replace(experiment, blocks=blocks), cells, published=told, axis=axis)
    assert {place[2]: value for place, value in values(found).items()} == dict(zip(points, [2.0, 3.0], strict=True))


def test_values_of_an_axis_of_policies_are_those_of_the_way(experiment):
    ways = {"AR": ReplayMethod(None, Chain())} | {
        f"tree@{depth}": ReplayMethod("toy", Chain(depth=depth)) for depth in (2, 3)
    }
    swept = replace(experiment, blocks=[replace(experiment.blocks[0], ways=ways)])
    result = experiment.result.model_copy(
        update={"published": [published([2, 3], [2.5, 3.5], set="a")], "axis": Axis(name="D", values=[2, 3])}
    )
    cells = measured(replace(swept, result=result), {"a": [dict.fromkeys(ways, TREE)]})
    found = summarise(cells, end_reason=None, done=1, tasks=1).entries
    assert {each.method: each.published for each in found if each.metric == "tau"} == {"tree@2": 2.5, "tree@3": 3.5}


def test_r_follows_from_counts_at_published_or_given_costs(experiment):
    # 4 tokens and 3 draft passes per round
    free = Costs((1,), (1.0,))
    known = replace(experiment, costs={"AR": PassCosts(0.0, free), "tree": PassCosts(0.1, free)})
    for costs, law in (("published", 4 / (1 + 0.3)), ("c=0.2,v=1.4", 4 / (1.4 + 0.6)), ("measured", None)):
        found = entries(known, texts(experiment), costs)["a", 0.0, None, "speedup"]
        assert (found.by_law and found.by_law.mean) == (law and pytest.approx(law))


def test_plain_decoding_has_rows_only_where_it_says_something(experiment):
    result = experiment.result.model_copy(update={"metrics": ["tau", "rounds"]})
    cells = measured(replace(experiment, result=result), texts(experiment))
    found = summarise(cells, end_reason="it broke", done=1, tasks=1)
    assert {each.metric for each in found.entries if each.method == "AR"} == {"rounds"}
    assert found.notes == ["it broke"]


def test_where_some_texts_loop_verdicts_without_them_are_added(experiment):
    def both(looping):
        return {"AR": plain(2, looping=looping), "chain": AUTOREGRESSIVE, "tree": TREE}

    for kinds, count in (((True, False), 1), ((False, False), 0), ((True, True), 0)):
        cells = measured(experiment, {name: [both(each) for each in kinds] for name in "ab"})
        found = summarise(cells, end_reason=None, done=1, tasks=1)
        assert len(found.not_looping) == count


def test_a_table_of_gains_over_a_named_method_has_none_over_another(experiment):
    result = experiment.result.model_copy(update={"metrics": ["gain"], "over": {"tree": "chain"}})
    cells = measured(replace(experiment, result=result), texts(experiment))
    found = summarise(cells, end_reason=None, done=1, tasks=1)
    assert {entry.method for entry in found.entries} == {"tree"}


def test_values_are_those_of_the_chosen_target_where_it_has_any(experiment):
    small = published(["a"], [2.0]).model_copy(update={"model": "small"})
    blocks = [published(["a", "b"], [3.0, 4.0]), small]
    found = entries(replace(experiment, model="small"), texts(experiment), published=blocks)
    assert values(found) == {("a", 0.0, None, "tau"): 2.0, ("b", 0.0, None, "tau"): 4.0}
    assert found["a", 0.0, None, "tau"].model == "small"


def test_budgets_that_never_bind_are_told(experiment):
    ways = experiment.blocks[0].ways | {"full": ReplayMethod("toy", Talon(width=2, budget=4))}
    blocks = [replace(each, ways=ways) for each in experiment.blocks]
    cells = measured(replace(experiment, blocks=blocks), {name: [dict.fromkeys(ways, TREE)] for name in "ab"})
    assert summarise(cells, end_reason=None, done=1, tasks=1).reach == {"tree": (4, 10)}


def test_costs_are_told_where_a_speed_is_counted(experiment):
    costs = {name: PassCosts(0.1, Costs((1, 60), (1.0, 1.5))) for name in ("chain", "tree")}
    known = replace(experiment, model="large", costs=costs)
    told = summarise(measured(known, texts(experiment)), end_reason=None, done=1, tasks=1).costs
    assert told == (
        "costs of the paper's large in plain target passes: "
        "c = 0.1 (chain, tree); v(1) = 1, v(60) = 1.5, and beyond it the line through the last two, whose "
        "error is not known"
    )
