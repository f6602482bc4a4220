"""The runs of results: which papers are found, and the blocks that axes, sets and sizes make."""

import pytest

from drafttree.errors import ConfigError
from drafttree.policies import Chain, Fixed, Talon
from drafttree.verifiers import Traversal
from drafttree_lab.replay import plan as planning
from drafttree_lab.replay.inputs import check_model, find_results
from drafttree_lab.replay.paper import Paper
from drafttree_lab.replay.plan import Sizes, plan

METHODS = {
    "AR": {},
    "tree": {"role": "small", "policy": "talon:budget={axis}"},
    "chain": {"role": "small", "policy": "chain:depth=3", "verifier": "traversal"},
    "other": {"role": "large", "policy": "chain"},
}
TABLE = {"title": "t", "line": 1, "methods": ["tree", "chain"], "sets": ["a", "b"], "metrics": ["tau"]}
BUDGET = {"name": "N", "values": [8, 16, 24, 32, 40]}
HUGE = {"draft_pass": {"small": 0.05}, "target_pass": {1: 1.0, 60: 1.5}, "source": "s", "line": 2}
LENGTH = {"name": "T", "values": [50, 100, 200], "varies": "max_new_tokens"}


@pytest.fixture
def planned(monkeypatch):
    """The plan of a table with these changes, with a drafter for one of two roles."""

    def make(sizes=Sizes(max_new_tokens=100), **changes):  # noqa: B008
        paper = {
            "title": "t",
            "source": "s",
            "models": {"big": {"draft_pass": {"small": 0.1}, "source": "s", "line": 1}, "huge": {**HUGE}},
            "roles": {"small": {"paper": "s"}, "large": {"paper": "l"}},
            "sets": {"a": {"file": "a"}, "b": {"file": "b"}},
            "methods": METHODS,
            "results": {"1": TABLE | {"axis": BUDGET} | changes},
        }
        monkeypatch.setattr(planning, "read_paper", lambda name: Paper.model_validate(paper))
        return plan("toy", "1", {"small": "their/draft"}, {"large": "no drafter replaces l"}, sizes)

    return make


def test_results_are_found_by_paper_and_name_each_once():
    assert find_results(["talon/fig7", "talon/1", "talon/1"]) == [("talon", "fig7"), ("talon", "1")]
    assert ("traversal", "fig3a") in find_results(["all"])
    assert set(find_results(["talon"])) < set(find_results(["all"]))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("talom/1", "unknown paper 'talom'; did you mean 'talon'"),
        ("talon/fig77", "unknown table or figure of talon 'fig77'; did you mean 'fig7'"),
        ("talon/", "unknown table or figure of talon ''"),
    ],
)
def test_an_unknown_name_suggests_the_nearest(name, said):
    with pytest.raises(ConfigError, match=said.replace("/", ".")):
        find_results([name])


def test_an_axis_of_policies_has_a_way_for_every_value_beside_the_others(planned):
    first, second = planned().blocks
    assert [first.setting.set, second.setting.set] == ["a", "b"]
    assert first.value is None
    assert list(first.ways) == ["AR", *(f"tree@{value}" for value in BUDGET["values"]), "chain"]
    assert first.ways["tree@24"].policy == Talon(budget=24)
    assert first.ways["AR"].drafter is None
    assert first.ways["chain"].drafter == "their/draft"


def test_specifications_of_a_value_of_the_axis_are_taken(planned, monkeypatch):
    monkeypatch.setitem(METHODS, "tree", {"role": "small", "policies": {"8": "fixed:depth=2,breadth=2"}})
    ways = planned().blocks[0].ways
    assert ways["tree@8"].policy == Fixed(depth=2, breadth=2)
    assert ways["tree@16"].policy == Chain()


def test_an_axis_of_settings_has_a_block_for_every_value(planned):
    axis = {"name": "T", "values": [0.5, 1.0], "varies": "temperature"}
    blocks = planned(axis=axis, methods=["chain"]).blocks
    assert [(each.value, each.setting.temperature, each.setting.set) for each in blocks] == [
        (value, value, name) for value in (0.5, 1.0) for name in "ab"
    ]


