"""`drafttree bench methods`: what is run, the figures of its rows, tables for a person and one JSON document."""

import json
import re

import pytest

from drafttree import Decoder
from drafttree.engine.generation import Fidelity, Generation
from drafttree.engine.metrics import Metrics, TextRound
from drafttree.measure import Cell
from drafttree.measure.method import Method
from drafttree.measure.shapes import SHAPES, Shape
from drafttree.text.chat import render_chat
from drafttree.verifiers import Traversal
from drafttree_lab.bench import methods
from drafttree_lab.commands.bench import GONE
from drafttree_lab.peers import programs
from drafttree_lab.speed_rows import EXACT, TIMES, make_rows
from testing import tiny
from testing.command_line import complaint, run
from testing.given_times import give_times


@pytest.mark.usefixtures("quick")
def test_a_benchmark_prints_no_ratio_of_disturbed_times(prompts, monkeypatch):
    give_times(monkeypatch, lambda drafts, rows: 0.005 if drafts else 0.01)
    options = ["--policies", "chain", "--prompts", prompts, "--max-new-tokens", 32, "--repeats", 1, "--limit", 1]
    options += ["--drafters", "lookup"]
    shown = run("bench", "methods", *options).stdout
    line = next(line for line in shown.splitlines() if line.startswith("lookup|chain: "))
    assert re.fullmatch(
        r"lookup\|chain: No speed-up shown: other programs disturbed the times "
        r"\(a pass over .+ cost 0\.50 plain passes\); "
        "run it again when the machine is idle.",
        line,
    )
    own = json.loads(run("bench", "methods", *options, "--json").stdout)["rows"][1]
    assert own["doubt"] == line.removeprefix("lookup|chain: ")
    assert {own[name] for name in TIMES} == {None}


@pytest.mark.slow
def test_the_price_of_exact_text(prompts):
    options = ["--drafter", "embedded-draft", "--policies", "chain", "--prompts", prompts, "--max-new-tokens", 6]
    options += ["--repeats", 1, "--limit", 1, "--exact-text", "--dtype", "bfloat16", "--json"]
    rows = json.loads(run("bench", "methods", *options).stdout)["rows"]
    names = ["plain", "embedded-draft|chain", "plain with exact_text", "embedded-draft|chain with exact_text"]
    assert [row["method"] for row in rows] == names
    assert [row["same text"] for row in rows if row["method"].endswith(EXACT)] == ["1/1", "1/1"]
    assert rows[2]["tokens/s"] > 0


@pytest.mark.parametrize("name", GONE)
def test_what_was_a_bench_of_its_own_says_where_it_is_now(capsys, name):
    said = complaint(capsys, "bench", name, "--inflate", "300m")
    assert f"drafttree bench {name} is part of drafttree bench {GONE[name]}" in said


def test_methods_are_listed_as_triples(prompts):
    methods = ["--methods", "lookup|chain;suffix|talon:budget=4|coupled", "--methods", "lookup|chain:depth=2"]
    options = ["--prompts", prompts, "--max-new-tokens", 4, "--limit", 1, "--temperature", 1]
    result = run("bench", "methods", *methods, *options)
    for name in ("plain", "lookup|chain ", "suffix|talon:budget=4|coupled", "lookup|chain:depth=2"):
        assert name in result.stdout


@pytest.mark.slow
def test_drafters_are_measured_at_the_cost_of_a_larger_target_too(prompts, monkeypatch):
    sizes = Shape(hidden=320, layers=13, intermediate=800, heads=8, key_value_heads=4)
    monkeypatch.setitem(SHAPES, "slightly-larger", sizes)
    options = ["--prompts", prompts, "--policies", "chain", "--max-new-tokens", 4, "--limit", 1, "--dtype", "float32"]
    options += ["--drafters", "embedded-mtp;mixed:embedded-block;lookup", "--json"]
    small, large = (run("bench", "methods", *options, *more).stdout for more in ([], ["--inflate", "slightly-larger"]))
    accepted = [[row["tau"] for row in json.loads(shown)["rows"]] for shown in (small, large)]
    assert accepted[0] == accepted[1]


