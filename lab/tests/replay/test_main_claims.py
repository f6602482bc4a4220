"""Main claims are corrected for their number, over all results together."""

from dataclasses import replace

import pytest

from drafttree_lab.replay import judge
from drafttree_lab.replay.judge import Judgement, Verdict, count_main_claims
from drafttree_lab.replay.results import correct_main_claims, summarise
from lab_helpers.replay_cells import measured


@pytest.fixture
def summary(experiment):
    """A result with a claim for each p-value, main but for the last."""
    empty = summarise(measured(experiment, {"a": [], "b": []}), ended=None, done=0, tasks=0)

    def make(name, *values):
        verdicts = [
            Verdict(f"{place}", "so", 1, place < len(values) - 1, Judgement("reproduced", "x", 2.0, 1.5, 2.5, p), None)
            for place, p in enumerate(values)
        ]
        return replace(empty, id=name, verdicts=verdicts)

    return make


def outcomes(results):
    return [[verdict.by_counts.outcome for verdict in each.verdicts] for each in results]


def test_there_are_sixteen():
    assert count_main_claims() == 16


def test_claims_of_all_results_are_corrected_together_and_others_are_not(summary, monkeypatch):
    monkeypatch.setattr(judge, "count_main_claims", lambda: 4)
    results = [summary("one/1", 0.012, 0.04), summary("two/1", 0.02, 0.04)]
    # Holm for four: 4 * 0.012 = 0.048, 3 * 0.02 = 0.06
    assert outcomes(correct_main_claims(results)) == [["reproduced", "reproduced"], ["undecided", "reproduced"]]
    # together with a third claim that is surer, the second is less of a burden: 4 * 0.001, 3 * 0.012, 2 * 0.02
    results.append(summary("three/1", 0.001, 0.04))
    assert outcomes(correct_main_claims(results)) == [["reproduced", "reproduced"]] * 3


def test_times_and_counts_are_corrected_apart(summary, monkeypatch):
    monkeypatch.setattr(judge, "count_main_claims", lambda: 2)
    (one,) = [summary("one/1", 0.02, 0.04)]
    (first, other) = one.verdicts
    timed = replace(one, verdicts=[replace(first, by_time=replace(first.by_counts, p=0.03)), other])
    (found,) = correct_main_claims([timed])
    assert (found.verdicts[0].by_counts.outcome, found.verdicts[0].by_time.outcome) == ("reproduced", "undecided")
