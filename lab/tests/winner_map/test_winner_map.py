"""The whole map on toy models: counts that repeat, points that follow from them, resuming."""

from dataclasses import replace
from itertools import product

import pytest

from drafttree.measure.run_store import RUNS, RunStore
from drafttree_lab.graded import CONFIDENCES
from drafttree_lab.winner_map import winner_map
from drafttree_lab.winner_map.published import PLAIN, families
from drafttree_lab.winner_map.winner_map import cost_grid, count_steps, policies, run_map
from testing.small_trees import TARGET
from testing.toy import greedy_text
from winner_map.conftest import LENGTH, PROMPTS

AGREEMENTS = (0.5, 0.8)


@pytest.fixture(autouse=True)
def few_points(monkeypatch):
    """A map of two agreements and two costs."""
    costs = [(0.1, 0.0), (0.4, 0.07)]
    monkeypatch.setattr(winner_map, "AGREEMENTS", AGREEMENTS)
    monkeypatch.setattr(winner_map, "cost_grid", lambda: costs)


@pytest.mark.slow
def test_points_follow_from_the_kept_counts(make_runs):
    runs, steps = make_runs(), []
    found = run_map(runs, steps.append)
    assert len(steps) == count_steps(len(PROMPTS)) == 2 * (3 * len(policies()) * 3 + 2)
    places = product(winner_map.cost_grid(), AGREEMENTS, CONFIDENCES)
    assert [((each.draft_cost, each.slope), each.agreement, each.confidence) for each in found.points] == [*places]
    for point in found.points:
        for name, settings in families().items():
            speeds = {}
            for policy in settings:
                grade = runs.grade(point.agreement)
                texts = [runs.counts(grade, point.confidence, policy, prompt) for prompt in PROMPTS]
                rounds = [each for text in texts for each in zip(text.nodes, text.passes, strict=True)]
                spent = sum(1 + point.slope * (n - 1) + point.draft_cost * passes for n, passes in rounds)
                speeds[policy] = sum(len(text.tokens) for text in texts) / spent
            assert point.speedups[name] == pytest.approx(max(speeds.values()))
            assert speeds[point.settings[name]] == pytest.approx(max(speeds.values()))
        first, second, *_ = point.speedups
        assert point.best == point.speedups[point.winner] == max(point.speedups.values()) >= 1
        assert point.winner == first
        assert point.lead.value == pytest.approx(point.best / point.speedups[second])
        assert point.tied_with == (second if point.lead.p > 0.05 else None)
        assert point.speedups[PLAIN] == 1
        if point.confidence == "calibrated":
            assert point.share == point.auto / point.best
        else:
            assert point.share is point.auto is None
    assert {point.tied_with is None for point in found.points} == {True, False}


def test_confidence_changes_how_sure_a_drafter_is_and_none_of_its_best_tokens(make_runs):
    runs = make_runs()
    grade = runs.grade(0.8)
    over, calibrated, under = runs.confidences(grade)
    assert calibrated == pytest.approx(grade.confidence)
    assert over > calibrated > under
    texts = {
        policy: [runs.counts(grade, name, policy, PROMPTS[0]) for name in CONFIDENCES] for policy in ("chain", "talon")
    }
    assert texts["chain"][0] == texts["chain"][1] == texts["chain"][2]
    over, calibrated, under = (sum(each.nodes) / len(each.nodes) for each in texts["talon"])
    assert over < calibrated < under


@pytest.mark.slow
def test_every_text_is_plain_decodings(make_runs):
    runs = make_runs()
    found = run_map(runs)
    assert found.differing == 0
    expected = [greedy_text(TARGET, prompt, LENGTH) for prompt in PROMPTS]
    assert [runs.plain(prompt).tokens for prompt in PROMPTS] == expected
    for costs in winner_map.cost_grid():
        texts = runs.auto_counts(runs.grade(0.5), *costs)
        assert [text.tokens for text in texts] == expected


@pytest.mark.slow
def test_it_goes_on_from_what_is_kept(make_runs, tmp_path):
    store = RunStore(tmp_path / "out", {}, partial=True)
    runs = make_runs(store)
    steps, half_way = [], count_steps(len(PROMPTS)) // 2 + 5

    def interrupt(name):
        steps.append(name)
        if len(steps) == half_way:
            raise KeyboardInterrupt

    half = run_map(runs, interrupt)
    assert store.interrupted
    assert {point.agreement for point in half.points} == {AGREEMENTS[0]}
    kept = (tmp_path / "out" / RUNS).read_text()
    whole = run_map(make_runs(RunStore(tmp_path / "out", {}, partial=True)))
    assert (tmp_path / "out" / RUNS).read_text().startswith(kept)
    assert whole == run_map(make_runs())
    finished = [point for point in whole.points if point.agreement == AGREEMENTS[0]]
    assert half.points == [replace(point, auto=None, share=None) for point in finished]


def test_nothing_counted_is_an_empty_map(make_runs, tmp_path):
    found = run_map(make_runs(RunStore(tmp_path / "out", {}, partial=True, minutes=-1)))
    assert found.points == found.pairs == found.grades == []
    assert {each.verdict for each in found.questions} == {"not counted"}


def test_auto_learns_from_text_to_text_and_from_no_clock(make_runs):
    runs = make_runs()
    costs = cost_grid()[0]
    grade = runs.grade(0.8)
    assert runs.auto_counts(grade, *costs) == make_runs().auto_counts(grade, *costs)
