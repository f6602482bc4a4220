"""The figures of the documents are what their commands draw."""

import importlib
import json
import re
import sys
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import numpy as np
import pytest
import torch

import drafttree
from drafttree import DraftTree, Sampling
from drafttree.evaluation.biased_numbers import BiasedNumbers
from drafttree.evaluation.trace import Outcome, TracedNode
from drafttree.exactness import outcomes, trees
from drafttree.loading import make_policy
from drafttree.verifiers import VERIFIERS, Verifier
from testing.toy_pairs import ToyPair, toy_pair

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = sorted((DOCS / "images").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def command(name: str) -> ModuleType:
    """A program of the documents, which finds those beside it."""
    sys.path.insert(0, str(DOCS))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(DOCS))


def report(**entries) -> dict:
    """The figures of `figures.json` that tables need, of rows that are given."""
    return {
        name: {"command": "c", "machine": {"processor": "p"}, "date": "d", "report": of} for name, of in entries.items()
    }


def toy_rounds(lengths: ModuleType, method: int, tables: ToyPair, bias: float = 0.0) -> list[tuple]:
    """Every small tree of a method: its weight, and the chances of 1 and 2 accepted tokens, predicted and exact."""
    of_method = lengths.METHODS[method]
    verifier = VERIFIERS[of_method.verifier]
    policy = make_policy("template:paths=0+1+0.0+0.1+1.0" if method == 2 else "chain:depth=2")
    rounds = []
    for weight, tree in trees(tables.draft, policy, verifier, levels=2):
        logits = torch.stack([tables.target.logits(path) for path in tree.paths()])
        draft = {node: row.double().numpy() for node, row in tree.draft_probs.items()}
        predicted = of_method.law(tree, logits.softmax(-1).numpy(), draft)
        rounds.append((weight, predicted, exact_lengths(verifier, tree, logits, bias)))
    return rounds


def exact_lengths(verifier: type[Verifier], tree: DraftTree, logits: torch.Tensor, bias: float) -> np.ndarray:
    """The chances that a verifier accepts at least 1 and 2 tokens of a tree, by all its outcomes."""
    judge = verifier(Sampling(temperature=1.0)).verify
    chances = np.zeros(2)
    for chance, verdict in outcomes(lambda numbers: judge(tree, logits.clone(), BiasedNumbers(numbers, bias))):
        chances[: len(verdict.path) - 1] += chance
    return chances


def test_the_figure_of_speed_is_that_of_the_file():
    picture = command("speed_picture")
    ratios = picture.speeds(picture.entries()["methods"]["report"])
    assert all(0 < ratio < 10 for each in ratios.values() for ratio in each)
    assert picture.drawn(ratios) == picture.PICTURE.read_text(), "run python docs/speed_picture.py"


def test_the_figure_of_lengths_is_that_of_the_file():
    lengths = command("lengths")
    measured = json.loads(lengths.FIGURES.read_text())
    assert lengths.drawn(measured) == lengths.PICTURE.read_text(), "run python docs/lengths.py"
    assert measured["command"] == "python docs/lengths.py --measure"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", measured["date"])
    comparisons = [lengths.Comparison(**entry) for entry in measured["comparisons"]]
    assert [comparison.title for comparison in comparisons] == [method.title for method in lengths.METHODS]
    assert all(comparison.rounds > 1000 and not comparison.differs for comparison in comparisons)


@pytest.mark.parametrize("pair", [0, 1, 2, 5])
@pytest.mark.parametrize("method", range(3))
def test_the_predicted_lengths_are_those_of_all_outcomes(method, pair):
    lengths = command("lengths")
    rounds = toy_rounds(lengths, method, toy_pair(pair))
    if method != 1:
        for weight, predicted, exact in rounds:
            assert predicted == pytest.approx(exact, abs=1e-12), weight
    weights, predicted, exact = map(np.array, zip(*rounds, strict=True))
    assert weights.sum() == pytest.approx(1)
    assert weights @ predicted == pytest.approx(weights @ exact, abs=1e-12)


