"""Summaries of replayed results: published and measured numbers, and the verdicts on claims.

They are stored in a folder beside the cells that they are computed from, so that a report needs no model.
"""

import json
import os
import platform
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
from math import isnan
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from drafttree.core.errors import InputError
from drafttree.measure.prompts import read_text
from drafttree.measure.reference import Difference
from drafttree.measure.run_store import RUNS, versions
from drafttree_lab.replay.costs import MEASURED
from drafttree_lab.replay.intervals import ENDS
from drafttree_lab.replay.judge import Verdict, correct_verdicts, count_claims
from drafttree_lab.replay.measured import SPEEDS, Measured, Value
from drafttree_lab.replay.paper import AUTOREGRESSIVE, AVERAGE, BASES, GAINS, TIMED, UNTOLD, Metric, Published
from drafttree_lab.replay.paper_files import paper_names, read_paper
from drafttree_lab.replay.plan import Block, Experiment
from drafttree_lab.replay.text_cell import TextCounts
from drafttree_lab.replay.verdicts import judge_claims

FOLDER = "results"
FORMAT = 3
"""Format of the files of results and cells: 3 has verdicts with drafters that are fitted to the paper's."""
PLAIN_TOO: frozenset[Metric] = frozenset({"tokens_per_second", "ttft", "tpot", "rounds", "peak_memory"})
"""Metrics with a number for plain decoding, too."""
TIED = "~"
"""Marks numbers with texts that differ from plain decoding's by a tie."""
BY_TOKENS = "Speeds are of all texts together, so that a text which ends early weighs by its tokens"
DEEPEST, LAST_RANK = 16, 10
"""Number of levels and ranks of a heat map; the last rank includes all higher ones."""


@dataclass(frozen=True)
class Entry:
    """One number of a table.

    Attributes:
        method: its row in the paper, with `@value` if the axis varies policies.
        set: the prompt set; or `AVERAGE` or `UNTOLD`, which have only published numbers.
        temperature: sampling temperature.
        value: the value of an axis that varies a setting; None without such an axis.
        metric: the metric.
        published: the paper's number for the chosen target, or else for the first one with a number; None if none has.
        model: that target.
        measured: the measured number; None until a prompt is finished.
        by_law: for a speed-up, R by counts at the given costs (`LAW`); otherwise None.
        fitted: the number by counts with a drafter that is fitted to the paper's, a speed by the law; None without one.
        ties: number of its texts that differ from plain decoding's, by ties that rounding decides.
    """

    method: str
    set: str
    temperature: float
    value: float | int | str | None
    metric: Metric
    published: float | None
    model: str | None
    measured: Value | None
    by_law: Value | None = None
    fitted: Value | None = None
    ties: int = 0

    @property
    def is_ours(self) -> bool:
        """Whether it was measured, counted or predicted here."""
        return bool(self.measured or self.by_law or self.fitted)

    @property
    def column(self) -> str:
        """The name of its column: the set, then the temperature and the axis value if it has them."""
        name = "set not told" if self.set == UNTOLD else self.set
        warmth = f"T = {self.temperature:g}" if self.temperature else ""
        value = "" if self.value in (None, self.temperature) else str(self.value)
        return ", ".join(filter(None, [name, warmth, value]))


@dataclass(frozen=True)
class ResultSummary:
    """A table or figure, replayed.

    Attributes:
        id: names of paper and result, such as "talon/fig3".
        line: line of the result in the paper's text.
        not_looping: the verdicts without texts that end in a loop, since any drafter predicts loops. Empty if no
            text or every text loops.
        looping: share of the texts that end in a loop.
        missing: by method that was not run, the reason.
        reach: by method whose trees never filled the budget, the nodes of its largest tree, and the budget.
        costs: the pass costs by which counts are judged, in words.
        fit: the drafter that is fitted to the paper's, in words; empty if none is.
        figure: kind of figure; None for a table.
        points: data of the figure besides the entries, from `figure_data`.
        notes: further remarks, a sentence each.
        done: number of finished tasks.
        tasks: number of all tasks.
    """

    id: str
    title: str
    line: int
    verdicts: list[Verdict]
    not_looping: list[Verdict]
    looping: float
    entries: list[Entry]
    missing: dict[str, str]
    reach: dict[str, tuple[int, int]]
    costs: str
    fit: str
    figure: str | None
    points: dict[str, Any]
    notes: list[str]
    done: int
    tasks: int


@dataclass(frozen=True)
class KeptResult:
    """A result as a command has stored it.

    Attributes:
        summary: the result.
        command: the command that stored it.
        environment: versions, machine and time, by name.
        format: `FORMAT` when it was written.
    """

    summary: ResultSummary
    command: str
    environment: dict[str, str]
    format: int = FORMAT


