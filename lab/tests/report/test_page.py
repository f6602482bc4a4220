"""The page of a report: every number, interval and verdict on it, nothing from elsewhere, whatever the names are."""

import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import get_args

import pytest

from drafttree.errors import InputError
from drafttree_lab.replay.judge import Outcome
from drafttree_lab.replay.measured import Value
from drafttree_lab.replay.paper import UNITS, Metric
from drafttree_lab.replay.results import read_results
from drafttree_lab.report.notation import decimals, number, printed, result_name
from drafttree_lab.report.page import OUTCOMES, make_grids, place_strip, render, write_report
from lab_helpers.kept_results import FIGURES, HOSTILE, entry, judgement, kept, renamed, summary, verdict

UNSURE = judgement("undecided", needed=44)


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.words).split())


def table():
    """A table with a claim."""
    entries = [entry("chain", 2.0, 3.25), entry("tree", 40.0, 5.5), entry("tree", 123.456, None, set="QA")]
    return kept(summary(entries, verdicts=[verdict(), verdict("contradicted", UNSURE)], notes=["A note."]))


def every_figure():
    return [kept(replace(own, id=f"talon/{kind}")) for kind, own in FIGURES.items()]


def test_a_table_has_our_means_and_intervals_beside_the_papers_numbers_and_model():
    text = Page(render([table()])).text
    assert "chain 2.00 1.80 to 2.20 3.25 tree 40.00 36.00 to 44.00 5.50 123.5 111.1 to 135.8" in text
    assert "tau, tokens per target pass · paper: Vicuna-13B" in text


def test_models_stand_beside_the_numbers_where_there_are_several():
    own = summary([entry("chain", 2.0, 3.5), entry("tree", 4.0, 5.5, model="Llama3-8B")])
    text = Page(render([kept(own)])).text
    assert "3.5 Vicuna-13B" in text
    assert "5.5 Llama3-8B" in text


def test_a_number_of_one_prompt_has_no_interval():
    alone = replace(entry("chain", 3.43), measured=Value(3.43, None, None, 1))
    law = entry("tree", 2.5, metric="speedup", by_law=Value(2.15, None, None, 1))
    text = Page(render([kept(summary([alone, law]))])).text
    assert "chain 3.43 speed-up" in text
    assert "R 2.15" in text
    assert "3.43 to" not in text
    assert "2.15 to" not in text


def test_claims_stand_with_both_judgements_intervals_and_prompts_that_would_decide():
    page = Page(render([table()]))
    assert page.text.count("A tree is faster") == 4
    assert "tree / chain 1.25 [1.10, 1.40]; about 44 prompts would decide" in page.text
    chips = [own for tag, own in page.elements if tag == "span" and "chip" in (own.get("class") or "").split()]
    strips = [own for tag, own in page.elements if tag == "svg" and own.get("class") == "strip"]
    assert len(chips) == 2 * 4 + len(OUTCOMES)  # among the claims and in the result, and where they are explained
    assert len(strips) == 2 * 4


def test_the_header_counts_outcomes_by_costs_and_by_time():
    text = Page(render([table()])).text
    assert "With our drafters 1 reproduced 1 contradicted On this machine 2 undecided" in text


def test_a_contradiction_tells_its_reason():
    told = verdict(judgement("contradicted", reason="v(n) decides (tree: tau 2.00)"), None)
    assert "Why: v(n) decides (tree: tau 2.00)" in Page(render([kept(summary([], verdicts=[told]))])).text


def test_results_are_named_in_words_and_say_when_nothing_was_measured():
    own = summary([entry("tree", None)], id="dynatree-v1/fig3a", title="Speed-up by depth")
    text = Page(render([table(), kept(own)])).text
    assert text.count("Figure 3a: Speed-up by depth not measured") == 2  # among the contents, and its line
    assert "Table 1: Tokens per round not measured" not in text


