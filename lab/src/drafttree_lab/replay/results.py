"""A result beside the paper's: every value that was published or measured, and the verdicts; kept in a folder.

Results are kept beside the cells that they follow from, so that a report needs no model.
"""

import json
import os
import platform
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import product
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
        verdicts=measured.verdicts(),
        not_looping=replace(measured, group="not looping").verdicts() if 0 < measured.looping < 1 else [],
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
    names: dict[object, list[str]] = {}
    for name, costs in experiment.costs.items():
        if costs.draft:
            names.setdefault(costs.draft, []).append(name)
    draft_costs = ", ".join(f"c = {cost:g} ({', '.join(methods)})" for cost, methods in names.items())
    target = next(iter(experiment.costs.values())).target
    curve = ", ".join(f"v({size}) = {cost:g}" for size, cost in zip(target.sizes, target.costs, strict=True))
    extrapolation = ""
    if len(target.sizes) > 1:
        extrapolation = ", and beyond it the line through the last two, of which nothing tells the error"
    rounds = max(costs.round for costs in experiment.costs.values())
    remark = f"; h = {rounds:g} a round" if rounds else ""
    if drawn_costs := next((costs for costs in experiment.draws.values() if np.any(costs.draft)), None):
        low_cost, high_cost = np.quantile(drawn_costs.draft, ENDS)
        ends = np.quantile(drawn_costs.round, ENDS)
        allowed = f"c from {low_cost:.2f} to {high_cost:.2f} and h from {ends[0]:.2f} to {ends[1]:.2f}"
        remark += f"; the errors of the rows that they follow from allow {allowed}"
    return (
        f"costs of the paper's {experiment.model} in plain target passes: {draft_costs}; {curve}{extrapolation}{remark}"
    )


def _entries(measured: Measured) -> Iterator[Entry]:
    """All numbers of the ways that are run, then the paper's that are of no set: means, and where it tells no set."""
    experiment = measured.experiment
    metrics = experiment.result.metrics
    near = measured.near
    near_blocks = {(block.setting, block.value): block for block in near.experiment.blocks} if near else {}
    for block in experiment.blocks:
        setting = block.setting
        for name, metric in product(block.ways, metrics):
            if name == AUTOREGRESSIVE and metric not in PLAIN_TOO:
                continue
            published, model = _published(experiment, block, name, metric)
            law = measured.value(block, name, metric, by_counts=True) if metric == "speedup" else None
            measurement = measured.value(block, name, metric)
            fitted = None
            near_block = near_blocks.get((block.setting, block.value))
            is_ratio = BASES.get(metric, metric) != metric
            if near and near_block and name in near_block.ways and (is_ratio or metric not in TIMED):
                fitted = near.value(near_block, name, metric, by_counts=True)
            key = name, setting.set, setting.temperature, block.value, metric
            yield Entry(*key, published, model, measurement, law, fitted)
    paper_entries: dict[tuple[object, ...], Entry] = {}
    for published_block in _published_blocks(experiment):
        columns = [column for column in published_block.columns if column in (AVERAGE, UNTOLD)]
        for column, (method, row) in product(columns, published_block.rows.items()):
            number = row[published_block.columns.index(column)]
            key = (method, column, published_block.temperature, published_block.metric)
            if number == number and published_block.metric in metrics:
                entry = Entry(
                    method,
                    str(column),
                    published_block.temperature,
                    None,
                    published_block.metric,
                    number,
                    published_block.model,
                    None,
                )
                paper_entries.setdefault(key, entry)
    yield from paper_entries.values()


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
            if str(column) in column_names and number == number:
                return number, published_block.model
    return None, None


def figure_data(measured: Measured) -> dict[str, Any]:
    """By method, what a figure is drawn from besides the values of its table; empty where these are all.

    A heat map has the share of all rounds that accepted a node of each rank (columns) on each level (rows). A scatter
    plot has draft passes and committed tokens of rounds, with how many rounds have them. Boxes have, by set, the tokens
    per round of every text. Of tokens it is the first text: how many each round drafted and accepted; it adds one more.
    """
    figure = measured.experiment.result.figure
    if figure not in ("heatmap", "scatter", "boxes", "tokens"):
        return {}
    points: dict[str, Any] = {}
    blocks = measured.experiment.blocks
    for name in dict.fromkeys(name for block in blocks for name in block.ways if name != AUTOREGRESSIVE):
        texts = [
            (block.setting.set, counts)
            for block in blocks
            for number in measured.numbers(block, "tau")
            if (counts := measured.counts(block, name, number))
        ]
        if figure == "heatmap":
            shares = Counter[tuple[int, int]]()
            rounds = sum(len(counts.ranks) for _, counts in texts)
            for ranks in (ranks for _, counts in texts for ranks in counts.ranks):
                shares.update((level, min(rank, LAST_RANK)) for level, rank in enumerate(ranks[:DEEPEST]))
            levels = range(max((level for level, _ in shares), default=-1) + 1)
            points[name] = [[shares[level, rank] / rounds for rank in range(1, LAST_RANK + 1)] for level in levels]
        elif figure == "scatter":
            frequencies = Counter(
                point for _, counts in texts for point in zip(counts.passes, counts.committed, strict=True)
            )
            points[name] = [(passes, committed, count) for (passes, committed), count in sorted(frequencies.items())]
        elif figure == "boxes":
            points[name] = {}
            for prompt_set, counts in texts:
                numerator, denominator = counts.fraction("tau")
                points[name].setdefault(prompt_set, []).append(numerator / denominator)
        else:
            points[name] = texts[0][1].accepted if texts else []
    return points


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
