"""The pictures of the documents in a browser: words stand apart, lines pass by words, and both themes can be read."""

import io
import re
from itertools import pairwise, takewhile
from pathlib import Path

import pytest

from drafttree.interfaces.cli.demo import OPENING
from testing.browser import CHROMIUM

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")

IMAGES = Path(__file__).parents[1] / "docs" / "images"
RECORDING = IMAGES / "recording.svg"
TREES = sorted(IMAGES.glob("tree-*.svg"))
DRAWN = [IMAGES / "speed.svg", IMAGES / "accepted-lengths.svg", *TREES]
CHARACTER, MARGIN, COLUMN = 7.83, 14, 55
"""Pixels of a character and the margin of the recording; characters between the beginnings of its two texts."""
RESULT = re.compile(r"\d+ tokens in \d+ passes")
MOMENT = "time => document.getAnimations().forEach(each => { each.pause(); each.currentTime = 1000 * time })"
LENGTH = "() => document.getAnimations()[0].effect.getComputedTiming().duration / 1000"
BOTH_THEMES = '<meta name="color-scheme" content="light dark">'
GLYPHS = """() => [...document.querySelectorAll("text")]
    .filter(each => getComputedStyle(each).opacity > 0)
    .map(each => [...each.textContent].map((glyph, place) => {
        const at = each.getStartPositionOfChar(place);
        return [at.x, at.y, glyph];
    })).flat()"""
STRUCK = """() => [...document.querySelectorAll("path, line")].flatMap(line => {
    const length = line.getTotalLength();
    const points = Array.from({ length: 200 }, (_, step) => line.getPointAtLength(step * length / 199));
    return [...document.querySelectorAll("text")].filter(text => {
        const box = text.getBBox();
        return points.some(({ x, y }) => box.x < x && x < box.x + box.width && box.y < y && y < box.y + box.height);
    }).map(text => text.textContent);
})"""


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def opened(browser):
    page = browser.new_page()
    page.goto(RECORDING.as_uri())
    yield page
    page.close()


def rows(page, time: float) -> list[str]:
    """What is read on the screen at a time, line by line; glyphs that are not on the grid of characters fail."""
    page.evaluate(MOMENT, time)
    lines: dict[float, dict[int, str]] = {}
    for x, y, glyph in page.evaluate(GLYPHS):
        place = (x - MARGIN) / CHARACTER
        assert abs(place - round(place)) < 0.2, (time, x, y, glyph)
        assert lines.setdefault(y, {}).setdefault(round(place), glyph) == glyph, (time, x, y, glyph)
    return ["".join(line.get(place, " ") for place in range(2 * COLUMN)).rstrip() for _, line in sorted(lines.items())]


def texts(lines: list[str]) -> list[str]:
    """The text on the left and the text on the right, with single spaces and without the result below them."""
    body = [*takewhile(lambda line: not RESULT.match(line), lines[2:])]
    columns = (slice(0, COLUMN), slice(COLUMN, None))
    return [" ".join(" ".join(line[column] for line in body).split()) for column in columns]


def test_the_recording_begins_with_finished_texts_and_the_result(opened):
    lines = rows(opened, 0)
    assert lines[0] == "$ drafttree demo"
    left, right = texts(lines)
    assert left == right
    assert right.startswith(OPENING)
    assert len(right) > 3 * len(OPENING)
    assert any("times as fast as plain decoding" in line for line in lines)


def test_the_recording_plays_again_and_again_and_grows_from_the_prompt(opened):
    length = opened.evaluate(LENGTH)
    times = [step * length / 24 for step in range(25)]
    played = [rows(opened, time) for time in times]
    assert opened.evaluate("document.getAnimations().every(each => each.effect.getTiming().iterations === Infinity)")
    assert [rows(opened, time + length) for time in times[::6]] == played[::6]
    shown = [texts(lines) for lines in played]
    growing = shown[shown.index([OPENING, OPENING]) :]
    for before, after in pairwise(growing):
        assert all(new.startswith(old) for old, new in zip(before, after, strict=True))
    assert growing[-1] == shown[0]
    assert any(len(left) < len(right) for left, right in growing), "drafts are not ahead"


def test_words_of_the_recording_stand_apart(opened):
    words = texts(rows(opened, 0))[1].split()
    assert len(words) > 60
    assert max(map(len, words)) < 15


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("picture", [RECORDING, *DRAWN], ids=lambda picture: picture.stem)
def test_a_picture_is_of_its_theme_from_the_first_frame(browser, tmp_path, picture, scheme):
    image = pytest.importorskip("PIL.Image", reason="pillow is not installed")
    page = browser.new_page(color_scheme=scheme)
    (tmp_path / "page.html").write_text(
        f'<meta name="color-scheme" content="light dark"><img src="{picture.as_uri()}">'
    )
    page.goto((tmp_path / "page.html").as_uri())
    shot = image.open(io.BytesIO(page.locator("img").screenshot())).convert("L")
    page.close()
    counts = shot.histogram()
    dark = scheme == "dark" or picture == RECORDING
    back = max(range(256), key=counts.__getitem__)
    assert back < 40 if dark else back > 240
    far = sum(counts[150:] if dark else counts[:150])
    assert far > 0.01 * sum(counts)


@pytest.mark.parametrize("picture", DRAWN, ids=lambda picture: picture.stem)
def test_no_line_strikes_through_a_word(browser, picture):
    page = browser.new_page()
    page.goto(picture.as_uri())
    struck = page.evaluate(STRUCK)
    page.close()
    assert struck == []
