"""The documents as a site, opened from its folder: it asks no other host, its search works, and its names agree.

`make docs` tries the site that it has built (`SITE`); elsewhere one is built here.
"""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from testing.browser import CHROMIUM

ROOT = Path(__file__).parents[1]
CONTENTS = re.findall(r"^ +- \"?(.+?)\"?: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
OVERFLOW = "[...document.querySelectorAll('pre code')].map(each => each.scrollWidth - each.clientWidth)"
FILLED = "[...document.images].every(each => each.complete && each.naturalWidth > 100)"
WAIT = 30_000


@pytest.mark.parametrize(("name", "page"), [each for each in CONTENTS if each[1] != "index.md"])
def test_the_contents_call_a_page_what_it_is_called(name, page):
    title = (ROOT / "docs" / page).read_text().partition("\n")[0].removeprefix("# ")
    assert title.startswith(name), f"{page} is called {title!r}"


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    if built := os.environ.get("SITE"):
        return ROOT / built
    if not find_spec("mkdocs"):
        pytest.skip("mkdocs is not installed")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    return folder


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium")
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def opened(site, browser):
    """The front page in a window of a laptop, and the addresses that were asked for."""
    page, asked = browser.new_page(viewport={"width": 1280, "height": 900}), []
    page.set_default_timeout(WAIT)
    page.on("request", lambda request: asked.append(request.url))
    page.goto((site / "index.html").as_uri(), wait_until="networkidle")
    yield page, asked
    page.close()


def elsewhere(asked: list[str]) -> list[str]:
    return [address for address in asked if not address.startswith(("file:", "data:", "blob:", "about:"))]


@pytest.mark.slow
def test_search_answers_from_a_folder_and_leads_to_its_page(opened):
    page, asked = opened
    page.focus(".md-search__input")
    page.keyboard.type("traversal")
    page.wait_for_selector(".md-search-result__item")
    assert "matching" in page.inner_text(".md-search-result__meta")
    page.click(".md-search-result__item a >> nth=0")
    page.wait_for_load_state("networkidle")
    assert "raversal" in page.inner_text("article")
    assert elsewhere(asked) == []


@pytest.mark.slow
def test_no_page_asks_another_host(site, opened):
    page, asked = opened
    pages = sorted(site.rglob("*.html"))
    assert len(pages) >= len(CONTENTS)
    for each in pages:
        page.goto(each.as_uri(), wait_until="networkidle")
    assert elsewhere(asked) == []


@pytest.mark.slow
def test_the_front_page_shows_a_picture_and_all_of_its_code(opened):
    page, _ = opened
    assert page.locator("article img").count() >= 1
    assert page.evaluate(FILLED)
    assert max(page.evaluate(OVERFLOW)) <= 0
