"""`drafttree bench`: tables for a person, or one JSON document."""

import json
import re

import pytest

from drafttree import Decoder
from drafttree.engine.chat import render_chat
from drafttree.measure.shapes import SHAPES, Shape
from drafttree.verifiers import Traversal
from drafttree_lab.experiment import memory
from drafttree_lab.experiment.memory import MemoryUse
from testing.command_line import complaint, run
from testing.given_times import give_times


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("command", ["policies", "law", "drafters"])
def test_a_benchmark_prints_no_ratio_of_disturbed_times(prompts, monkeypatch, command):
    give_times(monkeypatch, lambda drafts, rows: 0.005 if drafts else 0.01)
    options = ["--policies", "chain", "--prompts", prompts, "--max-new-tokens", 32, "--repeats", 1, "--limit", 1]
    options += ["--drafters", "lookup"] if command == "drafters" else []
    options += ["--no-peers"] if command == "law" else []
    shown = run("bench", command, *options).stdout
    name = "lookup|chain" if command == "drafters" else "chain"
    line = next(line for line in shown.splitlines() if line.startswith(f"{name}: "))
    assert re.fullmatch(
        rf"{re.escape(name)}: No ratio: other work disturbed the times \(a pass over .+ cost 0\.50 plain passes\); "
        "run it again when the machine is idle.",
        line,
    )
    row = next(line for line in shown.splitlines() if line.startswith(f"{name} "))
    assert row.split()[3:8] == ["-"] * 5
    if command != "policies":
        return  # the rows of the other documents are made alike
    report = json.loads(run("bench", command, *options, "--json").stdout)
    own = next(row for row in report["rows"] if row["method"] == name)
    assert own["doubt"] == line.removeprefix(f"{name}: ")
    assert (own["law"]["measured"], own["predicted"], own["over_plain"]) == (None, None, None)


def test_the_price_of_exact_text(prompts):
    options = ["--policies", "chain", "--prompts", prompts, "--max-new-tokens", 6, "--repeats", 1, "--limit", 1]
    result = run("bench", "exact-text", *options, "--dtype", "bfloat16", "--json")
    rows = json.loads(result.stdout)["rows"]
    assert [row["policy"] for row in rows] == ["plain", "chain"]
    assert [row["same_text"][1] for row in rows] == [1, 1]


def test_methods_are_listed_as_triples(prompts):
    methods = ["--methods", "lookup|chain;suffix|talon:budget=4|coupled", "--methods", "lookup|chain:depth=2"]
    options = ["--prompts", prompts, "--max-new-tokens", 4, "--limit", 1, "--temperature", 1]
    result = run("bench", "drafters", *methods, *options)
    for name in ("plain", "lookup|chain ", "suffix|talon:budget=4|coupled", "lookup|chain:depth=2"):
        assert name in result.stdout


def test_drafters_are_measured_at_the_cost_of_a_larger_target_too(prompts, monkeypatch):
    sizes = Shape(hidden=320, layers=13, intermediate=800, heads=8, key_value_heads=4)
    monkeypatch.setitem(SHAPES, "slightly-larger", sizes)
    options = ["--prompts", prompts, "--policies", "chain", "--max-new-tokens", 4, "--limit", 1, "--dtype", "float32"]
    options += ["--drafters", "embedded-mtp;mixed:embedded-block;lookup", "--json"]
    small, large = (run("bench", "drafters", *options, *more).stdout for more in ([], ["--inflate", "slightly-larger"]))
    accepted = [[row["law"]["tau"] for row in json.loads(shown)["rows"]] for shown in (small, large)]
    assert accepted[0] == accepted[1]