def test_a_second_axis_is_run_with_every_value_of_the_first(planned):
    found = planned(second_axis=LENGTH, sets=["a"])
    assert [each.setting.max_new_tokens for each in found.blocks] == [50, 100]
    assert all(len(each.ways) == 2 + len(BUDGET["values"]) for each in found.blocks)


def test_lengths_beyond_the_longest_text_are_told(planned):
    found = planned(axis=LENGTH, methods=["chain"])
    assert {each.value for each in found.blocks} == {50, 100}
    assert found.missing == {"200 tokens": "longer than --max-new-tokens 100"}


def test_synthetic_rows_are_the_value_of_a_block_and_no_setting(planned):
    axis = {"name": "rows", "grid": {"vocab": [32, 64], "alpha": [0.7]}, "varies": "rows"}
    blocks = planned(kind="expansion", axis=axis, methods=["chain"], sets=[]).blocks
    assert [(each.value, each.setting.set) for each in blocks] == [
        ("vocab=32,alpha=0.7", ""),
        ("vocab=64,alpha=0.7", ""),
    ]


@pytest.mark.parametrize(("points", "values"), [(1, [40]), (2, [8, 40]), (3, [8, 24, 40]), (9, BUDGET["values"])])
def test_sweeps_are_thinned_evenly_from_end_to_end(planned, points, values):
    ways = planned(Sizes(points=points)).blocks[0].ways
    assert [name for name in ways if "@" in name] == [f"tree@{value}" for value in values]


def test_greedy_texts_take_the_verifier_that_keeps_them(planned):
    cold, warm = planned(temperatures=[0.0, 1.0], sets=["a"]).blocks
    assert cold.ways["chain"].verifier is None
    assert warm.ways["chain"].verifier is Traversal


def test_methods_without_a_drafter_are_missing_and_costs_are_the_first_models(planned):
    found = planned(methods=["chain", "other"])
    assert found.missing == {"other": "no drafter replaces l"}
    assert {name: costs.draft for name, costs in found.costs.items()} == {"AR": 0.0, "chain": 0.1}
    assert all(list(each.ways) == ["AR", "chain"] for each in found.blocks)


@pytest.mark.parametrize("changes", [{"unavailable": "a schematic"}, {"methods": ["other"]}])
def test_what_cannot_run_has_no_blocks(planned, changes):
    assert planned(**changes).blocks == []


def test_prompts_are_cut_to_the_papers_length_but_for_chats_and_options(planned):
    def lengths(**sizes):
        return {each.setting.prompt_tokens for each in planned(Sizes(**sizes), prompt_tokens=200).blocks}

    assert (lengths(), lengths(prompt_tokens=30), lengths(chat=True)) == ({200}, {30}, {None})


def test_costs_and_numbers_are_those_of_the_model_that_is_named(planned):
    found = planned(Sizes(model="huge", max_new_tokens=100), methods=["chain"])
    assert found.model == "huge"
    assert found.costs["chain"].draft == 0.05
    assert found.costs["AR"].target.at(60) == 1.5
    assert planned(Sizes(model="of another paper", max_new_tokens=100)).model == "big"


def test_a_model_of_no_paper_is_refused():
    check_model(["talon", "traversal"], "Llama2-7B")
    with pytest.raises(ConfigError, match="unknown model 'Qwen3-9B'; did you mean 'Qwen3-8B'"):
        check_model(["talon"], "Qwen3-9B")


def test_a_method_may_be_transformers_or_have_a_window(planned, monkeypatch):
    monkeypatch.setitem(METHODS, "other", {"role": "small", "assisted": True})
    monkeypatch.setitem(METHODS, "chain", {"role": "small", "policy": "chain", "lossy_window": 1020})
    ways = planned(methods=["chain", "other"]).blocks[0].ways
    assert [way.spec for way in ways.values()] == [
        "none",
        "their/draft|chain, lossy_window=1020",
        "their/draft|transformers assisted",
    ]
