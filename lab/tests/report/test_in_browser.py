"""The page of a report in a browser, where there is one: folds, links, sorting by keyboard, and widths."""

import time

import pytest

from drafttree_lab.report.page import write_report
from lab_helpers.kept_results import FIGURES, entry, every_result, judgement, kept, summary, verdict
from testing.browser import CHROMIUM, BrowserPage

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")
METHODS = "[...document.querySelectorAll('table.values tbody th')].map(each => each.textContent)"
SORTED = "document.querySelector('table.values .number.first').ariaSort"
CLAIMS = "[...document.querySelectorAll('#claims tbody tr')].map(row => row.checkVisibility())"
OPEN = "[...document.querySelectorAll('details.result[open] h3')].map(each => each.textContent)"
OPEN_ALL = "document.querySelectorAll('details').forEach(each => each.open = true)"
SEEN = "document.getElementById('talon-3').checkVisibility()"
PLACE = "document.querySelector('details.result[open]').getBoundingClientRect().top"
IN_SIGHT = f"0 <= {PLACE} && {PLACE} < innerHeight"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
HEIGHT = "document.documentElement.scrollHeight"
TABLE = "Table 3: Tokens per round"


def becomes(page, expression, value):
    """Whether an expression has a value before long."""
    deadline = time.monotonic() + 10
    while (found := page.evaluate(expression)) != value and time.monotonic() < deadline:
        time.sleep(0.02)
    return found == value


@pytest.fixture
def opened(tmp_path):
    """Opens the page of a table with two figures in a window of a width."""

    def start(width: int) -> BrowserPage:
        values = [entry("b", 10.0), entry("none", None, 3.0), entry("a", 9.0), entry("c", 100.0)]
        values += [entry("a", 1.0, 2.0, set=f"a set of prompts {number}") for number in range(9)]
        long = judgement("contradicted", said="chain" * 40, reason="tau decides " * 20)
        claims = [verdict(), verdict("undecided", "reproduced", main=False), verdict(long, text="long" * 60)]
        reach = {"a": (38, 60)}
        first = kept(summary(values, verdicts=claims, id="talon/3", notes=["word" * 80], reach=reach, costs="c" * 90))
        others = [kept(own) for own in FIGURES.values()]
        write_report([first, *others[:1], *others[4:5]], tmp_path / "replay.html")
        return BrowserPage(tmp_path / "replay.html", tmp_path / "profile", width)

    return start


@pytest.fixture
def every(tmp_path):
    """Opens the page of all results of the papers in a window of a width."""

    def start(width: int) -> BrowserPage:
        write_report(every_result(), tmp_path / "replay.html")
        return BrowserPage(tmp_path / "replay.html", tmp_path / "profile", width)

    return start


def test_enter_sorts_a_column_up_and_then_down_with_missing_values_last(opened):
    with opened(1280) as page:
        page.evaluate(OPEN_ALL)
        page.evaluate("document.querySelector('table.values .number.first button').focus()")
        page.press("Enter", 13, "\r")
        assert page.evaluate(SORTED) == "ascending"
        assert [name[0] for name in page.evaluate(METHODS)[:4]] == ["a", "b", "c", "n"]
        page.press("Enter", 13, "\r")
        assert page.evaluate(SORTED) == "descending"
        assert [name[0] for name in page.evaluate(METHODS)[:4]] == ["c", "b", "a", "n"]


def test_the_tab_key_leads_first_to_the_claims_and_is_seen(opened):
    with opened(1280) as page:
        page.press("Tab", 9)
        assert page.evaluate("document.activeElement.getAttribute('href')") == "#claims"
        assert page.evaluate("parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2


def test_a_count_shows_only_the_claims_of_its_outcome_and_kind_and_then_all(opened):
    with opened(1280) as page:
        main, further = [True, True], False
        assert page.evaluate(CLAIMS) == [*main, further]
        for kind, shown in (("by_counts", [False, False, True]), ("by_time", [True, True, False])):
            choose = f"document.querySelector('button[data-kind={kind}][data-outcome=undecided]').click()"
            page.evaluate(choose)
            assert page.evaluate(CLAIMS) == shown
            assert page.evaluate("document.getElementById('shown').textContent") == f"{sum(shown)} of 3 claims shown"
            page.evaluate(choose)
            assert page.evaluate(CLAIMS) == [True, True, True]


def test_results_are_closed_and_open_by_the_enter_key(opened):
    with opened(1280) as page:
        assert page.evaluate(OPEN) == []
        page.evaluate("document.querySelector('details.result summary').focus()")
        page.press("Enter", 13, "\r")
        assert page.evaluate(OPEN) == [TABLE]


@pytest.mark.parametrize("has_scripts", [True, False], ids=["with scripts", "without"])
def test_a_link_opens_its_result_and_shows_its_title(opened, has_scripts):
    with opened(1280) as page:
        page.send("Emulation.setScriptExecutionDisabled", value=not has_scripts)
        address = page.evaluate("location.href")
        for each in ("about:blank", f"{address}#talon-3"):
            page.send("Page.navigate", url=each)
        assert becomes(page, OPEN, [TABLE])
        assert becomes(page, IN_SIGHT, True)
        assert page.evaluate("!!document.querySelector('header > button')") == has_scripts


def test_all_results_open_and_close_together(opened):
    with opened(1280) as page:
        for count in (3, 0):
            page.evaluate("document.querySelector('header > button').click()")
            assert len(page.evaluate(OPEN)) == count


def test_closed_results_are_printed_open(opened):
    with opened(1280) as page:
        assert not page.evaluate(SEEN)
        page.send("Emulation.setEmulatedMedia", media="print")
        assert becomes(page, SEEN, True)


@pytest.mark.parametrize(("width", "screens"), [(1280, 8), (420, 14)])
def test_the_page_of_all_results_is_some_screens_tall(every, width, screens):
    with every(width) as page:
        assert page.evaluate(HEIGHT) < 900 * screens


@pytest.mark.parametrize("width", [1280, 420])
def test_the_page_is_no_wider_than_the_window(opened, width):
    with opened(width) as page:
        assert page.evaluate("innerWidth") == width
        assert page.evaluate(OVERFLOW) == 0
        page.evaluate(OPEN_ALL)
        assert page.evaluate(OVERFLOW) == 0


def test_on_a_phone_claims_are_cards_and_values_scroll_to_their_last_column(opened):
    with opened(420) as page:
        page.evaluate(OPEN_ALL)
        wide = "[...document.querySelectorAll('.claims')].every(each => each.parentNode.scrollWidth <= innerWidth)"
        assert page.evaluate(wide)
        page.evaluate("wide = document.querySelector('table.values').parentNode; wide.scrollLeft = 1e6; 0")
        ends = "[...document.querySelectorAll('table.values tbody tr:first-child > *')].map(each => {"
        ends += "const box = each.getBoundingClientRect(); return [box.left, box.right]})"
        cells = page.evaluate(f"{ends}.slice(0, wide.querySelector('tbody tr').cells.length)")
        assert cells[0][0] >= 0  # the method stays
        assert cells[0][1] < 420 / 2
        assert cells[-1][0] >= cells[0][1]
        assert cells[-1][1] <= 420