def summarise(measured: Measured, *, end_reason: str | None, done: int, tasks: int) -> ResultSummary:
    """The summary of a result from its finished cells.

    Args:
        measured: the cells.
        end_reason: why the run ended early; None if it did not.
        done: number of finished tasks.
        tasks: number of all tasks.
    """
    experiment = measured.experiment
    result = experiment.result
    is_pooled = experiment.average("tokens_per_second") == "total" and SPEEDS & set(result.metrics)
    notes = [result.unavailable, end_reason, _told_ties(measured), result.not_comparable]
    notes += [BY_TOKENS if is_pooled else "", *experiment.notes]
    return ResultSummary(
        id=experiment.id,
        title=result.title,
        line=result.line,
        verdicts=judge_claims(measured),
        not_looping=judge_claims(replace(measured, group="not looping")) if 0 < measured.looping < 1 else [],
        looping=measured.looping,
        entries=list(_entries(measured)),
        missing=dict(experiment.missing),
        reach=_reach(measured),
        costs=_told_costs(measured),
        fit=str(measured.fitted.fit or measured.fitted.reason) if measured.fitted else "",
        figure=result.figure,
        points=figure_data(measured),
        notes=[*filter(None, notes)],
        done=done,
        tasks=tasks,
    )


def correct_claims(results: Sequence[ResultSummary]) -> list[ResultSummary]:
    """Results with p-values corrected for the number of claims; verdicts without looping texts are corrected apart."""
    groups = list(map(attrgetter("id", "verdicts"), results))
    claims = count_claims(groups)
    verdicts = correct_verdicts(groups, claims)
    not_looping = correct_verdicts(list(map(attrgetter("id", "not_looping"), results)), claims)
    corrected = zip(results, verdicts, not_looping, strict=True)
    return [
        replace(summary, verdicts=all_verdicts, not_looping=not_looping_verdicts)
        for summary, all_verdicts, not_looping_verdicts in corrected
    ]


def _reach(measured: Measured) -> dict[str, tuple[int, int]]:
    """By method whose trees never filled the budget, the nodes of its largest tree, and the budget."""
    largest: dict[str, int] = {}
    budgets: dict[str, int] = {}
    for block in measured.experiment.blocks:
        for name, way in block.ways.items():
            budget = getattr(way.policy, "budget", None)
            if not budget or "budget=" not in way.policy_spec:
                continue
            for number in measured.numbers(block, "tau"):
                counts = measured.counts(block, name, number)
                if counts and counts.nodes:
                    largest[name] = max(largest.get(name, 0), *counts.nodes)
                    budgets[name] = budget
    return {name: (nodes, budgets[name]) for name, nodes in largest.items() if nodes < budgets[name]}


def _told_ties(measured: Measured) -> str:
    """A sentence on the texts that differ from plain decoding's by ties; empty without one."""
    ties_by_method: dict[str, list[Difference]] = {}
    for block in measured.experiment.blocks:
        for name in block.ways:
            if ties := measured.ties(block, name):
                ties_by_method.setdefault(name, []).extend(ties)
    if not ties_by_method:
        return ""
    counts = ", ".join(f"{name}: {len(ties)}" for name, ties in ties_by_method.items())
    widest = max((tie for ties in ties_by_method.values() for tie in ties), key=attrgetter("units"))
    size = f"the widest gap is {widest.gap:.2g}, {widest.units:.1f} units of rounding"
    return (
        f"{TIED} texts that differ from {AUTOREGRESSIVE}'s by a tie, which rounding decides ({counts}; {size}); they "
        "are counted. --exact-text prevents ties"
    )


def _told_costs(measured: Measured) -> str:
    """The pass costs by which counts are judged, in words; empty if nothing needs costs."""
    experiment = measured.experiment
    source = measured.costs
    if not SPEEDS & set(experiment.result.metrics) or experiment.result.kind != "decoding" or not experiment.costs:
        return ""
    if source.given or source.name == MEASURED:
        return f"costs: {source.name}"
    clauses = [_told_draft_costs(experiment), _told_target_costs(experiment)]
    if rounds := max(costs.round for costs in experiment.costs.values()):
        clauses.append(f"h = {rounds:g} a round")
    if drawn_costs := next((costs for costs in experiment.draws.values() if np.any(costs.draft)), None):
        allowed = f"c from {_told_range(drawn_costs.draft)} and h from {_told_range(drawn_costs.round)}"
        clauses.append(f"the errors of the rows that they follow from allow {allowed}")
    return f"costs of the paper's {experiment.model} in plain target passes: {'; '.join(clauses)}"


def _told_range(draws: float) -> str:
    """The ends between which 95 % of drawn costs lie, such as "0.05 to 0.09"."""
    low, high = np.quantile(draws, ENDS)
    return f"{low:.2f} to {high:.2f}"


