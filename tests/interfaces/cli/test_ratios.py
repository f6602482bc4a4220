"""No ratio of speeds is printed where nothing was drafted, or where the times are not those of an idle machine."""

import json
import re
from itertools import count

import pytest

from drafttree.evaluation.tune import tuning
from helpers.timed_metrics import timed
from testing.command_line import PROMPT, run
from testing.given_times import give_times

RATIO = re.compile(r"\d times|R measured|R predicted|times plain decoding")
NOTHING = "No speed-up shown: nothing was drafted (1.00 tokens per target pass)."
REJECTED = "No speed-up shown: hardly a draft was accepted (1.00 tokens per target pass)."
DISTURBED = (
    "No speed-up shown: other programs disturbed the times (a pass over {} cost {:.2f} plain passes); "
    "run it again when the machine is idle."
)
DRAFTING = {"committed": 2, "nodes": 3, "levels": 2, "draft_passes": 2, "widths": (1, 1)}
CURVE = {"target": {"1": 1.0}, "draft": [{"first": 0.1, "later": {"1": 0.1}}], "overhead": 0.2, "plain_overhead": 0.1}


def costs(row: float = 1.0, tree: float = 1.3):
    """Plain passes take 10 ms; of drafted texts those over one row take `row` of that, and those over trees `tree`."""
    return lambda drafts, rows: 0.01 * (1.0 if not drafts else row if rows == 1 else tree)


def compare(text: str, tokens: int, *options: str):
    drafts = ["--drafter", "lookup", "--policy", "chain", "--dtype", "float32", "--max-new-tokens", tokens]
    result = run("generate", text, *drafts, "--compare", "--repeats", 1, *options)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("text", "tokens", "cost", "line"),
    [
        (PROMPT, 3, costs(), NOTHING),
        (PROMPT, 3, costs(row=0.61), NOTHING),
        ("In the beginning", 16, costs(), REJECTED),
        (PROMPT, 16, costs(row=0.84), DISTURBED.format("one row", 0.84)),
        (PROMPT, 16, costs(row=1.16), DISTURBED.format("one row", 1.16)),
        ("one two three one two three", 48, costs(row=0.9, tree=0.5), DISTURBED.format("{} rows", 0.6)),
    ],
    ids=["no draft", "no draft, disturbed", "no draft accepted", "cheap row", "dear row", "cheap trees"],
)
def test_a_comparison_without_a_ratio(monkeypatch, text, tokens, cost, line):
    give_times(monkeypatch, cost)
    shown = compare(text, tokens)
    said = shown.splitlines()[-1]
    assert re.fullmatch(re.escape(line).replace(r"\{\}", r"[\d.]+").replace("0\\.60", r"0\.\d\d"), said)
    assert not RATIO.search(shown)
    assert "ratio" not in shown


def test_json_says_why_there_is_no_ratio(monkeypatch):
    give_times(monkeypatch, costs(row=0.84))
    report = json.loads(compare(PROMPT, 16, "--json"))["comparison"]
    assert report["verdict"] == DISTURBED.format("one row", 0.84)
    assert report["limit"] is None
    assert {name for name, term in report["law"].items() if term is not None} == {"tau", "delta"}


@pytest.mark.few(1)
@pytest.mark.parametrize(("row", "last"), [(1.0, "R measured"), (1.2, DISTURBED.format("one row", 1.2))])
def test_passes_that_were_recorded_in_timed_texts_are_no_disturbance(monkeypatch, row, last):
    """On a GPU the first pass of a shape takes as long as many; a machine that is slower all the time is told."""
    given, alone = costs(row), count()

    def recording(drafts: bool, rows: int) -> float:
        return 0.06 if drafts and rows == 1 and next(alone) % 5 == 0 else given(drafts, rows)

    give_times(monkeypatch, recording)
    assert last in compare(PROMPT, 16)


@pytest.mark.few(1)
@pytest.mark.parametrize("row", [0.86, 1.0, 1.14])
def test_a_comparison_with_a_ratio(monkeypatch, row):
    give_times(monkeypatch, costs(row))
    shown = compare(PROMPT, 16)
    assert re.search(r"^\d\.\d\d times as fast as plain decoding", shown.splitlines()[-2])
    assert "R measured" in shown


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("cost", "line"),
    [
        (costs(), r"\d\.\d\d times as fast as plain decoding: [\d.]+ tokens/s against 100\.0"),
        (
            costs(row=0.5, tree=0.5),
            r"[\d.]+ tokens/s against 100\.0\. No speed-up shown: other programs disturbed the times \(.+\);.+",
        ),
    ],
    ids=["idle", "disturbed"],
)
def test_the_demo_keeps_its_promise_and_prints_no_ratio_of_disturbed_times(monkeypatch, cost, line):
    give_times(monkeypatch, cost)
    result = run("demo", "--max-new-tokens", 24)
    target, passes, same, speed, *rest = result.stdout.replace("\n\n", "\n").splitlines()
    assert re.fullmatch(
        r"Target: a toy model of 10 M parameters, slowed down to the speed of a 100M model \(float32, \d+ threads?\)\. "
        r"In float32 both ways write the same text\.",
        target,
    )
    assert re.fullmatch(r"24 tokens in \d+ target passes instead of 24", passes)
    assert same == "Both texts are the same, token for token."
    assert re.fullmatch(line, speed)
    assert bool(rest) == bool(RATIO.search(speed))
    assert result.stderr.splitlines() == ["Preparing the demo model ...", "Writing both texts ..."]


@pytest.fixture
def drafted(monkeypatch):
    """What a text of `tune` takes with drafts, beside 1 second without."""
    own: dict = {}
    monkeypatch.setattr(tuning, "measure_costs", lambda decoder, greedy: tuning.MeasuredCosts(CURVE, 0.5))
    monkeypatch.setattr(
        tuning, "time_text", lambda decoder, *_: timed(**(own if decoder.drafter else {"seconds": 1.0}))
    )
    return own


@pytest.mark.few(1)
@pytest.mark.usefixtures("embedded")
@pytest.mark.parametrize(
    ("times", "code", "line"),
    [
        (
            {"seconds": 0.3} | DRAFTING,
            3,
            f"No recommendation, and nothing saved. {DISTURBED.format('3.0 rows', 0.6)}",
        ),
        ({"seconds": 0.61}, 0, f"Do not speculate. {NOTHING}"),
    ],
    ids=["disturbed", "nothing drafted"],
)
def test_tuning_recommends_no_drafter_by_times_that_tell_nothing(drafted, prompts, tmp_path, times, code, line):
    drafted |= times
    saved = tmp_path / "tuned.json"
    options = ["--drafter", "lookup", "--dtype", "float32", "--max-new-tokens", 8, "--save", saved]
    result = run("tune", "--prompts", prompts, *options)
    assert result.exit_code == code
    assert re.sub(r"The best way is .+?\. ", "", result.stdout).splitlines()[:40].count(line) == 1
    assert not RATIO.search(result.stdout)
    assert saved.exists() == (code == 0)
    assert code or '"drafter": null' in saved.read_text()
