"""The page of a report in a browser, where there is one: tables sort by keyboard, nothing runs over."""

import pytest

from drafttree_lab.report import write_report
from helpers.browser import CHROMIUM, BrowserPage
from lab_helpers.kept_results import FIGURES, entry, kept, summary, verdict

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
METHODS = "[...document.querySelectorAll('table.values tbody th')].map(each => each.textContent)"
SORTED = "document.querySelector('table.values .number.first').ariaSort"
CLAIMS = "[...document.querySelectorAll('#all-claims tbody tr')].map(row => row.checkVisibility())"


@pytest.fixture
def opened(tmp_path):
    """Opens the page of a table with every figure in a window of a width."""

    def start(width: int) -> BrowserPage:
        values = [entry("b", 10.0), entry("none", None, 3.0), entry("a", 9.0), entry("c", 100.0)]
        claims = [verdict(), verdict(outcome="undecided"), verdict(text="long" * 60)]
        first = kept(summary(values, verdicts=claims, id="talon/3", notes=["word" * 80]))
        others = [kept(own) for own in FIGURES.values()]
        write_report([first, *others[:1], *others[4:5]], tmp_path / "replay.html")
        return BrowserPage(tmp_path / "replay.html", tmp_path / "profile", width)

    return start


def test_enter_sorts_a_column_up_and_then_down_with_missing_values_last(opened):
    with opened(1280) as page:
        page.evaluate("document.querySelector('table.values .number.first button').focus()")
        page.press("Enter", 13, "\r")
        assert page.evaluate(SORTED) == "ascending"
        assert page.evaluate(METHODS)[:4] == ["a", "b", "c", "none"]
        page.press("Enter", 13, "\r")
        assert page.evaluate(SORTED) == "descending"
        assert page.evaluate(METHODS)[:4] == ["c", "b", "a", "none"]


def test_the_tab_key_leads_first_to_the_claims_and_is_seen(opened):
    with opened(1280) as page:
        page.press("Tab", 9)
        assert page.evaluate("document.activeElement.getAttribute('href')") == "#claims"
        assert page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2


def test_a_verdicts_count_shows_only_its_claims_and_then_all(opened):
    with opened(1280) as page:
        choose = "document.querySelector('button[data-outcome=undecided]').click()"
        page.evaluate(choose)
        assert page.evaluate(CLAIMS) == [False, True, False]
        page.evaluate(choose)
        assert page.evaluate(CLAIMS) == [True, True, True]


@pytest.mark.parametrize("width", [1280, 420])
def test_the_page_is_no_wider_than_the_window(opened, width):
    with opened(width) as page:
        assert page.evaluate("innerWidth") == width
        assert page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
