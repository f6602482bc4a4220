"""`drafttree bench expansion`: a table or JSON, and mistakes in one line."""

import json

import pytest

from drafttree_lab.micro import expansion
from testing.command_line import complaint, run

SMALL = ["--vocab", "30", "--alpha", "0.7,5", "--repeats", 2, "--policies", "talon:budget=8;chain"]


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(expansion, "WARM_UP", 1)


def test_the_command_prints_a_table_for_every_exponent_or_json():
    shown = run("bench", "expansion", *SMALL).stdout
    assert "vocabulary 30, alpha 0.7" in shown
    assert "vocabulary 30, alpha 5;" in shown
    summary = json.loads(run("bench", "expansion", *SMALL, "--json").stdout)
    assert [(row["policy"], row["alpha"]) for row in summary["rows"]] == [
        (policy, alpha) for alpha in (0.7, 5.0) for policy in ("talon:budget=8", "chain")
    ]
    assert all(row["per_level"] == row["seconds"] / row["levels"] for row in summary["rows"])


def test_finished_figures_are_taken_from_the_folder(tmp_path):
    options = [*SMALL, "--out", tmp_path / "out", "--json"]
    assert run("bench", "expansion", *options).stdout == run("bench", "expansion", *options).stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--alpha", "0.7,x"], "--alpha is '0.7,x'; give numbers above 0"),
        (["--alpha", "0"], "--alpha is '0'"),
        (["--alpha", "inf"], "--alpha is 'inf'"),
        (["--vocab", "many"], "--vocab is 'many'"),
        (["--policies", "talom"], "did you mean 'talon'"),
    ],
)
def test_mistakes_are_said_in_one_line(capsys, options, said):
    assert said in complaint(capsys, "bench", "expansion", *options)
