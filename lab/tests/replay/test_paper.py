"""What a paper's file may say, and what is refused."""

import re

import pytest
from pydantic import ValidationError

from drafttree.errors import ConfigError, InputError
from drafttree_lab.replay.paper import Axis, Paper, PaperMethod, Published
from drafttree_lab.replay.paper_files import paper_names, read_paper, use_papers
from drafttree_lab.replay.plan import check_paper

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
        ({"methods": ["AR", "tree", "bush"]}, "'bush' is not one of AR, tree"),
        ({"sets": ["code"]}, "'code' is not one of chat"),
        ({"published": [BLOCK | {"rows": {"bush": [3.0]}}]}, "'bush' is not one of AR, tree"),
        ({"published": [BLOCK | {"columns": ["code"]}]}, "'code' is not one of chat, average, untold"),
        ({"published": [BLOCK | {"rows": {"tree": [3.0, 4.0]}}]}, "has 2 numbers for 1 columns"),
        ({"published": [BLOCK | {"errors": {"AR": [0.1]}}]}, "'AR' is not one of tree"),
        ({"claims": [AHEAD | {"left": "bush"}]}, "'bush' is not one of AR, tree"),
        ({"claims": [AHEAD | {"left": "tree@60"}]}, "'60' is not one of chat"),
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
        Paper.model_validate(paper(results={"1": SHOWN | {"claims": [trend]}}))


def test_a_claim_may_name_a_set_or_a_value_of_the_axis():
    claims = [AHEAD | {"left": "tree@chat"}, AHEAD | {"id": "b", "left": "tree@60", "right": "tree@0.5"}]
    axis = {"name": "N", "values": [0.5, 60]}
    Paper.model_validate(paper(results={"1": SHOWN | {"axis": axis, "claims": claims}}))


def test_plain_decoding_is_always_among_the_methods():
    with pytest.raises(ValidationError, match=r"plain decoding, AR, is missing among the methods; add AR = \{\}"):
        Paper.model_validate(paper(methods={"tree": {"role": "small"}}, results={}))


def test_a_reference_is_a_row_of_a_table_and_its_tokens_per_round_are_printed_or_given():
    def read(**changes):
        tables = {"1": SHOWN | {"published": [BLOCK]}, "2": SHOWN, "3": SHOWN | {"axis": {"name": "N", "values": [5]}}}
        model = paper()["models"]["large"] | {"references": [{"method": "tree", "result": "1"} | changes]}
        Paper.model_validate(paper(models={"large": model}, results=tables))

    read()
    read(result="2", tau=2.0)
    with pytest.raises(ValidationError, match="'2' prints no tokens per round of tree on large for chat; give them as"):
        read(result="2")
    with pytest.raises(ValidationError, match="'3' is varied or cannot be run; a drafter is fitted to a table"):
        read(result="3", tau=2.0)


@pytest.mark.parametrize(("varies", "value"), [("temperature", -0.5), ("max_new_tokens", 0), ("prompt_tokens", 2.5)])
def test_an_axis_has_values_that_can_be_set(varies, value):
    with pytest.raises(ValidationError, match=f"{value} is not a "):
        Axis.model_validate({"name": "T", "values": [1, value], "varies": varies})


def test_a_role_that_is_not_in_the_file_is_refused():
    with pytest.raises(ValidationError, match="'small' is not one of large"):
        Paper.model_validate(paper(roles={"large": {"paper": "a large model"}}))


def test_numbers_behind_a_plus_minus_stand_in_the_places_of_the_rows():
    assert Published.model_validate(BLOCK | {"errors": {"tree": [0.2]}}).errors == {"tree": [0.2]}


OWN = """\
title = "Mine"
source = '''a note
of two lines'''
[models]
large = { draft_pass = { small = 0.1 }, line = 1, source = "a guess" }
[roles.small]
paper = "a small model"
[sets.chat]
file = "prompts/mt_bench"
[methods.AR]
[methods."my tree"]
role = "small"
policy = "talon:budget=20"
verifier = "point-mass"
[results.1]
title = "a table"
line = 1
methods = ["my tree"]
sets = ["chat"]
metrics = [
    "tau",
    "delta",
]
temperatures = [0.0, 1.0]
[[results.1.published]]
line = 2
metric = "tau"
model = "large"
columns = ["chat"]
[results.1.published.rows]
"my tree" = [3.0]
[[results.1.published]]
line = 3
metric = "delta"
model = "large"
columns = ["chat"]
[results.1.published.rows]
"my tree" = [5.0]
[[results.1.claims]]
id = "more"
text = "more than one"
line = 4
kind = "bound"
metric = "tau"
method = "my tree"
sign = ">"
bound = 1.0
"""
"""A paper from outside, the lines of which are counted in the tests."""
CLAIM = OWN[OWN.index("[[results.1.claims") :]
BOUND = CLAIM[CLAIM.index("kind") :]
ROW = "{ nodes = 5, cost = 2.0, error = 0.1 }"


@pytest.fixture
def outside(tmp_path):
    """Reads a paper from outside whose text is changed, and what it names."""

    def read(old="", new=""):
        (tmp_path / "mine.toml").write_text(OWN.replace(old, new) if old else OWN)
        use_papers([tmp_path / "mine.toml"])
        check_paper("mine", {"small": "embedded-drft"})

    yield read
    use_papers([])


