"""The figure: one file for every theme, every cell's winner and numbers in it, and the papers' pairs."""

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from drafttree.errors import ConfigError, InputError
from drafttree_lab.report.map_figure import check_output, draw, write_figure
from drafttree_lab.report.notation import COLORS
from drafttree_lab.winner_map.published import PLAIN, PlacedPair, families, published_pairs
from drafttree_lab.winner_map.winner_map import (
    AGREEMENTS,
    DRAFT_COSTS,
    SLOPES,
    Entrant,
    GridCosts,
    MapPoint,
    WinnerMap,
    cost_grid,
)


@pytest.fixture
def found():
    """A map of two points, each with a winner of its own."""
    names, points, grid = [PLAIN, *families()], [], cost_grid()
    for place, (costs, agreement) in enumerate(zip((grid[0], grid[-1]), AGREEMENTS, strict=False)):
        winner = names[place % len(names)]
        entrants = {name: Entrant(name, 1 + place / 1000 if name == winner else 1.0) for name in names}
        points.append(MapPoint(agreement, costs, entrants, 0.5 + place / 1000))
    pairs = [PlacedPair(pair, 0.3 + place / 15) for place, pair in enumerate(published_pairs())]
    return WinnerMap([], points, pairs, [], 8, 1, 0, 96)


def texts(path: Path) -> list[str]:
    """The texts of an SVG."""
    return ["".join(each.itertext()) for each in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_one_file_says_all(found, tmp_path):
    path = tmp_path / "wins.svg"
    write_figure(found, path)
    said = texts(path)
    for point in found.points:
        assert f"{point.best:.2f}" in said
        assert f"auto {point.auto:.2f}" in said
    assert all(any(each.pair.name in text for text in said) for each in found.pairs)
    assert sum(text.startswith("v(n)") for text in said) == len(SLOPES)


def test_it_follows_the_readers_theme_and_loads_nothing(found):
    svg = draw(found)
    assert "@media (prefers-color-scheme: dark)" in svg
    inside = re.sub("<style>.*?</style>", "", svg, flags=re.DOTALL)
    assert set(re.findall("#[0-9a-f]{3,6}", inside)) <= set(COLORS)  # the rest is of the theme
    assert re.findall(r"https?://[^\"\s]+", svg) == ["http://www.w3.org/2000/svg"]


def test_a_map_of_one_point_and_no_pairs_is_drawn_too():
    point = MapPoint(AGREEMENTS[0], GridCosts(DRAFT_COSTS[0], 0.0), {PLAIN: Entrant(PLAIN, 1.0)}, None)
    assert ">1.00<" in draw(WinnerMap([], [point], [], [], 1, 0, 0, 8))


def test_a_file_that_is_no_svg_or_cannot_be_written_is_refused(found, tmp_path):
    with pytest.raises(ConfigError, match=r"is no \.svg file"):
        check_output(tmp_path / "wins.png")
    with pytest.raises(InputError, match="cannot be written"):
        write_figure(found, tmp_path / "nowhere" / "wins.svg")