def _told_draft_costs(experiment: Experiment) -> str:
    methods_by_cost: dict[float, list[str]] = {}
    for method, costs in experiment.costs.items():
        if costs.draft:
            methods_by_cost.setdefault(costs.draft, []).append(method)
    return ", ".join(f"c = {cost:g} ({', '.join(methods)})" for cost, methods in methods_by_cost.items())


def _told_target_costs(experiment: Experiment) -> str:
    target = next(iter(experiment.costs.values())).target
    curve = ", ".join(f"v({size}) = {cost:g}" for size, cost in zip(target.sizes, target.costs, strict=True))
    if len(target.sizes) > 1:
        return f"{curve}, and beyond it the line through the last two, whose error is not known"
    return curve


def _entries(measured: Measured) -> Iterator[Entry]:
    """The entries of all ways that are run, then those of published numbers that belong to no single set."""
    near = measured.near
    for block in measured.experiment.blocks:
        for name, metric in product(block.ways, measured.experiment.result.metrics):
            if measured.has_gain(name) if metric in GAINS else name != AUTOREGRESSIVE or metric in PLAIN_TOO:
                yield _entry(measured, near, block, name, metric)
    yield from _entries_of_no_set(measured.experiment)


def _entry(measured: Measured, near: Measured | None, block: Block, name: str, metric: Metric) -> Entry:
    """The entry of a way for a metric.

    Args:
        measured: the cells.
        near: the cells with a fitted drafter; None without one.
        block: the block of the way.
        name: name of the way.
        metric: the metric.
    """
    published, model = _published(measured.experiment, block, name, metric)
    return Entry(
        method=name,
        set=block.setting.set,
        temperature=block.setting.temperature,
        value=block.value,
        metric=metric,
        published=published,
        model=model,
        measured=measured.value(block, name, metric),
        by_law=measured.value(block, name, metric, by_counts=True) if metric == "speedup" else None,
        fitted=_fitted_value(near, block, name, metric) if near else None,
        ties=len(measured.ties(block, name)),
    )


def _fitted_value(near: Measured, block: Block, name: str, metric: Metric) -> Value | None:
    """A metric of a way by counts with a fitted drafter; None if it needs a clock, or the way was not run with it."""
    if metric in TIMED and metric not in BASES:
        return None
    for near_block in near.experiment.blocks:
        is_same = (near_block.setting, near_block.value) == (block.setting, block.value)
        if is_same and name in near_block.ways:
            return near.value(near_block, name, metric, by_counts=True)
    return None


def _entries_of_no_set(experiment: Experiment) -> Iterator[Entry]:
    """The entries of published means over sets, and of numbers whose set the paper does not name."""
    keys = set[tuple[object, ...]]()
    for published_block in _published_blocks(experiment):
        metric = published_block.metric
        columns = [column for column in published_block.columns if column in (AVERAGE, UNTOLD)]
        for column, (method, row) in product(columns, published_block.rows.items()):
            number = row[published_block.columns.index(column)]
            key = (method, column, published_block.temperature, metric)
            if isnan(number) or metric not in experiment.result.metrics or key in keys:
                continue
            keys.add(key)
            yield Entry(
                method=method,
                set=str(column),
                temperature=published_block.temperature,
                value=None,
                metric=metric,
                published=number,
                model=published_block.model,
                measured=None,
            )


def _published_blocks(experiment: Experiment) -> list[Published]:
    """The published blocks, those of the chosen target first."""
    return sorted(experiment.result.published, key=lambda block: block.model != experiment.model)


def _published(experiment: Experiment, block: Block, name: str, metric: Metric) -> tuple[float | None, str | None]:
    """The paper's number for a cell and its target: the chosen target, or else the first one with a number."""
    method, _, value = name.partition("@")
    axis = experiment.result.axis
    warmth = None if axis and axis.varies == "temperature" else block.setting.temperature  # the columns tell it
    for published_block in _published_blocks(experiment) if experiment.is_of_its_setting(block) else []:
        fits = (
            published_block.metric == metric
            and warmth in (None, published_block.temperature)
            and method in published_block.rows
        )
        if not fits or published_block.set not in (None, block.setting.set):
            continue
        column_names = {block.setting.set, value, str(block.value)} - {"", "None"}
        for column, number in zip(published_block.columns, published_block.rows[method], strict=True):
            if str(column) in column_names and not isnan(number):
                return number, published_block.model
    return None, None


def figure_data(measured: Measured) -> dict[str, Any]:
    """By method, the data of a figure that is not drawn from the entries; empty for other figures."""
    figure = measured.experiment.result.figure
    if figure not in POINTS:
        return {}
    names = dict.fromkeys(name for block in measured.experiment.blocks for name in block.ways)
    return {name: POINTS[figure](_texts(measured, name)) for name in names if name != AUTOREGRESSIVE}


Texts = Sequence[tuple[str, TextCounts]]
"""The texts of a method, with the sets of their prompts."""


