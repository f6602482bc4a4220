"""Figures of the report: SVG that stands in a page, says what it draws, and takes the page's colours."""

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from drafttree_lab.report.chart import draw
from lab_helpers.kept_results import FIGURES, HOSTILE, entry, renamed, summary

SVG = "{http://www.w3.org/2000/svg}"
KINDS = pytest.mark.parametrize("kind", FIGURES)


def texts(svg: str) -> list[str]:
    """What a figure says, in the order in which it is drawn."""
    return [each.text or "" for each in ElementTree.fromstring(svg).iter(f"{SVG}text")]


@KINDS
def test_a_figure_is_xml_with_a_label_and_scales_with_the_page(kind):
    root = ElementTree.fromstring(draw(FIGURES[kind]))
    assert (root.tag, root.get("role"), root.get("aria-label")) == (f"{SVG}svg", "img", "Tokens per round")
    assert root.get("viewBox")
    assert root.get("width") is None


@KINDS
def test_text_and_series_have_the_colours_of_the_page(kind):
    svg = draw(FIGURES[kind])
    assert "currentColor" in svg
    assert "#123456" not in svg
    colors = {each.get("style", "") for each in ElementTree.fromstring(svg).iter(f"{SVG}text")}
    assert not any("#000000" in each for each in colors if kind != "heatmap")
    if kind != "heatmap":
        assert "var(--series-" in svg


@KINDS
def test_names_are_drawn_as_they_are_whatever_they_are(kind):
    svg = draw(renamed(FIGURES[kind], HOSTILE))
    assert "<script" not in svg
    assert any(HOSTILE in text for text in texts(svg))


def test_ids_of_two_figures_on_a_page_differ():
    figures = [draw(replace(own, id=f"talon/{kind}")) for kind, own in FIGURES.items()]
    ids = re.findall(r'\bid="([^"]*)"', "".join(figures))
    assert len(ids) == len(set(ids)) > 10


@KINDS
def test_a_figure_refers_to_its_own_parts(kind):
    svg = draw(FIGURES[kind])
    used = set(re.findall(r'(?:url\(|href=")#([^")]*)', svg))
    assert used <= set(re.findall(r'\bid="([^"]*)"', svg))


@pytest.mark.parametrize("kind", ["bars", "lines", "scatter"])
def test_the_legend_names_the_model_of_the_published_numbers(kind):
    assert "published (Vicuna-13B)" in texts(draw(FIGURES[kind]))


def test_a_legend_without_published_numbers_names_none():
    assert not any("published" in text for text in texts(draw(summary([entry("tree", 3.0)], figure="bars"))))


def test_the_values_of_an_axis_stand_in_order_under_its_name():
    found = texts(draw(FIGURES["lines"], "budget N"))
    assert [text for text in found if text in {"9", "60", "100"}] == ["9", "60", "100"]
    assert "budget N" in found


def test_values_that_are_no_numbers_stand_as_they_come():
    entries = [entry(f"tree@{value}", 2.0) for value in ("D=8", "D=10", "D=9")]
    found = texts(draw(summary(entries, figure="lines")))
    assert [text for text in found if text.startswith("D=")] == ["D=8", "D=10", "D=9"]


def test_a_metric_that_was_not_measured_has_no_panel():
    entries = [entry("tree", None, metric="speedup"), entry("tree", 3.0)]
    found = texts(draw(summary(entries, figure="bars")))
    assert "tokens per target pass" in found
    assert not any("speed-up" in text for text in found)


def test_cells_of_a_heat_map_tell_their_share_in_per_cent():
    assert {"75", "25", "50", "·"} <= set(texts(draw(FIGURES["heatmap"])))


def test_a_strip_of_tokens_tells_the_drafted_share():
    found = texts(draw(FIGURES["tokens"]))
    assert {"50 % drafted", "40 % drafted"} <= set(found)


@KINDS
def test_nothing_is_drawn_where_nothing_was_measured(kind):
    own = FIGURES[kind]
    entries = [replace(each, measured=None) for each in own.entries]
    assert draw(replace(own, entries=entries, points={name: [] for name in own.points})) == ""


def test_a_table_has_no_figure():
    assert draw(summary([entry("tree", 3.0)])) == ""


@pytest.mark.parametrize("kind", ["bars", "lines"])
def test_numbers_of_one_prompt_are_drawn_without_an_interval(kind):
    def without(each):
        return replace(each, measured=each.measured and replace(each.measured, low=None, high=None))

    own = FIGURES[kind]
    alone = draw(replace(own, entries=[without(each) for each in own.entries]))
    assert "<svg" in alone
    assert len(alone) < len(draw(own))
