"""`drafttree bench auto` and `bench calibration`: what they print, and mistakes in one line."""

import json

import pytest

from drafttree_lab.experiment.auto import GRID
from testing.command_line import complaint, run

CURVE = {
    "target": {"1": 1.0, "8": 1.0, "64": 1.0},
    "draft": {"first": 0.1, "later": {"1": 0.1}},
    "overhead": 0.1,
    "plain_overhead": 0.05,
}
COMMON = ["--drafters", "lookup", "--sets", "books", "--limit", 1, "--max-new-tokens", 6, "--temperatures", "0"]


@pytest.fixture
def curve(tmp_path):
    path = tmp_path / "curve.json"
    path.write_text(json.dumps(CURVE))
    return path


@pytest.mark.usefixtures("quick")
def test_costs_of_another_machine_are_counted_beside_our_own(curve, tmp_path):
    options = [*COMMON, "--sizes", "own", "--costs", curve, "--out", tmp_path / "out"]
    shown = run("bench", "auto", *options).stdout
    for part in ("own, counted", "curve.json, counted", "trees of auto", "best single setting", "(aim 105%)"):
        assert part in shown
    assert "timed" not in shown
    summary = json.loads(run("bench", "auto", *options, "--json").stdout)
    assert [row["place"] for row in summary["rows"]] == ["own", "curve.json"]
    assert summary["costs"]["curve.json"]["lookup"]["target"] == CURVE["target"]
    assert len(summary["rows"][0]["counted"]) == 1 + len(GRID)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--sets", "book"], "unknown prompt set 'book'"),
        (["--sets", "summaries"], "no such prompts ship; name a folder with --data"),
        (["--sizes", "300"], "unknown shape '300'"),
        (["--drafters", "none"], "'none' is not a drafter"),
        (["--temperatures", "0,x"], "--temperatures is '0,x'; give numbers"),
        (["--target", "elsewhere"], "no drafters for 'elsewhere' by default"),
    ],
)
def test_mistakes_are_said_in_one_line(capsys, options, said):
    assert said in complaint(capsys, "bench", "auto", *options)


def test_bad_files_are_named(capsys, curve, tmp_path):
    found = complaint(capsys, "bench", "auto", *COMMON, "--data", tmp_path)
    assert f"{tmp_path}: no books/test.jsonl" in found
    curve.write_text(json.dumps(CURVE | {"target": {"1": 1.0, "64": 2.0}}))
    found = complaint(capsys, "bench", "auto", *COMMON, "--costs", curve)
    assert f"{curve}: a cost curve's 'target' has a gap between 1 and 64" in found


@pytest.mark.usefixtures("quick")
def test_no_prompt_long_enough_is_said(capsys, tmp_path):
    (tmp_path / "books").mkdir()
    (tmp_path / "books/test.jsonl").write_text('{"prompt": "a"}')
    found = complaint(capsys, "bench", "calibration", *COMMON, "--data", tmp_path)
    assert "books: no prompt is long enough" in found