def test_a_speed_that_was_counted_and_not_timed_is_shown_with_its_law():
    own = summary([entry("tree", None, metric="speedup", by_law=Value(2.35, 2.0, 3.0, 5))])
    text = Page(render([kept(own)])).text
    assert "tree R 2.35 2.00 to 3.00" in text
    assert "not measured" not in text
    assert "speed-up tau (1 + h0) / (v + c delta + h) by counts" in text


def test_a_budget_that_never_binds_is_told_beside_its_method():
    own = summary([entry("tree", 4.0), entry("chain", 2.0)], reach={"tree": (38, 60)})
    assert "tree at most 38 of 60 nodes 4.00" in Page(render([kept(own)])).text


def test_the_costs_of_passes_are_told():
    assert "Costs: measured here" in Page(render([kept(summary([], costs="costs: measured here"))])).text


def test_how_to_read_verdicts_is_told():
    text = Page(render([table()])).text
    for word in ("Student's t", "jackknife", "Holm's method", "10 prompts", "a number that the paper leaves open"):
        assert word in text


def test_command_environment_notes_and_progress_are_told():
    text = Page(render([table()])).text
    assert "drafttree replay talon/1 --limit 3" in text
    assert "device x86_64" in text
    assert "A note." in text
    assert "3 of 4 turns done" in text


def test_methods_that_were_not_run_are_named_with_the_reason():
    own = summary([entry("tree", 4.0)], missing={"Medusa": "no drafter"})
    assert "Medusa was not run: no drafter" in Page(render([kept(own)])).text


def test_speed_ups_by_the_law_are_told():
    own = summary([entry("tree", 0.5, metric="speedup", by_law=Value(2.345, 2.0, 3.0, 5))])
    assert "0.50 0.45 to 0.55 R 2.35 2.00 to 3.00" in Page(render([kept(own)])).text


def test_all_blocks_of_the_paper_are_on_the_page_of_its_table():
    text = Page(render([kept(summary([], id="talon/1"))])).text
    assert "All that the paper prints: 10 blocks of numbers" in text
    assert "Qwen3-32B , T = 0 · line 257" in text


def test_errors_of_the_paper_stand_behind_its_numbers():
    assert re.search(r"133\.4 ± [\d.]+", Page(render([kept(summary([], id="dynatree-v2/1"))])).text)


def test_a_result_without_cells_says_so_and_has_no_empty_table():
    page = render([kept(summary([entry("tree", None)], id="talon/2"))])
    assert "Nothing of this was measured here." in page
    assert "values" not in {name for _, own in Page(page).elements for name in (own.get("class") or "").split()}


@pytest.mark.few(3)
@pytest.mark.parametrize("own", FIGURES.values(), ids=FIGURES)
def test_nothing_of_a_name_becomes_markup(own):
    said = judgement("contradicted", said=HOSTILE, reason=HOSTILE)
    told = {"verdicts": [verdict(said, said, text=HOSTILE)], "notes": [HOSTILE], "missing": {HOSTILE: HOSTILE}}
    hostile = replace(renamed(own, HOSTILE), **told, costs=HOSTILE, reach={HOSTILE + "tree": (3, 4)})
    result = replace(kept(hostile), command=HOSTILE, environment={HOSTILE: HOSTILE})
    page = render([result])
    assert [tag for tag, _ in Page(page).elements].count("script") == 1
    assert page.count("<script") == 1
    assert HOSTILE in Page(page).text


def test_ids_are_unique_and_links_lead_to_them():
    elements = Page(render(every_figure())).elements
    ids = [own["id"] for _, own in elements if "id" in own]
    links = [own["href"] for tag, own in elements if tag == "a"]
    assert len(ids) == len(set(ids))
    assert len(links) > 6
    assert {link for link in links if link} <= {f"#{each}" for each in ids}


def test_nothing_is_loaded_from_elsewhere():
    page = render(every_figure())
    assert not any("src" in own for _, own in Page(page).elements)
    assert not re.search(r"@import|url\((?!#)", page)
    assert set(re.findall(r"https?://[^\"'\s)]+", page)) == {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }


