"""A result beside the paper's: every value that was published or measured, and the verdicts; kept in a folder.

Results are kept beside the cells that they follow from, so that a report needs no model.
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
from pathlib import Path
from typing import Any

import numpy as np
import torch
from pydantic import TypeAdapter

from drafttree.core.errors import InputError
from drafttree.measure.prompts import read_text
from drafttree.measure.run_store import RUNS, versions
from drafttree_lab.replay.costs import MEASURED
from drafttree_lab.replay.intervals import ENDS
from drafttree_lab.replay.judge import Verdict, correct_verdicts, count_claims
from drafttree_lab.replay.measured import SPEEDS, Measured, Value
from drafttree_lab.replay.paper import AUTOREGRESSIVE, AVERAGE, BASES, TIMED, UNTOLD, Metric, Published
from drafttree_lab.replay.paper_files import paper_names, read_paper
from drafttree_lab.replay.plan import Block, Experiment
from drafttree_lab.replay.text_cell import TextCounts
from drafttree_lab.replay.verdicts import judge_claims

FOLDER = "results"
FORMAT = 3
"""Of results and cells: 3 has verdicts with drafters that are fitted to the paper's.

A fit that was kept without what it is wanted for in its key is found anew, by texts that are kept.
"""
PLAIN_TOO: frozenset[Metric] = frozenset({"tokens_per_second", "ttft", "tpot", "rounds", "peak_memory"})
"""Metrics that say something of plain decoding too."""
BY_TOKENS = "Speeds are of all texts together, so that a text which ends early weighs by its tokens"
DEEPEST, LAST_RANK = 16, 10
"""Levels and ranks of a heat map; ranks behind the last are counted with it."""


@dataclass(frozen=True)
class Entry:
    """One number of a table.

    Attributes:
        method: its row, as the paper has it, with `@value` where the axis varies policies.
        set: the set of prompts, or `AVERAGE` or `UNTOLD`, of which only the paper has numbers.
        temperature: the temperature the target samples at.
        value: the value of the axis where it varies a setting; None else.
        metric: what it is.
        published: the paper's number of the chosen target, or of the first that has one; None where it prints none.
        model: that target.
        measured: ours; None as long as no prompt is finished.
        by_law: for a speed-up, R by counts at the given costs (`LAW`); None else.
        fitted: what counts give with a drafter that is fitted to the paper's, a speed by the law; None where none is.
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

    @property
    def is_ours(self) -> bool:
        """Whether it was measured, counted or predicted here."""
        return bool(self.measured or self.by_law or self.fitted)

    @property
    def column(self) -> str:
        """The name of its column: the set, with temperature and value of the axis where there are several."""
        name = "set not told" if self.set == UNTOLD else self.set
        warmth = f"T = {self.temperature:g}" if self.temperature else ""
        value = "" if self.value in (None, self.temperature) else str(self.value)
        return ", ".join(filter(None, [name, warmth, value]))


@dataclass(frozen=True)
class ResultSummary:
    """A table or figure, replayed.

    Attributes:
        id: paper and name, "talon/fig3".
        line: the line of the paper's text.
        not_looping: the verdicts on texts that do not end in a loop, which any drafter predicts; empty where none or
            all do.
        looping: share of the texts that end in a loop.
        missing: methods that were not run, with the reason.
        reach: by method, the most nodes of a tree and the budget, where the budget was never reached.
        costs: the costs of passes by which counts are judged, in words.
        fit: the drafter that is fitted to the paper's, in words; empty where none is.
        figure: how it is drawn; None for a table.
        points: what a figure needs besides the entries, as `figure_data` gives it.
        notes: what else a reader has to know, a sentence each.
        done: finished ones of its tasks.
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
    """A result as it stood after a command.

    Attributes:
        command: the command that ran it last.
        environment: versions, machine and time, by name.
        format: `FORMAT` when it was written.
    """

    summary: ResultSummary
    command: str
    environment: dict[str, str]
    format: int = FORMAT


def summarise(measured: Measured, *, ended: str | None, done: int, tasks: int) -> ResultSummary:
    """A result from its finished cells.

    Args:
        ended: why no more of it is run, if it ended before its time.
    """
    experiment = measured.experiment
    result = experiment.result
    is_pooled = experiment.average("tokens_per_second") == "total" and SPEEDS & set(result.metrics)
    notes = [result.unavailable, ended, result.not_comparable, BY_TOKENS if is_pooled else "", *experiment.notes]
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
    """Results whose claims are corrected for their number; those on texts that do not loop apart."""
    groups = [(summary.id, summary.verdicts) for summary in results]
    claims = count_claims(groups)
    verdicts = correct_verdicts(groups, claims)
    not_looping = correct_verdicts([(summary.id, summary.not_looping) for summary in results], claims)
    corrected = zip(results, verdicts, not_looping, strict=True)
    return [
        replace(summary, verdicts=all_verdicts, not_looping=not_looping_verdicts)
        for summary, all_verdicts, not_looping_verdicts in corrected
    ]


def _reach(measured: Measured) -> dict[str, tuple[int, int]]:
    """By method, how far its largest tree stayed below the budget."""
    reach: dict[str, tuple[int, int]] = {}
    for block in measured.experiment.blocks:
        for name, way in block.ways.items():
            budget = getattr(way.policy, "budget", None) if "budget=" in way.policy_spec else None
            texts = (measured.counts(block, name, number) for number in measured.numbers(block, "tau"))
            sizes = [max(counts.nodes) for counts in texts if counts and counts.nodes]
            if budget and sizes:
                reach[name] = (max(reach.get(name, (0, 0))[0], *sizes), budget)
    return {name: (nodes, budget) for name, (nodes, budget) in reach.items() if nodes < budget}


def _told_costs(measured: Measured) -> str:
    """The costs of passes by which counts are judged; empty where no claim or table needs any."""
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
        draft_ends = " to ".join(f"{cost:.2f}" for cost in np.quantile(drawn_costs.draft, ENDS))
        round_ends = " to ".join(f"{cost:.2f}" for cost in np.quantile(drawn_costs.round, ENDS))
        allowed = f"c from {draft_ends} and h from {round_ends}"
        clauses.append(f"the errors of the rows that they follow from allow {allowed}")
    return f"costs of the paper's {experiment.model} in plain target passes: {'; '.join(clauses)}"


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
        return f"{curve}, and beyond it the line through the last two, of which nothing tells the error"
    return curve


def _entries(measured: Measured) -> Iterator[Entry]:
    """All numbers of the ways that are run, then the paper's that are of no set: means, and where it tells no set."""
    near = measured.near
    for block in measured.experiment.blocks:
        for name, metric in product(block.ways, measured.experiment.result.metrics):
            if name != AUTOREGRESSIVE or metric in PLAIN_TOO:
                yield _entry(measured, near, block, name, metric)
    yield from _entries_of_no_set(measured.experiment)