@pytest.mark.parametrize("method", range(3))
def test_lengths_of_another_law_are_seen(method, monkeypatch, tmp_path):
    lengths = command("lengths")
    comparisons = {}
    for bias in (0.0, 0.3):
        weights, predicted, exact = map(np.array, zip(*toy_rounds(lengths, method, toy_pair(6), bias), strict=True))
        numbers = np.random.default_rng(1)
        drawn = numbers.choice(len(weights), size=5000, p=weights / weights.sum())
        accepted = (numbers.random(5000)[:, None] < exact[drawn]).sum(1)
        comparisons[bias] = lengths.compare(lengths.METHODS[method], accepted, predicted[drawn])
    assert [comparison.differs for comparison in comparisons.values()] == [False, True]
    monkeypatch.setattr(lengths, "DEPTH", 2)
    monkeypatch.setattr(lengths, "PICTURE", tmp_path / "picture.svg")
    monkeypatch.setattr(lengths, "FIGURES", tmp_path / "lengths.json")
    for bias, comparison in comparisons.items():
        lengths.FIGURES.write_text(json.dumps({"comparisons": [asdict(comparison)]}))
        assert lengths.main([]) == (bias > 0)
        ElementTree.fromstring(lengths.PICTURE.read_text())


def test_lengths_are_measured_anew(monkeypatch, tmp_path):
    lengths = command("lengths")
    settings = {"TEXTS": 1, "TOKENS": 12, "PICTURE": tmp_path / "a.svg", "FIGURES": tmp_path / "a.json"}
    for name, value in settings.items():
        monkeypatch.setattr(lengths, name, value)
    lengths.main(["--measure"])
    measured = json.loads(lengths.FIGURES.read_text())
    assert lengths.drawn(measured) == lengths.PICTURE.read_text()
    for comparison in measured["comparisons"]:
        assert comparison["rounds"] > 1
        assert comparison["rounds"] * (1 + sum(comparison["measured"])) >= 12


@pytest.mark.parametrize("page", ["README.md", "docs/real-models.md"])
def test_the_tables_of_real_models_are_those_of_the_file(page):
    real, text = command("real"), (DOCS.parent / page).read_text()
    assert real.updated(text, real.measured_report()) == text, "run python docs/real.py"
    assert "tokens/s" in text


@pytest.mark.parametrize("page", ["README.md", "docs/performance.md"])
def test_the_tables_of_performance_are_those_of_the_file(page):
    performance, text = command("performance"), (DOCS.parent / page).read_text()
    parts = performance.tables(performance.entries())
    marked = re.findall(r"<!-- figures: ([\w-]+) -->", text)
    assert marked
    assert {*marked} <= {*parts}
    assert performance.with_parts(text, "figures", parts) == text, "run python docs/performance.py"


def test_every_figure_has_its_command_and_date():
    figures = command("figures")
    for name, entry in figures.entries().items():
        assert entry["command"].startswith("drafttree bench "), name
        assert re.fullmatch(r"\d{4}-\d\d-\d\d", entry["date"]), name
        assert entry["machine"]["processor"], name


def test_a_bench_that_cannot_run_here_keeps_its_figures(monkeypatch, tmp_path, capsys):
    figures = command("figures")
    kept = tmp_path / "figures.json"
    kept.write_text('{"real": {"date": "before"}}')
    monkeypatch.setattr(figures, "FIGURES", kept)
    monkeypatch.delenv("DRAFTTREE_REAL_MODELS", raising=False)
    figures.measure(["real"])
    assert "real: not run, DRAFTTREE_REAL_MODELS is not set" in capsys.readouterr().out
    assert figures.entries() == {"real": {"date": "before"}}


def test_an_unknown_bench_is_refused_by_name():
    with pytest.raises(SystemExit, match="unknown: passes; known: methods, "):
        command("figures").measure(["passes"])


