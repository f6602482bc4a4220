"""The main claims of all papers, corrected for their number."""

from collections.abc import Sequence
from dataclasses import replace

from drafttree_lab.replay.holm import holm
from drafttree_lab.replay.paper import paper_names, read_paper
from drafttree_lab.replay.summary import ResultSummary
from drafttree_lab.replay.verdict import Judgement, Verdict, correct

KINDS = ("by_counts", "by_time")
GROUPS = ("verdicts", "not_looping")


def count_main_claims() -> int:
    """How many claims of all papers are main ones."""
    results = (result for paper in paper_names() for result in read_paper(paper).results.values())
    return sum(claim.main for result in results for claim in result.claims)


def correct_main_claims(results: Sequence[ResultSummary]) -> list[ResultSummary]:
    """Results whose main claims are decided by p-values with Holm's correction.

    Judgements by counts and by time are corrected apart, each for the number of main claims of all papers; those
    that were not judged count as if nothing spoke for them.
    """
    found = list(results)
    for group in GROUPS:
        for kind in KINDS:
            found = _correct(found, group, kind)
    return found


def _correct(results: Sequence[ResultSummary], group: str, kind: str) -> list[ResultSummary]:
    claims = count_main_claims()
    places = {}
    for each in results:
        for verdict in getattr(each, group):
            own: Judgement | None = getattr(verdict, kind)
            if verdict.main and own and own.p is not None:
                places[each.id, verdict.id] = own.p
    values = dict(zip(places, holm(list(places.values()), max(claims, len(places))), strict=True))

    def corrected(result: str, verdict: Verdict) -> Verdict:
        if (result, verdict.id) not in values:
            return verdict
        own = correct(getattr(verdict, kind), values[result, verdict.id], claims)
        return replace(verdict, **{kind: own})

    return [
        replace(each, **{group: [corrected(each.id, verdict) for verdict in getattr(each, group)]}) for each in results
    ]