def test_a_paper_from_outside_stands_beside_the_others(outside):
    outside()
    assert read_paper("mine").results["1"].claims[0].id == "more"
    assert paper_names()[-1] == "mine"
    use_papers([])
    assert "mine" not in paper_names()


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("bound = 1.0", "bnd = 1.0", "line 47: results.1.claims.bnd: unknown key 'bnd'; did you mean 'bound'?"),
        ("bound = 1.0", "tau = 1.0", "line 47: results.1.claims.tau: no key 'tau' here"),
        (
            '"bound"',
            '"guess"',
            "line 43: results.1.claims.kind: 'guess' is not one of comparison, bound, order, trend, not",
        ),
        ("bound = 1.0", "", "line 39: results.1.claims: 'bound' is missing"),
        ('"delta",\n', '"delat",\n', "line 20: results.1.metrics: 'delat' is wrong: it should be 'speedup', "),
        ("= [5.0]", "= [5.0, 6.0]", "line 32: results.1.published: the row of my tree has 2 numbers for 1 columns"),
        ('method = "my tree"', 'method = "bush"', "line 39: results.1.claims: 'bush' is not one of AR, my tree"),
        ('methods = ["my', 'methods = ["your', "line 18: results.1.methods: 'your tree' is not one of AR, my tree"),
        ('sets = ["chat"]', 'sets = ["chta"]', "line 19: results.1.sets: 'chta' is not one of chat"),
        ("[methods.AR]", "", "methods: plain decoding, AR, is missing among the methods; add AR = {}"),
        ("[0.0, 1.0]", "[-1.0]", "line 24: results.1.temperatures: -1.0 is wrong: it should be greater than or equal"),
        ("bound = 1.0", "bound = 1.0\ntemperature = 2.0", "temperature: 2.0 is not one of 0.0, 1.0"),
        (
            BOUND,
            'kind = "order"\nmetric = "tau"\nmethods = ["my tree"]',
            "line 45: results.1.claims.methods: an order takes two or more",
        ),
        (CLAIM, CLAIM * 2, "line 49: results.1.claims.id: 'more' is the id of an earlier claim, too"),
        (
            '"a small model"',
            '"x"\nstand_in = "embedded-drft"',
            "line 8: roles.small.stand_in: unknown drafter 'embedded-drft'",
        ),
        *[
            ('"a guess"', f'"a guess", {key} = {value}', f"line 5: models.large.{key}{told}")
            for key, value, told in [
                ("samples", "1", ": 1 is wrong: it should be greater than or equal to 2"),
                ("target_pass", "{ 1 = -1.0 }", ".1: -1.0 is wrong: it should be greater than 0"),
                ("target_pass", "{ 5 = 1.0 }", ": the cost of a pass over one token is missing; add 1 = 1.0"),
                ("rounds", f"[{ROW}, {ROW}]", ": two rows of 5 nodes do not tell c from h"),
                ("rounds", "[{ nodes = 5, cost = 0.5, error = 0.01 }]", ": these rows give a negative c or h"),
                ("references", "[{ method = 'AR', result = '1', tau = 2.0 }]", ": 'AR' is not one of my tree"),
                ("references", "[{ method = 'my tree', result = '1', tau = -1 }]", ".tau: -1 is wrong: it should be"),
            ]
        ],
        (
            '"my tree" = [5.0]',
            "bush = [5.0]",
            "line 38: results.1.published.rows.bush: 'bush' is not one of AR, my tree",
        ),
        ("small = 0.1", "smal = 0.1", "line 5: models.large.draft_pass.smal: 'smal' is not one of small"),
        ('role = "small"', 'role = "large"', "line 12: methods.\"my tree\".role: 'large' is not one of small"),
        ("talon:", "talom:", "line 11: methods.\"my tree\": unknown policy 'talom'; did you mean 'talon'?"),
        ("budget=", "bugdet=", "line 11: methods.\"my tree\": unknown parameter of Talon 'bugdet'"),
        ("talon:budget=20", "nowhere.Tree", "line 11: methods.\"my tree\": cannot import policy 'nowhere.Tree'"),
        ("point-mass", "points", "line 11: methods.\"my tree\": unknown verifier 'points'"),
        ('"point-mass"', '"block"', 'line 11: methods."my tree": Block judges chains only'),
        ('title = "Mine"', "", "mine.toml: 'title' is missing"),
        ("line = 2", "line = two", "Invalid value (at line 26, column 8)"),
    ],
)
def test_a_mistake_is_told_with_file_line_and_key(outside, old, new, told):
    with pytest.raises(ConfigError) as error:
        outside(old, new)
    assert re.match(r"\S*mine.toml(, line|:) ", str(error.value))
    assert told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_file_that_is_none_or_has_the_name_of_another_paper_is_refused(outside, tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.toml: cannot be read"):
        use_papers([tmp_path / "nowhere.toml"])
    outside()
    for name in ("talon", "mine"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"{name}.toml").write_text(OWN)
        with pytest.raises(ConfigError, match=f"there is another paper '{name}'; rename the file"):
            use_papers([tmp_path / "mine.toml", tmp_path / name / f"{name}.toml"])
