"""`drafttree bench`: tables and one line of JSON."""

import json

import pytest

from helpers.command_line import run


@pytest.mark.usefixtures("quick")
def test_the_benchmarks_print_tables(prompts):
    common = ["--policies", "chain", "--prompts", prompts, "--max-new-tokens", 6, "--repeats", 1, "--limit", 1]
    result = run("bench", "policies", *common)
    assert json.loads(result.stdout.splitlines()[-1])["prompts"] == 1
    assert "texts loop" in result.stdout
    assert "growth" in run("bench", "overhead", *common).stdout


def test_the_price_of_exact_text(prompts):
    options = ["--policies", "chain", "--prompts", prompts, "--max-new-tokens", 6, "--repeats", 1, "--limit", 1]
    result = run("bench", "exact-text", *options, "--dtype", "bfloat16")
    rows = json.loads(result.stdout.splitlines()[-1])["rows"]
    assert [row["policy"] for row in rows] == ["plain", "chain"]
    assert [row["same_text"][1] for row in rows] == [1, 1]


@pytest.mark.usefixtures("quick")
def test_the_lookup_benchmark_prints_two_tables(tmp_path):
    path = tmp_path / "sums.jsonl"
    path.write_text(json.dumps({"prompt": "one two three one two", "reference": " three one two"}) + "\n")
    options = ["--prompts", path, "--policies", "chain", "--max-new-tokens", 4, "--repeats", 1, "--limit", 1]
    result = run("bench", "lookup", *options)
    summary = json.loads(result.stdout.splitlines()[-1])
    assert {(row["prompts"], row["way"]) for row in summary["rows"]} == {
        (name, way) for name in ("code edits", "sums") for way in ("target", "replay")
    }
    assert "sums, replay: suffix, chain" in result.stdout
    assert "8192" in result.stdout


def test_the_drafter_benchmark_prints_a_table_a_file_and_the_costs(tmp_path):
    path = tmp_path / "sums.txt"
    path.write_text("one two three one two\nfour five six four\n")
    options = ["--prompts", path, "--policies", "chain", "--max-new-tokens", 4, "--limit", 1]
    result = run("bench", "drafters", *options, "--drafters", "lookup;suffix")
    summary = json.loads(result.stdout.splitlines()[-1])
    assert [(each["drafter"], each["row"]["prompts"]) for each in summary["rows"]] == [
        ("none", 1),
        ("lookup", 1),
        ("suffix", 1),
    ]
    assert "sums: 1 prompts" in result.stdout
    assert "passes a round" in result.stdout


def test_files_of_one_name_are_told_apart(tmp_path):
    paths = [tmp_path / "a" / "sums.txt", tmp_path / "b" / "sums.txt", tmp_path / "sums.test.txt"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("one two three one two\n")
    files = [part for path in paths for part in ("--prompts", path)]
    result = run("bench", "drafters", *files, "--policies", "chain", "--max-new-tokens", 2, "--drafters", "lookup")
    groups = {each["row"]["group"] for each in json.loads(result.stdout.splitlines()[-1])["rows"]}
    assert groups == {str(paths[0]), str(paths[1]), "sums.test"}
