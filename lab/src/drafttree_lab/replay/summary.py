"""A result beside the paper's: every value that was published, every one that was measured, and the verdicts."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from drafttree_lab.replay.experiment import Block, Experiment
from drafttree_lab.replay.figure_data import figure_data
from drafttree_lab.replay.measured import Measured, Value
from drafttree_lab.replay.paper import AUTOREGRESSIVE, AVERAGE, UNTOLD, Metric, Published
from drafttree_lab.replay.pass_costs import MEASURED
from drafttree_lab.replay.verdict import Verdict

PLAIN_TOO: frozenset[Metric] = frozenset({"tokens_per_second", "ttft", "tpot", "rounds", "peak_memory"})
"""Metrics that say something of plain decoding too."""


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
        by_law: for a speed-up, tau / (v + c delta) by counts at the given costs; None else.
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
        id: paper and name.
        title: the title.
        line: the line of the paper's text.
        verdicts: verdicts on its claims.
        not_looping: the verdicts on texts that do not end in a loop, which any drafter predicts; empty where none or
            all do.
        looping: share of the texts that end in a loop.
        entries: all numbers.
        missing: methods that were not run, with the reason.
        reach: by method, the most nodes of a tree and the budget, where the budget was never reached.
        costs: the costs of passes by which counts are judged, in words.
        figure: how it is drawn; None for a table.
        points: what a figure needs besides the entries, as `figure_data` gives it.
        notes: what else a reader has to know, a sentence each.
        done: tasks that are finished.
        tasks: tasks of all.
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
    figure: str | None
    points: dict[str, Any]
    notes: list[str]
    done: int
    tasks: int

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)


def summarise(measured: Measured, *, ended: str | None, done: int, tasks: int) -> ResultSummary:
    """A result from its finished cells.

    Args:
        measured: the cells.
        ended: why no more of it is run, if it ended before its time.
        done: tasks that are finished.
        tasks: tasks of all.
    """
    experiment = measured.experiment
    result = experiment.result
    notes = [note for note in (result.unavailable, ended, result.not_comparable, *experiment.notes) if note]
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
        figure=result.figure,
        points=figure_data(measured),
        notes=notes,
        done=done,
        tasks=tasks,
    )


def _reach(measured: Measured) -> dict[str, tuple[int, int]]:
    """By method, how far its largest tree stayed below the budget."""
    found: dict[str, tuple[int, int]] = {}
    for block in measured.experiment.blocks:
        for name, way in block.ways.items():
            budget = getattr(way.policy, "budget", None) if "budget=" in way.policy_spec else None
            texts = (measured.counts(block, name, number) for number in measured.numbers(block, "tau"))
            sizes = [max(counts.nodes) for counts in texts if counts and counts.nodes]
            if budget and sizes:
                found[name] = (max(found.get(name, (0, 0))[0], *sizes), budget)
    return {name: (most, budget) for name, (most, budget) in found.items() if most < budget}


def _told_costs(measured: Measured) -> str:
    """The costs of passes by which counts are judged; empty where no claim or table needs any."""
    experiment, source = measured.experiment, measured.costs
    needed = {"speedup", "tokens_per_second", "tpot"} & set(experiment.result.metrics)
    if not needed or experiment.result.kind != "decoding" or not experiment.costs:
        return ""
    if source.given or source.name == MEASURED:
        return f"costs: {source.name}"
    names: dict[float, list[str]] = {}
    for name, costs in experiment.costs.items():
        if costs.draft:
            names.setdefault(costs.draft, []).append(name)
    drafts = ", ".join(f"c = {cost:g} ({', '.join(own)})" for cost, own in names.items())
    target = next(iter(experiment.costs.values())).target
    curve = ", ".join(f"v({size}) = {cost:g}" for size, cost in zip(target.sizes, target.costs, strict=True))
    beyond = ", on in proportion" if len(target.sizes) > 1 else ""
    rounds = max(costs.round for costs in experiment.costs.values())
    more = f"; h = {rounds:g} a round" if rounds else ""
    return f"costs of the paper's {experiment.model} in plain target passes: {drafts}; {curve}{beyond}{more}"


def _entries(measured: Measured) -> Iterator[Entry]:
    experiment = measured.experiment
    for block in experiment.blocks:
        for name in block.ways:
            for metric in experiment.result.metrics:
                if name != AUTOREGRESSIVE or metric in PLAIN_TOO:
                    yield _entry(measured, block, name, metric)
    yield from _of_no_set(experiment)


def _of_no_set(experiment: Experiment) -> Iterator[Entry]:
    """The paper's numbers that are of no set: means, and where it tells no set."""
    found: dict[tuple[object, ...], Entry] = {}
    for each in _published_blocks(experiment):
        columns = [column for column in each.columns if column in (AVERAGE, UNTOLD)]
        for column, (method, row) in product(columns, each.rows.items()):
            number, place = row[each.columns.index(column)], (method, column, each.temperature, each.metric)
            if number == number and each.metric in experiment.result.metrics:
                entry = Entry(method, str(column), each.temperature, None, each.metric, number, each.model, None)
                found.setdefault(place, entry)
    yield from found.values()


def _entry(measured: Measured, block: Block, name: str, metric: Metric) -> Entry:
    published, model = _published(measured.experiment, block, name, metric)
    law = measured.value(block, name, metric, by_counts=True) if metric == "speedup" else None
    value = measured.value(block, name, metric)
    setting = block.setting
    return Entry(name, setting.set, setting.temperature, block.value, metric, published, model, value, law)


def _published_blocks(experiment: Experiment) -> list[Published]:
    """The published numbers, those of the chosen target first."""
    return sorted(experiment.result.published, key=lambda each: each.model != experiment.model)


def _published(experiment: Experiment, block: Block, name: str, metric: Metric) -> tuple[float | None, str | None]:
    """The paper's number for a cell, of the chosen target, or else of the first that has one."""
    method, _, value = name.partition("@")
    axis = experiment.result.axis
    warmth = None if axis and axis.varies == "temperature" else block.setting.temperature  # the columns tell it
    for each in _published_blocks(experiment) if experiment.is_of_its_setting(block) else []:
        fits = each.metric == metric and warmth in (None, each.temperature) and method in each.rows
        if not fits or each.set not in (None, block.setting.set):
            continue
        wanted = {block.setting.set, value, str(block.value)} - {"", "None"}
        for column, number in zip(each.columns, each.rows[method], strict=True):
            if str(column) in wanted and number == number:
                return number, each.model
    return None, None