def test_methods_leave_no_room_for_a_cross_product(capsys):
    said = complaint(capsys, "bench", "drafters", "--methods", "lookup|chain", "--policies", "talon")
    assert "leave out --drafters and --policies" in said


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        (["policies", "--temperature", 1], "Eagle with RRSw is not lossless"),
        (["overhead", "--temperature", 1], "Eagle with RRSw is not lossless"),
        (["exact-text", "--temperature", 1], "Eagle with RRSw is not lossless"),
        (["law"], "at temperature 0 use 'greedy'"),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_benches_take_a_verifier_and_refuse_what_is_not_lossless(command, said, prompts, capsys):
    options = ["--prompts", prompts, "--policies", "eagle", "--verifier", "rrsw", "--max-new-tokens", 4, "--limit", 1]
    assert said in complaint(capsys, "bench", *command, *options)


@pytest.mark.usefixtures("quick")
def test_a_bench_decodes_with_the_verifier_that_is_named(prompts, monkeypatch):
    seen = set()
    verify = Traversal.verify
    monkeypatch.setattr(Traversal, "verify", lambda self, *rest: seen.add(type(self)) or verify(self, *rest))
    options = ["--prompts", prompts, "--policies", "chain", "--max-new-tokens", 4, "--limit", 1, "--repeats", 1]
    result = run("bench", "policies", *options, "--verifier", "traversal", "--temperature", 1, "--json")
    assert seen == {Traversal}
    assert [text["way"] for text in json.loads(result.stdout)["texts"]] == ["plain", "chain"]


@pytest.mark.usefixtures("quick")
def test_prompts_are_chosen_cut_and_rendered_by_options(tmp_path, embedded, monkeypatch):
    path = tmp_path / "talks.jsonl"
    lines = [
        {"prompt": "Tell me of the sea and the old man.", "category": "writing"},
        {"prompt": "one two three", "category": "math"},
    ]
    path.write_text("\n".join(map(json.dumps, lines)))
    seen, generate = [], Decoder.generate
    monkeypatch.setattr(Decoder, "generate", lambda self, ids, **rest: seen.append(ids) or generate(self, ids, **rest))
    options = ["--prompts", path, "--policies", "chain", "--max-new-tokens", 2, "--repeats", 1]
    result = run("bench", "policies", *options, "--category", "writ", "--chat", "--prompt-tokens", 3)
    assert result.exit_code == 0
    cut = embedded.tokenizer.decode(embedded.tokenizer(lines[0]["prompt"])["input_ids"][:3])
    expected = render_chat([{"role": "user", "content": cut}], embedded.tokenizer)
    assert seen
    assert all(ids == expected for ids in seen)


def test_a_category_needs_a_file(capsys):
    said = complaint(capsys, "bench", "drafters", "--category", "qa", "--drafters", "lookup")
    assert "--category 'qa' chooses from prompt files; name one with --prompts" in said


@pytest.mark.usefixtures("quick")
def test_the_memory_benchmark_prints_a_line_per_method(prompts, monkeypatch):
    given = []

    def measure(setting, spec):
        given.append(setting)
        return MemoryUse(10_000_000, 30_000_000, 0, 0, 4)

    monkeypatch.setattr(memory, "measure_in_process", measure)
    options = ["--prompts", prompts, "--methods", "lookup|chain", "--max-new-tokens", 4]
    rows = json.loads(run("bench", "memory", *options, "--verifier", "coupled", "--json").stdout)["rows"]
    assert [(row["method"], row["added"]) for row in rows] == [
        ("none", 20_000_000),
        ("lookup|chain|coupled", 20_000_000),
    ]
    assert given[0].options == {"max_new_tokens": 4, "temperature": 0.0, "seed": 0}
    assert len(given[0].prompts) == 2


def test_files_of_one_name_are_told_apart(tmp_path):
    paths = [tmp_path / "a" / "sums.txt", tmp_path / "b" / "sums.txt", tmp_path / "sums.test.txt"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("one two three one two\n")
    files = [part for path in paths for part in ("--prompts", path)]
    options = ["--policies", "chain", "--max-new-tokens", 2, "--drafters", "lookup", "--json"]
    groups = {row["group"] for row in json.loads(run("bench", "drafters", *files, *options).stdout)["rows"]}
    assert groups == {str(paths[0]), str(paths[1]), "sums.test"}