def test_what_the_bench_of_a_gpu_prints_is_a_table():
    ratio = {"mean": 2.0, "low": 1.5, "high": 2.5}
    row = {"group": "openings", "tokens/s": 5.0, "tau": 1.5, "R": ratio, "method": "lookup|talon:budget=16,width=4"}
    rows = [row, row | {"group": "not looping", "tokens/s": 7.0}, {**row, "method": "transformers prompt lookup"}]
    table = command("performance").tables(report(gpu={"rows": rows, "machine": {"device": "cuda"}}))["gpu"]
    assert table.count("2.00 [1.50, 2.50] | 5.0 |") == 2
    assert "7.0" not in table


def test_a_method_without_a_ratio_has_an_empty_cell():
    performance = command("performance")
    row = {"group": "openings", "tokens/s": 5.0, "tau": 1.5, "R": None}
    plain = row | {"method": "plain", "R": {"mean": 1.0, "low": None, "high": None}}
    drafted = row | {"method": "lookup|chain"}
    tables = performance.tables(report(methods={"rows": [plain, drafted]}))["methods"]
    assert "| `lookup` |  |  |  |  |" in tables
    assert "| plain | 1.50 |  |  |  |  |  | 1.00 | 5.0 |" in tables


def test_a_row_of_a_real_model_that_failed_says_why():
    real = command("real")
    rows = [{"model": "m", "precision": "int8", "method": "plain", "failure": "no room"}]
    measured = real.measured_report() | {"speeds": rows}
    assert "| plain | no room |" in real.tables(measured)["speeds"]


def test_a_tree_is_drawn_with_every_node_and_the_accepted_path():
    trees = command("trees")
    rows = [(9, -1, "root"), (1, 0, "accepted"), (2, 0, "rejected")]
    rows += [(3, 1, "rejected"), (4, 1, "accepted"), (5, 4, "rejected")]
    nodes = [TracedNode(token, parent=parent, draft=0.5, outcome=Outcome(outcome)) for token, parent, outcome in rows]
    picture = trees.of_nodes(nodes, lambda tokens: f"<{tokens[0]}>")
    assert picture.accepted == {0, 1, 4}
    assert picture.children == [[1, 2], [3, 4], [], [], [5], []]
    assert picture.probabilities == [1, 0.5, 0.5, 0.25, 0.25, 0.125]
    drawn = ElementTree.fromstring(trees.drawn(picture))
    assert sorted(text.text for text in drawn.iter(f"{SVG}text")) == ["<1>", "<2>", "<3>", "<4>", "<5>", "<9>"]
    assert sorted(text.text for text in drawn.iter(f"{SVG}text") if text.get("class") == "word") == [
        "<1>",
        "<4>",
        "<9>",
    ]
    assert [path.get("class") for path in drawn.iter(f"{SVG}path")].count("accepted") == 2


@pytest.mark.slow
def test_the_pictures_of_trees_are_those_of_the_command():
    tree_pictures = command("trees")
    embedded = drafttree.load(drafter="embedded-draft", dtype="float32", device="cpu")
    for policy in tree_pictures.POLICIES:
        picture = tree_pictures.drawn(tree_pictures.pictured(embedded.with_policy(policy)))
        file = tree_pictures.IMAGES / f"tree-{policy.partition(':')[0]}.svg"
        assert picture == file.read_text(), "run python docs/trees.py"


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_is_small_and_loads_nothing_from_elsewhere(picture):
    text = picture.read_text()
    ElementTree.fromstring(text)
    assert len(text) < 300_000
    assert not re.search(r'(href|src)=["\'](?!#)|url\((?!#)|@import|<script', text)


def test_every_page_is_in_the_sites_contents():
    contents = (DOCS.parent / "mkdocs.yml").read_text()
    assert all(re.search(rf"(: |  ){page.name}\n", contents) for page in DOCS.glob("*.md"))