def test_what_scrolls_can_be_reached_by_keyboard_and_has_a_name():
    scrolled = [own for _, own in Page(render(every_figure())).elements if "wide" in (own.get("class") or "").split()]
    assert len(scrolled) > 6
    assert all(own["tabindex"] == "0" and own["role"] == "region" and own["aria-label"] for own in scrolled)


def test_a_page_that_cannot_be_written_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"cannot be written: .*; name another with -o"):
        write_report([table()], tmp_path / "nowhere" / "replay.html")


def test_a_folder_without_results_is_refused(tmp_path):
    with pytest.raises(InputError, match="the folder has no results of a replay; run drafttree replay with --out"):
        read_results(tmp_path / "nowhere")


def test_a_broken_result_is_refused_by_its_file(tmp_path):
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "talon-1.json").write_text('{"summary": 1, "format": 3}')
    with pytest.raises(InputError, match=r"talon-1\.json: this is not a result of a replay; remove the file"):
        read_results(tmp_path)


def test_columns_tell_temperature_and_value_of_the_axis_once():
    assert entry("tree", 1.0, temperature=0.2, value=0.2).column == "Alpaca, T = 0.2"
    assert entry("tree", 1.0, value=400).column == "Alpaca, 400"
    assert entry("tree", 1.0, set="", value="vocab=32000").column == "vocab=32000"
    assert entry("tree", None, 1.0, set="untold").column == "set not told"


def test_a_column_that_only_the_paper_has_has_no_place_for_ours():
    grid = make_grids(summary([entry("tree", 2.0), entry("tree", None, 3.0, set="average")]))[0]
    assert grid.columns == {"Alpaca": (True, False), "average": (False, True)}


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0.00"), (0.0123, "0.012"), (-6.407, "-6.41"), (99.994, "99.99"), (115.69, "115.7"), (6156.7, "6157")],
)
def test_measured_numbers_have_the_digits_that_are_of_use(value, text):
    assert number(value) == text


def test_published_numbers_have_the_decimals_of_the_most_exact_one():
    values = [1.5, 1.25, float("nan"), 3.0]
    assert decimals(values) == 2
    assert [printed(value, 2) for value in values] == ["1.50", "1.25", "", "3.00"]


@pytest.mark.parametrize(
    ("result", "name"),
    [
        ("talon/1", "Table 1"),
        ("dynatree-v1/fig3a", "Figure 3a"),
        ("traversal/2-speed", "Table 2, speed"),
        ("dynatree-v1/sweep", "Sweep"),
    ],
)
def test_results_have_the_names_by_which_papers_refer_to_them(result, name):
    assert result_name(result) == name


def test_every_metric_has_its_unit():
    assert UNITS.keys() == set(get_args(Metric))


def test_every_outcome_is_explained():
    assert OUTCOMES.keys() == set(get_args(Outcome))


def test_ratios_lie_on_a_logarithmic_scale_from_two_thirds_to_three_halves():
    assert place_strip(judgement(estimate=1.0, low=2 / 3, high=1.5)) == (0.0, 50.0, 100.0)
    assert place_strip(judgement(estimate=1.5**0.5, low=0.01, high=9.0)) == (0.0, 75.0, 100.0)


def test_kendalls_tau_lies_on_a_scale_from_minus_one_to_one():
    assert place_strip(judgement(estimate=0.5, low=-0.2, high=1.0, is_order=True)) == (40.0, 75.0, 100.0)


@pytest.mark.parametrize(("estimate", "side"), [(0.3, "-"), (1.1, ""), (2.5, "+")])
def test_an_estimate_beyond_the_scale_is_pointed_at(estimate, side):
    page = render([kept(summary([], verdicts=[verdict(judgement(estimate=estimate), None)]))])
    (strip, *_) = re.findall('<svg class="strip".*?</svg>', page)
    assert ("<circle" in strip) == (side == "")
    assert ("l5 3.5 l-5 3.5z" in strip, "l-5 3.5 l5 3.5z" in strip) == (side == "+", side == "-")


def test_a_judgement_without_an_interval_has_no_scale():
    assert place_strip(judgement(estimate=None, low=None, high=None)) is None