def test_methods_leave_no_room_for_a_cross_product(capsys):
    said = complaint(capsys, "bench", "methods", "--methods", "lookup|chain", "--policies", "talon")
    assert "leave out --drafters and --policies" in said


@pytest.mark.usefixtures("quick")
def test_what_is_not_lossless_is_refused(prompts, capsys):
    options = ["--prompts", prompts, "--policies", "eagle", "--verifier", "rrsw", "--max-new-tokens", 4, "--limit", 1]
    assert "Eagle with RRSw is not lossless" in complaint(capsys, "bench", "methods", *options, "--temperature", 1)


@pytest.mark.usefixtures("quick")
def test_a_bench_decodes_with_the_verifier_that_is_named(prompts, monkeypatch):
    seen = set()
    verify = Traversal.verify
    monkeypatch.setattr(Traversal, "verify", lambda self, *rest: seen.add(type(self)) or verify(self, *rest))
    options = ["--prompts", prompts, "--policies", "chain", "--max-new-tokens", 4, "--limit", 1, "--repeats", 1]
    result = run("bench", "methods", *options, "--verifier", "traversal", "--temperature", 1, "--json")
    assert seen == {Traversal}
    assert [text["way"] for text in json.loads(result.stdout)["texts"]] == ["plain", "auto|chain"]


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
    result = run("bench", "methods", *options, "--category", "writ", "--chat", "--prompt-tokens", 3)
    assert result.exit_code == 0
    cut = embedded.tokenizer.decode(embedded.tokenizer(lines[0]["prompt"])["input_ids"][:3])
    expected = render_chat([{"role": "user", "content": cut}], embedded.tokenizer)
    assert seen
    assert all(ids == expected for ids in seen)


def test_a_category_needs_a_file(capsys):
    said = complaint(capsys, "bench", "methods", "--category", "qa", "--drafters", "lookup")
    assert "--category 'qa' chooses from prompt files; name one with --prompts" in said


def test_files_of_one_name_are_told_apart(tmp_path):
    paths = [tmp_path / "a" / "sums.txt", tmp_path / "b" / "sums.txt", tmp_path / "sums.test.txt"]
    for path in paths:
        path.parent.mkdir(exist_ok=True)
        path.write_text("one two three one two\n")
    files = [part for path in paths for part in ("--prompts", path)]
    options = ["--policies", "chain", "--max-new-tokens", 2, "--drafters", "lookup", "--json"]
    groups = {row["group"] for row in json.loads(run("bench", "methods", *files, *options).stdout)["rows"]}
    assert groups == {str(paths[0]), str(paths[1]), "sums.test"}


def test_terms_are_medians_over_repeats_and_a_ratio_is_the_quotient_of_the_speeds_beside_it():
    """Of hand-made texts: passes of 10 ms, of 12 for trees, 1 ms of drafts a pass, 2 ms beside in drafted rounds."""

    def cell(way, prompt, repeat, rounds, tokens=()):
        metrics = Metrics()
        for each in rounds:
            metrics.record(each, each.seconds + (not metrics.rounds) * 0.01)
        return Cell(way, "all", prompt, repeat, Generation("", [*tokens], [], "length", metrics, 0, Fidelity(), None))

    def drafted(committed, slower=0.0):
        seconds = 0.012 + 2 * 0.001 + 0.002 + slower
        return TextRound(committed, committed - 1, 5, 2, 2, 0.002, 0.012, seconds, growth_seconds=0.001)

    plain, loop = [TextRound(1, 0, 1, 0, 0, 0.0, 0.01, 0.011)] * 6, [7] * 48
    cells = []
    for repeat in range(3):
        for prompt in range(2):
            cells.append(cell("plain", prompt, repeat, plain, loop if prompt else range(48)))
            cells.append(
                cell("x|chain", prompt, repeat, [drafted(3, 0.004 * repeat), drafted(3, 0.004 * repeat)], loop)
            )
    rows = {(row["group"], row["method"]): row for row in make_rows(cells, {"x|chain": "x|chain"})}
    assert {group for group, _ in rows} == {"all", "looping", "not looping"}
    own = rows["all", "x|chain"]
    law = [3.0, 2.0, 1.2, 0.1, 0.6, 0.1, 3.0 * 1.1 / (1.2 + 0.2 + 0.6)]
    assert [own[name] for name in ("tau", "delta", "v", "c", "h", "h0", "R law")] == pytest.approx(law)
    assert [own[name] for name in ("of nodes", "of levels", "nodes")] == pytest.approx([0.5, 1.0, 5.0])
    seconds = [0.01 + 2 * (0.016 + 0.004 * repeat) for repeat in range(3)]
    assert own["tokens/s"] == pytest.approx(3 * 6 / sum(seconds))
    assert own["R"].mean == pytest.approx(own["tokens/s"] / rows["all", "plain"]["tokens/s"])
    assert own["R"].low < own["R"].mean < own["R"].high
    assert str(own["over its chain"]) == "1.00 [1.00, 1.00]"
    assert [own[name] for name in ("round", "outside", "growth", "other")] == pytest.approx([20e3, 6e3, 1e3, 5e3])
    assert (own["same text"], rows["looping", "x|chain"]["same text"]) == ("3/6", "3/3")


