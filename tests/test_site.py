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
"""Pixels of each block of code that do not fit."""
WIDER = "document.documentElement.scrollWidth - innerWidth"
SCHEME = "document.body.getAttribute('data-md-color-scheme')"
FILLED = "[...document.images].every(each => each.complete && each.naturalWidth > 100)"
WAIT = 30_000


@pytest.mark.parametrize(("name", "page"), [each for each in CONTENTS if each[1] != "index.md"])
def test_the_contents_call_a_page_what_it_is_called(name, page):
    lines = (ROOT / "docs" / page).read_text().splitlines()
    title = next(line for line in lines if line.startswith("# ")).removeprefix("# ")
    assert title.replace("`", "").startswith(name), f"{page} is called {title!r}"


def test_the_contents_are_plain_text():
    assert not [name for name, _ in CONTENTS if re.search(r"[`*_<]", name)]


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
def test_the_front_page_shows_a_picture(opened):
    page, _ = opened
    assert page.locator("article img").count() >= 1
    assert page.evaluate(FILLED)


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 1280])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_page_is_wider_than_its_window_and_no_code_is_cut(site, browser, width, scheme):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    blocks = 0
    for _, name in CONTENTS:
        page.goto((site / name).with_suffix(".html").as_uri(), wait_until="load")
        cut = page.evaluate(OVERFLOW)
        blocks += len(cut)
        assert max(cut, default=0) <= 0, name
        assert page.evaluate(WIDER) <= 0, name
    page.close()
    assert blocks > 20


@pytest.mark.slow
def test_the_switch_goes_from_the_system_to_light_to_dark_and_is_kept(site, browser):
    page = browser.new_page(color_scheme="dark")
    page.set_default_timeout(WAIT)
    page.goto((site / "index.html").as_uri(), wait_until="load")
    schemes = [page.evaluate(SCHEME)]
    for _ in range(3):
        page.click("[data-md-component=palette] label:not([hidden])")
        schemes.append(page.evaluate(SCHEME))
    assert schemes == ["slate", "default", "slate", "slate"]
    page.click("[data-md-component=palette] label:not([hidden])")
    page.reload(wait_until="load")
    assert page.evaluate(SCHEME) == "default"
    page.close()
