"""The figure: one file for every theme, every cell's winner and numbers in it, and the papers' pairs."""

import re
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from drafttree.errors import InputError
from drafttree_lab.graded import CONFIDENCES
from drafttree_lab.replay.intervals import Estimate
from drafttree_lab.report.map_figure import draw
from drafttree_lab.report.notation import COLORS, write_text
from drafttree_lab.winner_map.published import PLAIN, families, published_pairs
from drafttree_lab.winner_map.winner_map import AGREEMENTS, DRAFT_COSTS, SLOPES, MapPoint, WinnerMap


def point(place, confidence="calibrated", tied_with=None, auto=None):
    """A point whose place decides its agreement and winner."""
    winner, best = [PLAIN, *families()][place], 1 + place / 1000
    costs = DRAFT_COSTS[place % len(DRAFT_COSTS)], [*SLOPES][place % len(SLOPES)]
    return MapPoint(
        AGREEMENTS[place], confidence, *costs, winner, best, tied_with, Estimate(1.1), {winner: best}, {}, auto
    )


@pytest.fixture
def found():
    """A map of points with a winner of their own, some calibrated and some tied."""
    points = [point(0, auto=0.5), point(1, auto=1.7), point(3, "overconfident"), point(5, "underconfident", "TALON")]
    pairs = [replace(pair, agreement=0.3 + place / 15) for place, pair in enumerate(published_pairs())]
    return WinnerMap([], {}, points, pairs, [], 8, 1, 0, 96)


def texts(path: Path) -> list[str]:
    """The texts of an SVG."""
    return ["".join(each.itertext()) for each in ElementTree.parse(path).iter("{http://www.w3.org/2000/svg}text")]


def test_one_file_says_all(found, tmp_path):
    path = tmp_path / "wins.svg"
    write_text(draw(found), path)
    said = texts(path)
    for each in found.points:
        assert f"{each.best:.2f}" in said
        assert each.auto is None or f"{each.auto:.2f}" in said
    assert all(any(each.name in text for text in said) for each in found.pairs)
    assert all(said.count(confidence) == len(SLOPES) for confidence in CONFIDENCES)
    assert sum(text.startswith("v(n)") for text in said) == len(SLOPES)


def test_it_follows_the_readers_theme_and_loads_nothing(found):
    svg = draw(found)
    assert "@media (prefers-color-scheme: dark)" in svg
    inside = re.sub("<style>.*?</style>", "", svg, flags=re.DOTALL)
    assert set(re.findall("#[0-9a-f]{3,6}", inside)) <= set(COLORS)  # the rest is of the theme
    assert re.findall(r"https?://[^\"\s]+", svg) == ["http://www.w3.org/2000/svg"]


def test_a_tie_has_both_letters_and_both_colours(found):
    tied, alone = (WinnerMap([], {}, [point(5, tied_with=name)], [], [], 1, 0, 0, 8) for name in ("TALON", None))
    assert (">OT<" in draw(tied), ">OT<" in draw(alone)) == (True, False)
    assert draw(tied).count('class="cell"') == draw(alone).count('class="cell"') + 1


def test_letters_tell_families_apart():
    assert len({name[0].upper() for name in (PLAIN, *families())}) == 1 + len(families())


def test_a_map_of_one_point_and_no_pairs_is_drawn_too():
    assert ">1.00<" in draw(WinnerMap([], {}, [point(0)], [], [], 1, 0, 0, 8))


def test_a_file_that_cannot_be_written_is_refused(found, tmp_path):
    with pytest.raises(InputError, match="cannot be written"):
        write_text(draw(found), tmp_path / "nowhere" / "wins.svg")