def test_a_method_is_compared_with_the_first_chain_of_its_drafter_and_verifier():
    specs = ["lookup|talon", "lookup|chain:depth=2", "lookup|chain", "suffix|chain", "suffix|talon|rrsw"]
    found = methods.chains([Method.parse(spec) for spec in specs])
    assert {spec: chain for spec, chain in found.items() if spec.startswith("lookup")} == dict.fromkeys(
        [Method.parse(spec).spec for spec in specs[:3]], "lookup|chain:depth=2"
    )
    assert "suffix|talon|rrsw" not in found


def test_bytes_are_those_of_the_weights_read_and_of_the_cache():
    model, _ = tiny.wrap(tiny.build("llama"))
    sizes = {name: p.nbytes for name, p in model.module.named_parameters()}
    row = tiny.SIZES["hidden_size"] * 4
    keys = tiny.LAYERS * 2 * 2 * 8 * 10 * 4
    expected = sum(sizes.values()) - sizes["model.embed_tokens.weight"] + row + keys
    assert methods.pass_bytes(model, 10) == expected


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
def test_transformers_own_ways_write_the_same_texts_and_leave_the_models_as_they_were(prompts, embedded):
    options = ["--prompts", prompts, "--drafter", "embedded-draft", "--policies", "chain", "--max-new-tokens", 6]
    options += ["--repeats", 1, "--peers", "transformers", "--passes", "1,4", "--contexts", "8,64", "--count-work"]
    text = embedded.generate("The old man", max_new_tokens=6).tokens
    found = json.loads(run("bench", "methods", *options, "--json").stdout)
    rows = {row["method"]: row for row in found["rows"]}
    assisted = [f"transformers assisted by embedded-draft, {kind}" for kind in ("constant", "heuristic")]
    assert [*rows] == ["plain", "embedded-draft|chain", "transformers", "transformers prompt lookup", *assisted]
    assert {row["same text"] for row in rows.values()} == {"2/2"}
    assert [(each["passes"], [*each["ms"]]) for each in found["machine"]["passes"]] == [
        ("drafttree, behind 8", ["1", "4"]),
        ("drafttree, behind 64", ["1", "4"]),
    ]
    assert rows["embedded-draft|chain"]["operations"] > rows["plain"]["operations"] > 0
    assert rows["plain"]["GB/s"] == pytest.approx(rows["plain"]["tokens/s"] * found["machine"]["bytes"] / 1e9)
    assert embedded.generate("The old man", max_new_tokens=6).tokens == text


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--peers", "vllm"], "unknown peer 'vllm'"),
        (["--drafters", "none"], "'none' is not a drafter"),
        (["--peers", "transformers", "--quantize", "int8"], "transformers has no int8 here"),
        (["--passes", "0"], "--passes is '0'"),
    ],
)
def test_mistakes_are_said_before_anything_is_loaded(capsys, options, said):
    assert said in complaint(capsys, "bench", "methods", *options)


def test_a_peer_that_is_not_installed_says_how_to_get_it(capsys, monkeypatch):
    monkeypatch.setattr(programs, "find_spec", lambda name: None)
    assert 'pip install "drafttree-lab[peers]"' in complaint(capsys, "bench", "methods", "--peers", "llama.cpp")
