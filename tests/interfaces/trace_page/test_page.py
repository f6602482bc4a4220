"""The page of a trace: one file with everything in it, whatever the text is; in a browser, where there is one."""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path

import pytest

from drafttree.errors import InputError
from drafttree.interfaces.trace_page.output import check_output
from drafttree.interfaces.trace_page.page import pack, render
from helpers.traces import hand_trace

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
in_a_browser = pytest.mark.skipif(BROWSER is None, reason="no Chromium")
NASTY = ("</script><script>alert(1)</script>", "<!--<script>", "\u2028 & \"'<b>\U0001f642")


class Page(HTMLParser):
    """The elements of a page with their attributes, and what its scripts hold."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self._inside = False
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
            self._inside = True

    def handle_endtag(self, tag):
        self._inside = self._inside and tag != "script"

    def handle_data(self, data):
        if self._inside:
            self.scripts[-1] += data


def nasty_trace():
    return hand_trace(NASTY, prompt="</script> &amp; <!--")


def test_the_data_come_back_from_the_page_whatever_the_tokens_are():
    trace = nasty_trace()
    page = Page(render(trace))
    assert len(page.scripts) == 2
    read = json.loads(page.scripts[0])
    assert read == json.loads(json.dumps(pack(trace)))
    assert read["pieces"] == trace.pieces
    assert read["prompt"] == trace.prompt


def test_a_packed_node_has_its_text_its_place_and_its_probabilities():
    packed = pack(hand_trace())
    text, token, parent, rank, outcome, rule, draft, target = packed["rounds"][0]["n"][3]
    assert packed["strings"][text] == " cat"
    assert (token, parent, rank, draft, target) == (ord(" "), 1, 0, 0.75, 0.25)
    assert (packed["outcomes"][outcome], packed["rules"][rule]) == ("rejected", "depth")


def test_nothing_is_fetched_from_elsewhere():
    page = render(hand_trace())
    attributes = [attributes for _, attributes in Page(page).elements]
    assert not any({"src", "href"} & each.keys() for each in attributes)
    assert set(re.findall(r"https?://[^\"'\s)]+", page)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(", page)


def test_what_is_moved_by_hand_has_a_name_for_those_who_do_not_see_it():
    elements = Page(render(hand_trace())).elements
    named = [each for tag, each in elements if tag in ("input", "button") and each.get("type") != "checkbox"]
    assert len(named) == 4
    assert all("aria-label" in each or each.get("id") == "play" for each in named)
    scrolled = [each for _, each in elements if each.get("tabindex") == "0"]
    assert scrolled
    assert all(each.get("aria-label") and each.get("role") == "group" for each in scrolled)


def test_five_hundred_rounds_make_a_page_of_a_few_megabytes():
    trace = hand_trace()
    many = type(trace)(**{**vars(trace), "rounds": trace.rounds * 250, "pieces": trace.pieces * 250})
    assert len(render(many)) < 300_000


def test_an_output_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"is a folder; name a file in it, such as .*trace\.html"):
        check_output(tmp_path)
    with pytest.raises(InputError, match="its folder does not exist"):
        check_output(tmp_path / "nowhere" / "trace.html")
    check_output(tmp_path / "trace.html")


def drawn(page: str, folder: Path, place: str = "") -> str:
    """What a browser makes of a page."""
    path = folder / "trace.html"
    path.write_text(page, encoding="utf-8")
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder / 'profile'}", "--dump-dom"]
    command = [BROWSER, *options, path.as_uri() + place]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout


@in_a_browser
@pytest.mark.parametrize("number", [1, 2])
def test_a_browser_draws_the_round_that_is_asked_for(tmp_path, number):
    dom = drawn(render(nasty_trace()), tmp_path, f"#round={number}")
    assert f'<output id="number" for="slider">{number} of 2</output>' in dom
    assert dom.count('<g class="item ') == {1: 6, 2: 2}[number]
    assert dom.count('<g class="item bonus') == 1
    assert len(Page(dom).scripts) == 2


@in_a_browser
@pytest.mark.parametrize(("keys", "number"), [(["ArrowRight"], 2), (["End", "ArrowLeft"], 1), (["End", "Home"], 1)])
def test_keys_choose_the_round(tmp_path, keys, number):
    press = "document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}))"
    script = f"<script>for (const key of {json.dumps(keys)}) {press};</script></body>"
    dom = drawn(render(hand_trace()).replace("</body>", script), tmp_path)
    assert f'<output id="number" for="slider">{number} of 2</output>' in dom
