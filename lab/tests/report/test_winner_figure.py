"""The figure: four files, every cell's winner and numbers in them, and the papers' pairs."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from drafttree.errors import ConfigError, InputError
from drafttree_lab.report.winner_figure import check_output, write_figures
from drafttree_lab.winner_map.cost_grid import DRAFT_COSTS, SLOPES, GridCosts, cost_grid
from drafttree_lab.winner_map.families import PLAIN, families
from drafttree_lab.winner_map.pairs import PlacedPair, published_pairs
from drafttree_lab.winner_map.winner_map import AGREEMENTS, Entrant, MapPoint, WinnerMap


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
    return [each.text or "" for each in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_every_format_and_ground_has_a_file_that_says_all(found, tmp_path):
    files = write_figures(found, tmp_path / "wins.svg")
    names = ["wins.svg", "wins-dark.svg", "wins-narrow.svg", "wins-narrow-dark.svg"]
    assert [each.name for each in files] == names
    for path in files:
        said = texts(path)
        for point in found.points:
            assert f"{point.best:.2f}" in said
            assert f"auto {point.auto:.2f}" in said
        assert all(any(each.pair.name in text for text in said) for each in found.pairs)
        assert sum(text.startswith("v(n)") for text in said) == len(SLOPES)
    assert [ElementTree.parse(path).getroot().get("width") for path in files] == ["1280pt", "1280pt", "420pt", "420pt"]


def test_a_map_of_one_point_and_no_pairs_is_drawn_too(tmp_path):
    point = MapPoint(AGREEMENTS[0], GridCosts(DRAFT_COSTS[0], 0.0), {PLAIN: Entrant(PLAIN, 1.0)}, None)
    files = write_figures(WinnerMap([], [point], [], [], 1, 0, 0, 8), tmp_path / "wins.svg")
    assert all("1.00" in texts(path) for path in files)


def test_a_file_that_is_no_svg_or_cannot_be_written_is_refused(found, tmp_path):
    with pytest.raises(ConfigError, match=r"is no \.svg file"):
        check_output(tmp_path / "wins.png")
    with pytest.raises(InputError, match="cannot be written"):
        write_figures(found, tmp_path / "nowhere" / "wins.svg")
