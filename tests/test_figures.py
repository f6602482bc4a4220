"""The figures of the documents are what their commands draw."""

import importlib.util
import json
import re
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from drafttree import DraftTree

DOCS = Path(__file__).parents[1] / "docs"
PICTURES = sorted((DOCS / "images").glob("*.svg"))
SVG = "{http://www.w3.org/2000/svg}"


def command(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_figure_of_speed_is_that_of_the_table():
    figure, page = command("figure"), (DOCS / "performance.md").read_text()
    found = figure.speeds(page)
    assert found["`embedded-eagle3`, chain of 5"] == (2.20, 2.15)
    assert figure.drawn(found) == (DOCS / "images" / "speed.svg").read_text(), "run python docs/figure.py"


@pytest.mark.parametrize("page", ["README.md", "docs/real-models.md"])
def test_the_tables_of_real_models_are_those_of_the_file(page):
    real, text = command("real"), (DOCS.parent / page).read_text()
    assert real.updated(text, json.loads(real.FIGURES.read_text())) == text, "run python docs/real.py"
    assert "tokens/s" in text


def test_a_row_of_a_real_model_that_failed_says_why():
    real = command("real")
    rows = [{"model": "m", "precision": "int8", "method": "plain", "failure": "no room"}]
    report = json.loads(real.FIGURES.read_text()) | {"speeds": rows}
    assert "| plain | no room |" in real.tables(report)["speeds"]


def test_a_tree_is_drawn_with_every_node_and_the_accepted_path():
    trees = command("trees")
    zero = [0.0] * 6
    tree = DraftTree([9, 1, 2, 3, 4, 5], [-1, 0, 0, 1, 1, 4], zero, zero, 3)
    picture = trees.of_tree(tree, [1, 4, 7], lambda tokens: f"<{tokens[0]}>")
    assert picture.accepted == {0, 1, 4}
    drawn = ElementTree.fromstring(trees.drawn(picture))
    assert sorted(text.text for text in drawn.iter(f"{SVG}text")) == ["<1>", "<2>", "<3>", "<4>", "<5>", "<9>"]
    assert sorted(text.text for text in drawn.iter(f"{SVG}text") if text.get("class") == "word") == [
        "<1>",
        "<4>",
        "<9>",
    ]
    assert [path.get("class") for path in drawn.iter(f"{SVG}path")].count("accepted") == 2


@pytest.mark.parametrize("picture", PICTURES, ids=lambda picture: picture.stem)
def test_a_picture_is_small_and_loads_nothing_from_elsewhere(picture):
    text = picture.read_text()
    ElementTree.fromstring(text)
    assert len(text) < 300_000
    assert not re.search(r'(href|src)=["\'](?!#)|url\((?!#)|@import|<script', text)


def test_every_page_is_in_the_sites_contents():
    contents = (DOCS.parent / "mkdocs.yml").read_text()
    assert all(re.search(rf"(: |  ){page.name}\n", contents) for page in DOCS.glob("*.md"))
