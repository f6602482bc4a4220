"""The whole map on toy models: counts that repeat, points that follow from them, resuming."""

import pytest

from drafttree.measure.run_store import RUNS, RunStore
from drafttree_lab.winner_map import winner_map
from drafttree_lab.winner_map.published import PLAIN, families
from drafttree_lab.winner_map.winner_map import GridCosts, cost_grid, count_steps, policies, run_map
from testing.small_trees import TARGET
from testing.toy import greedy_text
from winner_map.conftest import LENGTH, PROMPTS

AGREEMENTS = (0.5, 0.8)


@pytest.fixture(autouse=True)
def few_points(monkeypatch):
    """A map of two agreements and two costs."""
    costs = [GridCosts(0.1, 0.0), GridCosts(0.4, 0.07)]
    monkeypatch.setattr(winner_map, "AGREEMENTS", AGREEMENTS)
    monkeypatch.setattr(winner_map, "cost_grid", lambda: costs)


def test_points_follow_from_the_kept_counts(make_runs):
    runs, steps = make_runs(), []
    found = run_map(runs, steps.append)
    assert len(steps) == count_steps(len(PROMPTS)) == 2 * (len(policies()) * 3 + 2)
    assert [(each.agreement, each.costs) for each in found.points] == [
        (agreement, costs) for costs in winner_map.cost_grid() for agreement in AGREEMENTS
    ]
    for point in found.points:
        for name, settings in families().items():
            speeds = {}
            for policy in settings:
                texts = [runs.counts(runs.grade(point.agreement), policy, prompt) for prompt in PROMPTS]
                rounds = [each for text in texts for each in zip(text.nodes, text.passes, strict=True)]
                spent = sum(1 + point.costs.slope * (n - 1) + point.costs.draft * passes for n, passes in rounds)
                speeds[policy] = sum(len(text.tokens) for text in texts) / spent
            assert point.entrants[name].speedup == pytest.approx(max(speeds.values()))
            assert speeds[point.entrants[name].setting] == pytest.approx(max(speeds.values()))
        assert point.best == max(each.speedup for each in point.entrants.values()) >= 1
        assert point.entrants[PLAIN].speedup == 1
        assert point.share == point.auto / point.best


def test_every_text_is_plain_decodings(make_runs):
    runs = make_runs()
    found = run_map(runs)
    assert found.differing == 0
    expected = [greedy_text(TARGET, prompt, LENGTH) for prompt in PROMPTS]
    assert [runs.plain(prompt).tokens for prompt in PROMPTS] == expected
    for costs in winner_map.cost_grid():
        texts = runs.auto_counts(runs.grade(0.5), costs)
        assert [text.tokens for text in texts] == expected


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
    assert half.points == [point for point in whole.points if point.agreement == AGREEMENTS[0]]


def test_nothing_counted_is_an_empty_map(make_runs, tmp_path):
    found = run_map(make_runs(RunStore(tmp_path / "out", {}, partial=True, minutes=-1)))
    assert found.points == found.pairs == found.grades == []
    assert {each.verdict for each in found.answers} == {"not counted"}


def test_auto_learns_from_text_to_text_and_from_no_clock(make_runs):
    runs = make_runs()
    costs = cost_grid()[0]
    grade = runs.grade(0.8)
    assert runs.auto_counts(grade, costs) == make_runs().auto_counts(grade, costs)
