"""What a paper's file may say, and what is refused."""

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import ValidationError

from drafttree.errors import ConfigError
from drafttree_lab.replay.paper import Axis, Paper, PaperMethod, Published, Result, read_paper

SHOWN = {"title": "a table", "line": 1, "methods": ["AR", "tree"], "sets": ["chat"], "metrics": ["tau"]}
BLOCK = {"line": 2, "metric": "tau", "model": "large", "columns": ["chat"], "rows": {"tree": [3.0]}}
AHEAD = {"id": "a", "text": "ahead", "line": 3, "metric": "tau", "left": "tree", "right": "AR", "sign": ">"}


def paper(**changes) -> dict:
    """The file of a paper with one table."""
    methods = {"AR": {}, "tree": {"role": "small", "policy": "talon"}}
    roles, sets = {"small": {"paper": "a small model"}}, {"chat": {"file": "prompts/mt_bench"}}
    results = {"1": SHOWN | {"published": [BLOCK], "claims": [AHEAD]}}
    models = {"large": {"draft_pass": {"small": 0.1}, "source": "its table 1", "line": 2}}
    parts = {"models": models, "roles": roles, "methods": methods, "sets": sets, "results": results}
    return {"title": "t", "source": "s"} | parts | changes


def test_a_small_file_is_read():
    read = Paper.model_validate(paper())
    assert read.results["1"].claims[0].kind == "comparison"
    assert read.results["1"].published[0].rows == {"tree": [3.0]}


def test_an_unknown_paper_is_refused_with_the_nearest_name():
    with pytest.raises(ConfigError, match="talon"):
        read_paper("talom")


def test_a_policy_is_that_of_its_set_or_of_the_value_of_the_axis():
    method = PaperMethod(policy="talon:budget={axis}", policies={"books": "chain:depth=5", "16": "talon"})
    assert method.policy_at("chat", 60) == "talon:budget=60"
    assert method.policy_at("chat", 16) == "talon"
    assert method.policy_at("books", 60) == "chain:depth=5"


def test_a_grid_is_all_combinations_with_the_last_parameter_fastest():
    axis = Axis.model_validate({"name": "D and B", "grid": {"depth": [4, 5], "threshold": [0.01, 0.1]}})
    assert axis.values == [
        "depth=4,threshold=0.01",
        "depth=4,threshold=0.1",
        "depth=5,threshold=0.01",
        "depth=5,threshold=0.1",
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"methods": ["AR", "tree", "bush"]}, "'bush' is none of AR, tree"),
        ({"sets": ["code"]}, "'code' is none of chat"),
        ({"published": [BLOCK | {"rows": {"bush": [3.0]}}]}, "'bush' is none of AR, tree"),
        ({"published": [BLOCK | {"columns": ["code"]}]}, "'code' is none of chat, average, untold"),
        ({"published": [BLOCK | {"rows": {"tree": [3.0, 4.0]}}]}, "has 2 numbers for 1 columns"),
        ({"published": [BLOCK | {"errors": {"AR": [0.1]}}]}, "'AR' is none of tree"),
        ({"claims": [AHEAD | {"left": "bush"}]}, "'bush' is none of AR, AR, tree"),
        ({"claims": [AHEAD | {"left": "tree@60"}]}, "'60' is none of chat"),
        ({"claims": [AHEAD | {"kind": "guess"}]}, "guess"),
        ({"depth": 3}, "Extra inputs are not permitted"),
    ],
)
def test_a_name_that_is_not_in_the_file_is_refused(change, message):
    with pytest.raises(ValidationError, match=message):
        Paper.model_validate(paper(results={"1": SHOWN | change}))


def test_a_trend_needs_an_axis():
    trend = {"kind": "trend", "id": "a", "text": "rises", "line": 3, "metric": "tau", "method": "tree", "sign": ">"}
    with pytest.raises(ValidationError, match="'a' is a trend, but there is no axis"):
        Result.model_validate(SHOWN | {"claims": [trend]})


def test_a_claim_may_name_a_set_or_a_value_of_the_axis():
    claims = [AHEAD | {"left": "tree@chat"}, AHEAD | {"id": "b", "left": "tree@60", "right": "tree@0.5"}]
    Result.model_validate(SHOWN | {"axis": {"name": "N", "values": [0.5, 60]}, "claims": claims})


def test_plain_decoding_is_always_among_the_methods():
    with pytest.raises(ValidationError, match="'AR' is none of tree"):
        Paper.model_validate(paper(methods={"tree": {"role": "small"}}, results={}))


def test_a_role_that_is_not_in_the_file_is_refused():
    with pytest.raises(ValidationError, match="'small' is none of large"):
        Paper.model_validate(paper(roles={"large": {"paper": "a large model"}}))


def test_numbers_behind_a_plus_minus_stand_in_the_places_of_the_rows():
    assert Published.model_validate(BLOCK | {"errors": {"tree": [0.2]}}).errors == {"tree": [0.2]}


def test_the_example_of_the_documentation_is_a_paper():
    text = (Path(__file__).parents[3] / "docs" / "replay.md").read_text()
    example = re.search(r"```toml\n(.*?)```", text, re.DOTALL)
    assert example
    read = Paper.model_validate(tomllib.loads(example[1]))
    assert read.methods["Widest"].policy_at("MT-Bench", 4) == "fixed:depth=3,breadth=4"