def _entry(measured: Measured, near: Measured | None, block: Block, name: str, metric: Metric) -> Entry:
    """A number of a way.

    Args:
        near: the cells with a fitted drafter; None where there are none.
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
    )


def _fitted_value(near: Measured, block: Block, name: str, metric: Metric) -> Value | None:
    """What counts give of a way with a fitted drafter; None where it takes a clock, or the way is not run with it."""
    if metric in TIMED and metric not in BASES:
        return None
    for near_block in near.experiment.blocks:
        is_same = (near_block.setting, near_block.value) == (block.setting, block.value)
        if is_same and name in near_block.ways:
            return near.value(near_block, name, metric, by_counts=True)
    return None


def _entries_of_no_set(experiment: Experiment) -> Iterator[Entry]:
    """The paper's numbers that are means over sets, or of a set that it does not tell; each of the first target."""
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
    """The published numbers, those of the chosen target first."""
    return sorted(experiment.result.published, key=lambda each: each.model != experiment.model)


def _published(experiment: Experiment, block: Block, name: str, metric: Metric) -> tuple[float | None, str | None]:
    """The paper's number for a cell, of the chosen target, or else of the first that has one."""
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
    """By method, what a figure is drawn from besides the values of its table; empty where these are all."""
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
    """Draft passes and committed tokens of rounds, with how many rounds have them."""
    frequencies = Counter[tuple[int, int]]()
    for _, counts in texts:
        frequencies.update(zip(counts.passes, counts.committed, strict=True))
    return [(passes, committed, count) for (passes, committed), count in sorted(frequencies.items())]


def _taus_by_set(texts: Texts) -> dict[str, list[float]]:
    """The tokens per round of every text."""
    taus: dict[str, list[float]] = {}
    for prompt_set, counts in texts:
        numerator, denominator = counts.fraction("tau")
        taus.setdefault(prompt_set, []).append(numerator / denominator)
    return taus


def _first_accepted(texts: Texts) -> list[int]:
    """How many tokens each round of the first text accepted."""
    return texts[0][1].accepted if texts else []


POINTS: Mapping[str | None, Callable[[Texts], Any]] = {
    "heatmap": _rank_shares,
    "scatter": _round_frequencies,
    "boxes": _taus_by_set,
    "tokens": _first_accepted,
}
"""What a figure is drawn from, by its kind."""


def write_results(folder: Path, results: Sequence[ResultSummary], command: str) -> None:
    """Keep summaries, each in a file of its own; an earlier one of the same result is replaced.

    Claims are kept as they were judged alone: they are corrected for their number when they are read together.

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
    """All kept summaries, in the order of the papers, with claims corrected for their number.

    Raises:
        InputError: there are none, or a file is broken or of another format.
    """
    paths = sorted((folder / FOLDER).glob("*.json"))
    cells = folder / RUNS
    if not paths and cells.is_file() and (runs := cells.read_bytes().count(b"\n")):
        remains = f"{runs} finished run{'s' if runs > 1 else ''} of a replay that ended before its first results"
        raise InputError(f"{folder}: {remains}; the same command goes on from there")
    if not paths:
        raise InputError(f"{folder}: no results of a replay in it; run drafttree replay with --out {folder} first")
    order = [f"{paper}/{name}" for paper in paper_names() for name in read_paper(paper).results]
    positions = {name: position for position, name in enumerate(order)}
    results = sorted(map(_read, paths), key=lambda kept: positions.get(kept.summary.id, len(positions)))
    corrected = correct_claims([result.summary for result in results])
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
        raise InputError(f"{path}: no result of a replay; remove it, and run drafttree replay again") from error
    if result is None:
        raise InputError(
            f"{path}: a result in the format of another version; run its command again, with another --out"
        )
    return result


_ADAPTER = TypeAdapter(KeptResult)
