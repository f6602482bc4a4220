"""`drafttree bench arrival`: a table, JSON, and mistakes in one line."""

import json
import math

import pytest

from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS
from testing.command_line import complaint, run

SMALL = ["--arriving", 40, "--running", 2, "--repeats", 2]


@pytest.fixture(autouse=True)
def known(monkeypatch):
    """Costs that need not be measured."""
    monkeypatch.setattr(Decoder, "costs", lambda self, **_: TOY_COSTS)


@pytest.mark.usefixtures("quick")
def test_the_stretch_is_the_mean_of_the_arrivals(prompts, tmp_path):
    options = ["bench", "arrival", *SMALL, "--prompts", prompts, "--out", tmp_path / "out", "--json"]
    done = run(*options)
    assert done.exit_code == 0, done.exception
    found = json.loads(done.stdout)
    stretches = [each["beside"] / each["before"] for each in found["arrivals"]]
    assert found["stretch"]["mean"] == pytest.approx(math.sqrt(stretches[0] * stretches[1]))
    assert all(each["rounds"] >= 1 and each["longest"] <= each["reading"] for each in found["arrivals"])
    assert run(*options).stdout == done.stdout


@pytest.mark.usefixtures("quick")
def test_the_table_says_what_was_aimed_at(prompts):
    shown = run("bench", "arrival", *SMALL, "--prompts", prompts, "--drafter", "none").stdout
    assert "a prompt of 40 tokens arrives" in shown
    assert "drafter: none" in shown
    assert "(aim: at most 2)" in shown


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--arriving", "9999999"], "a prompt of 9999999 tokens does not fit into the model's context of"),
        (["--inflate", "7"], "7"),
    ],
)
def test_mistakes_are_one_line(capsys, options, said):
    assert said in complaint(capsys, "bench", "arrival", *options)
