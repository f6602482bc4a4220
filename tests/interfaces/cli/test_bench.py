"""`drafttree bench`: tables for a person, or one JSON document."""

import json

import pytest

from helpers.command_line import run


@pytest.mark.usefixtures("quick")
def test_the_benchmarks_print_tables(prompts):
    common = ["--policies", "chain", "--prompts", prompts, "--max-new-tokens", 6, "--repeats", 1, "--limit", 1]
    assert json.loads(run("bench", "policies", *common, "--json").stdout)["prompts"] == 1
    assert "texts loop" in run("bench", "policies", *common).stdout
    assert "growth" in run("bench", "overhead", *common).stdout
    (row,) = json.loads(run("bench", "overhead", *common, "--json").stdout)["rows"]
    assert row["h"] == pytest.approx(row["outside"] / row["plain_pass"])


def test_the_price_of_exact_text(prompts):
    options = ["--policies", "chain", "--prompts", prompts, "--max-new-tokens", 6, "--repeats", 1, "--limit", 1]
    result = run("bench", "exact-text", *options, "--dtype", "bfloat16", "--json")
    rows = json.loads(result.stdout)["rows"]
    assert [row["policy"] for row in rows] == ["plain", "chain"]
    assert [row["same_text"][1] for row in rows] == [1, 1]


@pytest.mark.usefixtures("quick")
def test_the_lookup_benchmark_prints_two_tables(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text(json.dumps({"prompt": "one two three one two", "reference": " three one two"}) + "\n")
    options = ["--prompts", path, "--policies", "chain", "--max-new-tokens", 4, "--repeats", 1, "--limit", 1]
    summary = json.loads(run("bench", "lookup", *options, "--json").stdout)
    assert {(row["prompts"], row["way"]) for row in summary["rows"]} == {
        (name, way) for name in ("code edits", "sums") for way in ("target", "replay")
    }
    shown = run("bench", "lookup", *options).stdout
    assert "sums, replay: suffix, chain" in shown
    assert "8192" in shown


def test_the_drafter_benchmark_prints_a_table_a_file_and_the_costs(tmp_path):
    path = tmp_path / "sums.txt"
    path.write_text("one two three one two\nfour five six four\n")
    options = ["--prompts", path, "--policies", "chain", "--max-new-tokens", 4, "--limit", 1]
    options += ["--drafters", "lookup;suffix"]
    summary = json.loads(run("bench", "drafters", *options, "--json").stdout)
    assert [(each["drafter"], each["row"]["prompts"]) for each in summary["rows"]] == [
        ("none", 1),
        ("lookup", 1),
        ("suffix", 1),
    ]
    shown = run("bench", "drafters", *options).stdout
    assert "sums: 1 prompts" in shown
    assert "passes a round" in shown


def test_files_of_one_name_are_told_apart(tmp_path):
    paths = [tmp_path / "a" / "sums.txt", tmp_path / "b" / "sums.txt", tmp_path / "sums.test.txt"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("one two three one two\n")
    files = [part for path in paths for part in ("--prompts", path)]
    options = ["--policies", "chain", "--max-new-tokens", 2, "--drafters", "lookup", "--json"]
    groups = {each["row"]["group"] for each in json.loads(run("bench", "drafters", *files, *options).stdout)["rows"]}
    assert groups == {str(paths[0]), str(paths[1]), "sums.test"}
