"""Results of a replay made by hand."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from drafttree_lab.replay.measured import Value
from drafttree_lab.replay.results_folder import KeptResult
from drafttree_lab.replay.summary import Entry, ResultSummary
from drafttree_lab.replay.verdict import Verdict

HOSTILE = '<script>alert("1")</script> & $\\frac'
"""A name that is no HTML, no XML and no formula."""


def entry(method: str, mean: float | None, published: float | None = None, **options: Any) -> Entry:
    """A number of a table: ours with an interval of a tenth around it, and the paper's."""
    measured = None if mean is None else Value(mean, 0.9 * mean, 1.1 * mean, 3)
    plain: dict[str, Any] = {"set": "Alpaca", "temperature": 0.0, "value": None, "metric": "tau"}
    model = "Vicuna-13B" if published is not None else None
    fields: dict[str, Any] = {**plain, "model": model, **options}
    return Entry(method=method, published=published, measured=measured, **fields)


def verdict(**options: Any) -> Verdict:
    """A claim that was reproduced."""
    plain = Verdict(
        "faster", "A tree is faster", 7, True, "reproduced", "tree / chain 1.25 [1.10, 1.40]", 1.25, 1.1, 1.4, 9
    )
    return replace(plain, **options)


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


def renamed(own: ResultSummary, name: str) -> ResultSummary:
    """A result in which every method and set is called so, with its place on the axis."""
    entries = [replace(each, method=name + each.method, set=name, model=name) for each in own.entries]
    points = {name + method: _renamed(points, name) for method, points in own.points.items()}
    return replace(own, title=name, entries=entries, points=points)


def _renamed(points: object, name: str) -> object:
    return {name + key: value for key, value in points.items()} if isinstance(points, dict) else points