def _texts(measured: Measured, name: str) -> Texts:
    texts = list[tuple[str, TextCounts]]()
    for block in measured.experiment.blocks:
        for number in measured.numbers(block, "tau"):
            if counts := measured.counts(block, name, number):
                texts.append((block.setting.set, counts))
    return texts


def _rank_shares(texts: Texts) -> list[list[float]]:
    """The share of all rounds that accepted a node of each rank (columns) on each level (rows)."""
    accepted = np.zeros((DEEPEST, LAST_RANK))
    rounds = 0
    for _, counts in texts:
        rounds += len(counts.ranks)
        for ranks in counts.ranks:
            for level, rank in enumerate(ranks[:DEEPEST]):
                accepted[level, min(rank, LAST_RANK) - 1] += 1
    levels = int(accepted.any(axis=1).sum())
    return (accepted[:levels] / rounds).tolist()


def _round_frequencies(texts: Texts) -> list[tuple[int, int, int]]:
    """Triples of draft passes, committed tokens, and the number of rounds with both."""
    frequencies = Counter[tuple[int, int]]()
    for _, counts in texts:
        frequencies.update(zip(counts.passes, counts.committed, strict=True))
    return [(passes, committed, count) for (passes, committed), count in sorted(frequencies.items())]


def _taus_by_set(texts: Texts) -> dict[str, list[float]]:
    """By set, the tokens per round of every text."""
    taus: dict[str, list[float]] = {}
    for prompt_set, counts in texts:
        numerator, denominator = counts.fraction("tau")
        taus.setdefault(prompt_set, []).append(numerator / denominator)
    return taus


def _first_accepted(texts: Texts) -> list[int]:
    """The number of accepted tokens in each round of the first text."""
    return texts[0][1].accepted if texts else []


POINTS: Mapping[str | None, Callable[[Texts], Any]] = {
    "heatmap": _rank_shares,
    "scatter": _round_frequencies,
    "boxes": _taus_by_set,
    "tokens": _first_accepted,
}
"""Computes the data of a figure, by kind of figure."""


def write_results(folder: Path, results: Sequence[ResultSummary], command: str) -> None:
    """Write each summary to a file, over an earlier one of the same result.

    The p-values are written uncorrected; `read_results` corrects them for the number of all claims.

    Raises:
        InputError: a file cannot be written.
    """
    environment = describe_environment()
    try:
        (folder / FOLDER).mkdir(parents=True, exist_ok=True)
        for summary in results:
            path = folder / FOLDER / f"{summary.id.replace('/', '-')}.json"
            document = _ADAPTER.dump_json(KeptResult(summary, command, environment), indent=1)
            path.with_suffix(".new").write_bytes(document)
            os.replace(path.with_suffix(".new"), path)
    except OSError as error:
        raise InputError(f"{folder}: cannot be written: {error.strerror}; name another with --out") from error


def read_results(folder: Path) -> list[KeptResult]:
    """All stored summaries in the order of the papers, with p-values corrected for the number of claims.

    Raises:
        InputError: there are none, or a file is broken or of another format.
    """
    paths = sorted((folder / FOLDER).glob("*.json"))
    cells = folder / RUNS
    if not paths and cells.is_file() and (runs := cells.read_bytes().count(b"\n")):
        remains = f"{runs} finished run{'s' if runs > 1 else ''} of a replay that ended before its first results"
        raise InputError(f"{folder}: {remains}; the same command continues from there")
    if not paths:
        raise InputError(
            f"{folder}: the folder has no results of a replay; run drafttree replay with --out {folder} first"
        )
    positions: dict[str, int] = {}
    for paper in paper_names():
        for name in read_paper(paper).results:
            positions[f"{paper}/{name}"] = len(positions)
    results = sorted(map(_read, paths), key=lambda result: positions.get(result.summary.id, len(positions)))
    corrected = correct_claims(list(map(attrgetter("summary"), results)))
    return [replace(result, summary=summary) for result, summary in zip(results, corrected, strict=True)]


def describe_environment() -> dict[str, str]:
    """Versions, machine and time of a run."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine()
    machine = {"python": platform.python_version(), "device": device, "threads": str(torch.get_num_threads())}
    return versions() | machine | {"time": datetime.now(UTC).isoformat(timespec="minutes")}


def _read(path: Path) -> KeptResult:
    try:
        document = json.loads(read_text(path))
        result = (
            _ADAPTER.validate_python(document)
            if "summary" not in document or document.get("format") == FORMAT
            else None
        )
    except (AttributeError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: this is not a result of a replay; remove the file, and run drafttree replay again"
        ) from error
    if result is None:
        raise InputError(
            f"{path}: a result in the format of another version; run its command again, with another --out"
        )
    return result


_ADAPTER = TypeAdapter(KeptResult)
