"""Results of a replay made by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from drafttree_lab.replay.judge import Judgement, Outcome, Verdict
from drafttree_lab.replay.measured import Value
from drafttree_lab.replay.paper_files import paper_names, read_paper
from drafttree_lab.replay.results import Entry, KeptResult, ResultSummary

HOSTILE = '<script>alert("1")</script> & $\\frac'
"""A name that is no HTML, no XML and no formula."""

TERMS = "tau 3.20, v 1.00 over 20 nodes, c delta 0.50"
"""Of the speed-up law."""


def entry(method: str, mean: float | None, published: float | None = None, **options: Any) -> Entry:
    """A number of a table: ours with an interval of a tenth around it, and the paper's."""
    measured = None if mean is None else Value(mean, 0.9 * mean, 1.1 * mean, 3)
    plain: dict[str, Any] = {"set": "Alpaca", "temperature": 0.0, "value": None, "metric": "tau"}
    model = "Vicuna-13B" if published is not None else None
    fields: dict[str, Any] = {**plain, "model": model, **options}
    return Entry(method=method, published=published, measured=measured, **fields)


def judgement(outcome: Outcome = "reproduced", **options: Any) -> Judgement:
    """A judgement on the ratio of a tree and a chain, without the ratio where it was not measured."""
    if outcome in ("not run", "not comparable"):
        return Judgement(outcome, **{"said": "no drafter", **options})
    reason = f"c delta decides (tree: {TERMS}; chain: {TERMS})" if outcome == "contradicted" else None
    ratio = {"estimate": 1.25, "low": 1.1, "high": 1.4, "p": 0.01, "prompts": 12}
    fields: dict[str, Any] = {"said": "tree / chain 1.25 [1.10, 1.40]", **ratio, "reason": reason, **options}
    return Judgement(outcome, **fields)


def verdict(
    by_counts: Outcome | Judgement | None = "reproduced",
    by_time: Outcome | Judgement | None = "undecided",
    **options: Any,
) -> Verdict:
    """A main claim with these judgements."""
    judgements = [judgement(each) if isinstance(each, str) else each for each in (by_counts, by_time)]
    return replace(Verdict("faster", "A tree is faster", 7, True, None, *judgements), **options)


def summary(
    entries: Sequence[Entry], *, figure: str | None = None, points: Mapping[str, object] | None = None, **options: Any
) -> ResultSummary:
    """A result of TALON's paper."""
    plain: dict[str, Any] = {
        "id": "talon/1",
        "title": "Tokens per round",
        "line": 241,
        "verdicts": [],
        "not_looping": [],
        "looping": 0.0,
        "missing": {},
        "reach": {},
        "costs": "",
        "fit": "",
        "notes": [],
        "done": 3,
        "tasks": 4,
    }
    return ResultSummary(entries=list(entries), figure=figure, points=dict(points or {}), **(plain | options))


def kept(own: ResultSummary) -> KeptResult:
    """A result as it lies in a folder."""
    return KeptResult(own, "drafttree replay talon/1 --limit 3", {"drafttree": "0.1.0", "device": "x86_64"})


FIGURES: Mapping[str, ResultSummary] = {
    "bars": summary(
        [entry("chain", 2.0, 3.0), entry("tree", 4.0, 5.0), entry("tree", 3.0, None, set="QA"), entry("off", None)],
        figure="bars",
    ),
    "lines": summary(
        [
            entry("AR", 1.0),
            *(entry(f"tree@{value}", value / 10, value / 8) for value in (60, 9, 100)),
        ],
        figure="lines",
    ),
    "scatter": summary(
        [entry("tree", 3.0, 4.0), entry("tree", 5.0, 6.0, metric="delta")],
        figure="scatter",
        points={"tree": [(2, 3, 10), (4, 5, 1)], "chain": [(1, 1, 1)]},
    ),
    "heatmap": summary([entry("tree", 3.0)], figure="heatmap", points={"tree": [[0.75, 0.25], [0.5, 0.004]]}),
    "boxes": summary([entry("tree", 3.0)], figure="boxes", points={"tree": {"Alpaca": [1.0, 2.0, 4.0], "QA": [3.0]}}),
    "tokens": summary([entry("tree", 3.0)], figure="tokens", points={"tree": [2, 0, 1], "chain": [1, 1, 0]}),
}
"""A result of every kind of figure."""


def every_result() -> list[KeptResult]:
    """All tables and figures of the papers with all their claims, measured where numbers are published."""
    found = []
    for paper in paper_names():
        for name, result in read_paper(paper).results.items():
            is_measured = bool(result.published)
            kinds = ("contradicted", "left open") if is_measured else ("not run", None)
            verdicts = [verdict(*kinds, text=each.text, main=each.main) for each in result.claims]
            entries = [
                entry(method, value if is_measured else None, value, set=str(column), metric=block.metric)
                for block in result.published
                for method, row in block.rows.items()
                for column, value in zip(block.columns, row, strict=True)
                if value == value
            ]
            own = summary(entries, id=f"{paper}/{name}", title=result.title, verdicts=verdicts)
            found.append(kept(own))
    return found


def renamed(own: ResultSummary, name: str) -> ResultSummary:
    """A result in which every method and set is called so, with its place on the axis."""
    entries = [replace(each, method=name + each.method, set=name, model=name) for each in own.entries]
    points = {name + method: _renamed(points, name) for method, points in own.points.items()}
    return replace(own, title=name, entries=entries, points=points)


def _renamed(points: object, name: str) -> object:
    return {name + key: value for key, value in points.items()} if isinstance(points, dict) else points
