"""Claims are corrected for their number, over all results of a paper, and each datum counts once."""

from dataclasses import replace

import pytest

from drafttree_lab.replay import judge
from drafttree_lab.replay.judge import Judgement, Verdict
from drafttree_lab.replay.paper_files import measurable_claims, paper_names, read_paper
from drafttree_lab.replay.results import correct_claims, summarise
from lab_helpers.replay_cells import measured


@pytest.fixture
def summary(experiment):
    """A result with a claim for each p-value; a datum may be given with it."""
    empty = summarise(measured(experiment, {"a": [], "b": []}), end_reason=None, done=0, tasks=0)

    def make(name, *values):
        verdicts = [
            Verdict(f"{place}", "so", 1, True, None, judgement(each), None) for place, each in enumerate(values)
        ]
        return replace(empty, id=name, verdicts=verdicts)

    return make


def judgement(value):
    p, datum = value if isinstance(value, tuple) else (value, None)
    return Judgement("reproduced", "x", 2.0, 1.5, 2.5, p, 12, datum=datum)


def outcomes(results):
    return [[verdict.by_counts.outcome for verdict in each.verdicts] for each in results]


def test_claims_that_can_be_judged_are_counted_of_all_papers():
    claims = [
        claim
        for paper in paper_names()
        for result in read_paper(paper).results.values()
        for claim in result.claims
        if claim.kind != "not_comparable" and not result.unavailable
    ]
    counted, timed = measurable_claims(paper_names(), False), measurable_claims(paper_names(), True)
    assert max(counted, timed) < len(claims) < counted + timed  # those on speed are judged in both ways


def test_claims_of_all_results_of_a_paper_are_corrected_together(summary, monkeypatch):
    monkeypatch.setattr(judge, "measurable_claims", lambda papers, timed: 4)
    results = [summary("one/1", 0.012), summary("one/2", 0.02)]
    # Holm for four: 4 * 0.012 = 0.048, 3 * 0.02 = 0.06
    assert outcomes(correct_claims(results)) == [["reproduced"], ["undecided"]]
    # together with a third claim that is surer, the second is less of a burden: 4 * 0.001, 3 * 0.012, 2 * 0.02
    results.append(summary("one/3", 0.001))
    assert outcomes(correct_claims(results)) == [["reproduced"]] * 3


def test_each_paper_is_a_family_and_the_joint_figure_stands_beside(summary, monkeypatch):
    monkeypatch.setattr(judge, "measurable_claims", lambda papers, timed: 10 * len(papers))
    found = correct_claims([summary("one/1", 0.004), summary("two/1", 0.002), summary("three/1", 0.01)])
    own = [each.verdicts[0].by_counts for each in found]
    assert [(each.outcome, each.claims) for each in own] == [("reproduced", 10), ("reproduced", 10), ("undecided", 10)]
    # jointly 30 claims: 30 * 0.002, 29 * 0.004, 28 * 0.01
    assert [each.joint for each in own] == pytest.approx([0.116, 0.06, 0.28])
    assert own[0].said == "x; p is 0.04 with Holm's correction for 10 claims of the paper, 0.12 for 30 of all papers"


def test_a_single_paper_has_no_joint_figure(summary, monkeypatch):
    monkeypatch.setattr(judge, "measurable_claims", lambda papers, timed: 10 * len(papers))
    (found,) = correct_claims([summary("one/1", 0.004)])
    assert (found.verdicts[0].by_counts.joint, found.verdicts[0].by_counts.said) == (None, "x")


def test_of_claims_on_one_datum_the_first_counts_and_the_others_point_to_it(summary, monkeypatch):
    monkeypatch.setattr(judge, "measurable_claims", lambda papers, timed: 3)
    results = [summary("one/1", (0.02, "same"), 0.024), summary("one/2", (0.02, "same"))]
    # two are counted: 2 * 0.02 and 0.024; three would take 3 * 0.02
    first, second = correct_claims(results)
    assert outcomes([first, second]) == [["reproduced", "reproduced"], ["reproduced"]]
    own = [each.by_counts for each in (*first.verdicts, *second.verdicts)]
    assert [(each.repeats, each.repeated) for each in own] == [(None, ""), (None, ""), ("one/1", "0")]
    assert {each.claims for each in own} == {2}


def test_ratios_of_the_same_texts_that_differ_by_less_than_their_error_shows_are_one_datum():
    found = Judgement("reproduced", "x", 1.20, 1.10, 1.31, 0.01, 12, datum="these texts")
    assert found.is_datum_of(replace(found, estimate=1.21))
    assert found.is_datum_of(replace(found, estimate=1 / 1.2))
    assert not found.is_datum_of(replace(found, estimate=1.24))
    assert not found.is_datum_of(replace(found, datum="others"))
    assert not replace(found, datum=None).is_datum_of(replace(found, datum=None))


def test_a_paper_from_outside_is_a_family_of_its_own(summary, monkeypatch):
    monkeypatch.setattr(judge, "measurable_claims", lambda papers, timed: 10 * len(papers))
    monkeypatch.setattr(judge, "outside_file", lambda name: name == "mine" or None)
    results = [summary("one/1", 0.002), summary("two/1", 0.002), summary("mine/1", 0.004)]
    found = correct_claims(results)
    own = [each.verdicts[0].by_counts for each in found]
    assert [each.claims for each in own] == [10, 10, 10]
    assert [each.joint for each in own] == [pytest.approx(0.04), pytest.approx(0.04), None]


def test_times_and_counts_are_corrected_apart(summary, monkeypatch):
    monkeypatch.setattr(judge, "measurable_claims", lambda papers, timed: 2)
    (one,) = [summary("one/1", 0.02)]
    (first,) = one.verdicts
    timed = replace(one, verdicts=[replace(first, by_time=replace(first.by_counts, p=0.03))])
    (found,) = correct_claims([timed])
    assert (found.verdicts[0].by_counts.outcome, found.verdicts[0].by_time.outcome) == ("reproduced", "undecided")
