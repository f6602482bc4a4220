"""`drafttree replay`: replays tables and figures of the papers, and compares published and measured numbers."""

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from drafttree.core.errors import ConfigError, DraftTreeError, InputError, ModelError
from drafttree.interfaces.cli.command_help import HelpCommand
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import AsJson, Device, ExactText, Seed, Target
from drafttree.interfaces.cli.results import UNFINISHED, ResultOptions
from drafttree.interfaces.console import make_console, make_table, print_json, progress
from drafttree.measure.shapes import SHAPES, find_shape
from drafttree_lab.commands.replay_map import Roles, map_
from drafttree_lab.replay.paper import CONTEXTS

if TYPE_CHECKING:
    from drafttree_lab.replay.inputs import PromptTexts
    from drafttree_lab.replay.judge import Verdict
    from drafttree_lab.replay.plan import Block, Experiment, ReplayMethod, Sizes
    from drafttree_lab.replay.results import Entry, ResultSummary
    from drafttree_lab.replay.run import DrafterFits, ReplayTarget, Runner

FOLDER = Path("build/replay")
RUN = "run"
STYLES = {"reproduced": "green", "contradicted": "red", "undecided": "yellow", "left open": "yellow"}
PACE = 100.0
"""Assumed tokens per second of a target that is not loaded to guess minutes."""
RESULTS = ResultOptions(out=FOLDER)


@dataclass(frozen=True)
class PlanOptions:
    """What is run of the papers, and with which drafters."""

    paper: Annotated[
        list[Path] | None, typer.Option("--paper", help="A paper's TOML file of your own. May be repeated.")
    ] = None
    target: Target = "embedded"
    roles: Roles = None
    limit: Annotated[int, typer.Option(min=1, help="Number of prompts per set, evenly spaced. Verdicts need ten.")] = 10
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of tokens per text. The papers use 500 and more.")
    ] = 128
    points: Annotated[int | None, typer.Option(min=1, help="Maximum number of values per sweep, evenly spaced.")] = None
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs per prompt.")] = 1
    model: Annotated[
        str | None,
        typer.Option(help="Published target to compare with, such as Qwen3-8B. Default: the target of each result."),
    ] = None
    data: Annotated[Path | None, typer.Option(help="Folder of prompt sets. Default: the sets in the package.")] = None
    dtype: Annotated[str, typer.Option(help="Data type. In float32 all methods write the same text.")] = "float32"
    device: Device = "auto"

    def sizes(self, **prompt_options: Any) -> "Sizes":
        """How much is run.

        Args:
            **prompt_options: `prompt_tokens`, `chat` and `contexts`, as in `Sizes`.
        """
        from drafttree_lab.replay.plan import Sizes

        return Sizes(self.limit, self.max_new_tokens, points=self.points, model=self.model, **prompt_options)


@dataclass(frozen=True)
class RunOptions:
    """How experiments are run, and how claims are judged."""

    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum prompt length, instead of the papers' L_max.")
    ] = None
    contexts: Annotated[
        int,
        typer.Option(
            min=1,
            help="Number of positions after each prompt at which verifiers of drawn (sampled) trees are compared.",
        ),
    ] = CONTEXTS
    counts_only: Annotated[
        bool,
        typer.Option(
            "--counts-only", help="Count tokens and passes, and time nothing: the result is the same on every machine."
        ),
    ] = False
    inflate: Annotated[
        str | None,
        typer.Option(
            help=f"Make the target as expensive as a larger model: {', '.join(SHAPES)}. No drafter is fitted."
        ),
    ] = None
    agreement: Annotated[
        bool,
        typer.Option(
            "--agreement/--no-agreement",
            help="Where another drafter stands in for a paper's own, also judge the claims with a drafter that is "
            "fitted to agree with the target as often as the paper's.",
        ),
    ] = True
    cost: Annotated[
        str, typer.Option(help='Costs by which counts are compared: "published", "measured" or "c=0.08,v=1".')
    ] = "published"
    chat: Annotated[bool, typer.Option("--chat", help="Apply the target's chat template to the prompts.")] = False
    seed: Seed = 0
    exact_text: ExactText = False

    def sizes(self, options: PlanOptions) -> "Sizes":
        """How much is run of a plan."""
        return options.sizes(prompt_tokens=self.max_prompt_tokens, chat=self.chat, contexts=self.contexts)


RUNNING = RunOptions()


@dataclass(frozen=True)
class Plan:
    """What is run.

    Attributes:
        experiments: the experiments.
        texts: the prompts.
        drafters: the drafters by role.
        given: the drafters that the user names, by role.
        sizes: how much is run.
    """

    experiments: Sequence["Experiment"]
    texts: "PromptTexts"
    drafters: Mapping[str, str]
    given: Mapping[str, str]
    sizes: "Sizes"

    @property
    def stand_ins(self) -> dict[str, str]:
        """By role, the drafters that replace the papers' own."""
        return {role: drafter for role, drafter in self.drafters.items() if role not in self.given}

    @property
    def unproven_drafters(self) -> list[str | None]:
        """The drafters that the user or a paper of the user names."""
        from drafttree_lab.replay.paper_files import outside_file

        drafters: list[str | None] = [*self.given.values()]
        for experiment in self.experiments:
            if outside_file(experiment.paper):
                for block in experiment.blocks:
                    drafters += [way.drafter for way in block.ways.values()]
        return list(dict.fromkeys(drafters))

    @property
    def turns(self) -> int:
        """The turns of one repeat."""
        return sum(self.prompts(experiment, block) for experiment in self.experiments for block in experiment.blocks)

    def prompts(self, experiment: "Experiment", block: "Block") -> int:
        """The number of prompts on which a block is run."""
        texts = self.texts.texts.get((experiment.paper, block.setting.set))
        count = self.sizes.limit if texts is None else len(texts)
        return min(count, experiment.most_prompts or count)

    @property
    def unfit(self) -> dict[str, str]:
        """By method whose role has a drafter that cannot draft for it, the reason."""
        from drafttree_lab.replay.paper_files import read_paper

        reasons: dict[str, str] = {}
        for experiment in self.experiments:
            methods = read_paper(experiment.paper).methods
            names = [name for name in experiment.missing if name in methods and methods[name].role in self.drafters]
            reasons |= {name: experiment.missing[name] for name in names}
        return reasons

    def check_drafters(self, target: str) -> None:
        """Refuse drafters that draft for no target of this kind, before weights are read.

        Raises:
            ModelError: there is no such drafter, or it cannot draft for this target.
        """
        from drafttree.loading import parse_drafter
        from drafttree.loading.targets import parse_target

        for drafter in self.unproven_drafters:
            try:
                parse_drafter(drafter).check(parse_target(target))
            except DraftTreeError as error:
                raise ModelError(f"the drafter {drafter!r} cannot draft for {target!r}: {error}") from error

    def with_loaded_drafters(self, target: "ReplayTarget") -> "Plan":
        """The plan without the ways whose drafters, now loaded, cannot be used for them.

        Raises:
            ModelError: a drafter cannot be loaded, or does not fit the target; nothing has been run or written.
        """
        for drafter in self.unproven_drafters:
            target.load_drafter(drafter)
        return self.without_unfit(target.refusal)

    def without_unfit(self, refusal: "Callable[[ReplayMethod], str | None]") -> "Plan":
        """The plan without the ways that are refused, which are told on standard error.

        Args:
            refusal: as for `leave_out`.

        Raises:
            ConfigError: no way that drafts is left.
        """
        from drafttree_lab.replay.plan import clauses, leave_out

        plan = replace(self, experiments=[leave_out(experiment, refusal) for experiment in self.experiments])
        reasons = {name: reason for name, reason in plan.unfit.items() if name not in self.unfit}
        if reasons and not any(experiment.blocks for experiment in plan.experiments):
            raise ConfigError("; ".join(clauses(reasons)))
        for clause in clauses(reasons):
            print(f"drafttree: not run: {clause}", file=sys.stderr)
        return plan


class Replays(TyperGroup):
    """The commands; without the name of one, the arguments are those of `run`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        return super().parse_args(ctx, args or [RUN])

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        return super().resolve_command(ctx, args if args[0] in self.commands else [RUN, *args])


replay = typer.Typer(
    cls=Replays,
    context_settings={"ignore_unknown_options": True},
    help="Replay the papers' tables and figures.",
    epilog="For example: drafttree replay all --minutes 40; drafttree replay talon/1.",
    rich_markup_mode=None,
    add_completion=False,
)


@replay.command(name=RUN, cls=HelpCommand)
@grouped
def run(
    options: PlanOptions,
    what: Annotated[
        list[str] | None,
        typer.Argument(help='What to run: "all", papers, or results such as talon/1. Default: the papers of --paper.'),
    ] = None,
    results: ResultOptions = RESULTS,
    running: RunOptions = RUNNING,
) -> None:
    """Rerun the tables and figures of papers, and judge their claims.

    Published values stand beside measured ones, with a verdict on every claim. R is the speed-up by counted tokens and
    passes, tau (1 + h0) / (v + c delta + h), at the costs of --cost.

    The word "run" may be left out: drafttree replay talon/1. The exit code is 0 if all is done, 1 if every
    turn failed, 3 if something else is not done.
    """
    if running.inflate:
        find_shape(running.inflate)
        if running.exact_text:
            raise ConfigError("--exact-text does not work with --inflate; leave out one of them")

    from drafttree_lab.replay.costs import CostSource
    from drafttree_lab.replay.inputs import parse_roles
    from drafttree_lab.replay.paper_files import use_papers
    from drafttree_lab.replay.results import ResultSummary, correct_claims, write_results
    from drafttree_lab.replay.run import ReplayTarget, digests_of, run_replay

    costs = CostSource.parse(running.cost)
    drafters_by_role = parse_roles(options.roles or [])
    user_papers = use_papers(options.paper or [])
    if not (names := what or user_papers):
        raise ConfigError("Missing argument 'what': name \"all\", papers, or results such as talon/1")
    plan = _plan(names, options, drafters_by_role, running.sizes(options))
    plan.check_drafters(options.target)
    plan = plan.without_unfit(partial(_unassisting, find_files=True))
    target = ReplayTarget(options.target, options.dtype, options.device, running.inflate, exact_text=running.exact_text)
    plan = plan.with_loaded_drafters(target)
    out = results.out or FOLDER
    runner, fits = _prepare(plan, target, running, out, results.minutes)
    command = shlex.join(["drafttree", *sys.argv[1:]])

    def keep(summaries: list[ResultSummary]) -> None:
        with suppress(InputError):  # reported at the end, when results are shown
            write_results(out, summaries, command)

    with progress(plan.turns * options.repeats) as advance:
        summaries = run_replay(
            plan.experiments,
            runner,
            repeats=options.repeats,
            costs=costs,
            clusters=plan.texts.clusters(digests_of(runner.prompts)),
            fits=fits,
            progress=advance,
            keep=keep,
        )
    corrected = correct_claims(summaries)
    try:
        write_results(out, summaries, command)
    finally:  # results are shown even if the disk is full
        results.finish(runner.store, {"results": list(map(asdict, corrected))}, lambda: show_replay(corrected))
    if runner.ended and not any(summary.done for summary in summaries):
        raise typer.Exit(1)
    if plan.unfit or any(summary.done < summary.tasks for summary in summaries):
        print("drafttree: not everything is done; the results above give the reasons", file=sys.stderr)
        raise typer.Exit(UNFINISHED)


def _unassisting(method: "ReplayMethod", *, find_files: bool) -> str | None:
    """Why transformers' assisted generation cannot take the drafter of a method; None if it can."""
    from drafttree_lab.replay.assisted import told_unassisting
    from drafttree_lab.replay.plan import cannot_assist

    if method.assisted and cannot_assist(method.drafter, find_files=find_files):
        return told_unassisting(method.drafter)
    return None


def _prepare(
    plan: Plan, target: "ReplayTarget", running: RunOptions, out: Path, minutes: float | None
) -> tuple["Runner", "DrafterFits | None"]:
    """The runner of a plan, which stores its cells in a folder, and the fits of drafters; None without fitting."""
    from drafttree_lab.replay.paper_files import keep_papers
    from drafttree_lab.replay.plan import NO_PROMPTS
    from drafttree_lab.replay.run import DrafterFits, Runner

    sizes = plan.sizes
    ids = target.encode(plan.texts.texts, sizes.max_new_tokens, chat=sizes.chat)
    other_ids = target.encode(plan.texts.others, sizes.max_new_tokens, chat=sizes.chat)
    for experiment in plan.experiments:
        ids[experiment.paper, NO_PROMPTS] = [[turn] for turn in range(sizes.limit)]
    # keys of cells have the number of contexts; the default stands here because older folders have it
    store = target.open_store(out, minutes, seed=running.seed, chat=running.chat, contexts=CONTEXTS)
    keep_papers(out)
    measure = partial(target.measure, running.seed)
    compare = partial(target.compare, running.seed)
    make_runner = partial(Runner, target.make_decoder, measure, store=store, seed=running.seed, compare=compare)
    runner = make_runner(ids, timed=not running.counts_only)
    if not running.agreement:
        return runner, None
    return runner, DrafterFits(target, make_runner(other_ids, timed=False), plan.stand_ins, sizes)


@replay.command(name="list", cls=HelpCommand)
@grouped
def list_(
    options: PlanOptions,
    what: Annotated[
        list[str] | None,
        typer.Argument(help="Papers, or results such as talon/1. Default: the papers of --paper, or all."),
    ] = None,
    json_: AsJson = False,
) -> None:
    """List every table and figure of the papers.

    Shows the runs, the guessed minutes, what cannot be replayed and why. Nothing is run but, if the target is on this
    machine and not the embedded one, a few of its passes.
    """
    from drafttree.loading.folders import local_folder
    from drafttree_lab.replay.inputs import ALL, EMBEDDED, parse_roles
    from drafttree_lab.replay.paper_files import use_papers
    from drafttree_lab.replay.run import ReplayTarget

    user_papers = use_papers(options.paper or [])
    drafters_by_role = parse_roles(options.roles or [])
    plan = _plan(what or user_papers or [ALL], options, drafters_by_role, options.sizes())
    plan = plan.without_unfit(partial(_unassisting, find_files=False))
    is_here = local_folder(options.target) is not None or Path(options.target).is_file()
    pass_seconds = 1 / PACE
    basis = f"{PACE:g} tokens per second"
    try:
        if options.target != EMBEDDED and is_here:
            pass_seconds = ReplayTarget(options.target, options.dtype, options.device, None).pass_seconds
            basis = f"{1e3 * pass_seconds:.3g} ms per token, a pass of the target in {options.dtype}"
        elif options.target != EMBEDDED:
            basis += ", since the target is not on this machine"
    except ModelError as error:
        basis += f", since the target cannot be loaded ({error})"
    rows = list_rows(plan, options.repeats, pass_seconds)
    if json_:
        print_json({"results": rows})
    else:
        show_list(rows)
    caveat = f"minutes are guessed at {basis}"
    if options.target == EMBEDDED:
        extra_work = "those must first be found, and run each text four more times (--no-agreement omits them)"
        caveat += f", without fitted drafters; {extra_work}"
    print(caveat, file=sys.stderr)


@replay.command(cls=HelpCommand)
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a replay, its --out.")] = FOLDER,
    output: Annotated[
        Path, typer.Option("--output", "-o", help="File to write: .html for everything, .md for the claims.")
    ] = Path("replay.html"),
) -> None:
    """Write the results of a replay to a page.

    The page has every table, figure and verdict. A file that ends in .md gets only the table of claims. No model is
    loaded.
    """
    from drafttree_lab.replay.paper_files import KEPT, use_papers
    from drafttree_lab.replay.results import read_results
    from drafttree_lab.report.page import write_report

    if output.suffix not in (".html", ".md"):
        raise ConfigError(
            f"-o {str(output)!r} does not end in .html (a page) or .md (a table in Markdown); name such a file"
        )
    use_papers(sorted((folder / KEPT).glob("*.toml")))
    write_report(read_results(folder), output)
    print(f"written: {output}", file=sys.stderr)


replay.command(name="map", cls=HelpCommand)(map_)


def _plan(
    result_names: Sequence[str], options: PlanOptions, drafters_by_role: Mapping[str, str], sizes: "Sizes"
) -> Plan:
    from drafttree_lab.replay.inputs import check_model, find_results, find_roles, read_prompt_texts
    from drafttree_lab.replay.paper_files import outside_file
    from drafttree_lab.replay.plan import check_paper, plan_all

    results = find_results(result_names)
    papers = list(dict.fromkeys(paper for paper, _ in results))
    check_model(papers, sizes.model)
    drafters, missing_roles = find_roles(papers, options.target, drafters_by_role)
    for paper in papers:
        if file := outside_file(paper):
            sys.path.append(str(file.parent))  # modules with its methods may lie beside it
            check_paper(paper, drafters)
    texts = read_prompt_texts(papers, options.data, options.limit)
    experiments = plan_all(results, drafters, missing_roles, texts, sizes)
    return Plan(experiments, texts, drafters, drafters_by_role, sizes)


def list_rows(plan: Plan, repeats: int, pass_seconds: float) -> list[dict[str, Any]]:
    """A row for every result: its runs, the guessed minutes, and what cannot be replayed.

    Args:
        plan: what is run.
        repeats: number of runs per prompt.
        pass_seconds: the seconds that a token is guessed to take.
    """
    from drafttree_lab.replay.plan import clauses

    rows = []
    for experiment in plan.experiments:
        runs = tokens = 0
        for block in experiment.blocks:
            texts = len(block.ways) * plan.prompts(experiment, block) * repeats
            runs += texts
            tokens += texts * block.setting.max_new_tokens
        reason = experiment.result.unavailable or "; ".join([*clauses(experiment.missing), *experiment.notes])
        row = {"result": experiment.id, "title": experiment.result.title, "runs": runs}
        rows.append(row | {"minutes": tokens * pass_seconds / 60, "not replayed": reason})
    return rows


def show_list(rows: Sequence[dict[str, Any]]) -> None:
    table = make_table("result", "title", "runs", "minutes", "not replayed", right=0)
    for column in table.columns[2:4]:
        column.justify = "right"
    for row in rows:
        sizes = [str(row["runs"]), f"{row['minutes']:.0f}"] if row["runs"] else ["", ""]
        table.add_row(row["result"], row["title"], *sizes, row["not replayed"])
    make_console().print(table)


def show_replay(results: Sequence["ResultSummary"]) -> None:
    """Print every result with its verdicts and values, and the number of claims with each outcome."""
    from drafttree_lab.replay.costs import LAW
    from drafttree_lab.replay.judge import KINDS, count_outcomes

    console = make_console()
    for result in results:
        _show_result(result)
    verdicts = list(chain.from_iterable(result.verdicts for result in results))
    console.print(Text(f"claims: {len(verdicts)}", style="bold"))
    if any(entry.by_law for entry in chain.from_iterable(result.entries for result in results)):
        console.print(Text(f"R = {LAW} by counts; costs are in rounds of plain decoding, so h0 = 0", style="dim"))
    for basis, name in KINDS.items():
        judgements = [getattr(verdict, basis) for verdict in verdicts]
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in count_outcomes(judgements).items())
        console.print(Text(f"  {name}: {outcomes or 'none'}"), soft_wrap=True)


def _show_result(summary: "ResultSummary") -> None:
    console = make_console()
    console.print(Text(f"{summary.id}  {summary.title}", style="bold"), soft_wrap=True)
    for verdict in summary.verdicts:
        _show_verdict(verdict)
    if summary.not_looping:
        console.print(Text(f"  without the {summary.looping:.0%} of texts that loop:", style="dim"), soft_wrap=True)
    for verdict in summary.not_looping:
        _show_verdict(verdict)
    entries_by_metric: dict[str, list[Entry]] = {}
    for entry in summary.entries:
        if entry.is_ours:
            entries_by_metric.setdefault(entry.metric, []).append(entry)
    for metric, entries in entries_by_metric.items():
        console.print(_value_table(metric, entries))
    notes = [f"fitted drafter: {summary.fit}"] if summary.fit else []
    notes += [summary.costs] if summary.costs else []
    notes += [
        f"{name}: no tree has more than {nodes} of {budget} nodes" for name, (nodes, budget) in summary.reach.items()
    ]
    notes += [*summary.notes, *(f"{name}: {reason}" for name, reason in summary.missing.items())]
    for note in notes:
        console.print(Text(f"  {note}", style="dim"), soft_wrap=True)
    console.print(Text(f"  {summary.done} of {summary.tasks} turns done", style="dim"), "")


def _value_table(metric: str, entries: Sequence["Entry"]) -> Table:
    """A table of a metric by method and column."""
    columns = dict.fromkeys(entry.column for entry in entries)
    rows: dict[str, dict[str, str]] = {}
    for entry in entries:
        rows.setdefault(entry.method, {})[entry.column] = cell(entry)
    table = make_table(metric, *columns, right=len(columns))
    for method, cells in rows.items():
        table.add_row(method, *(cells.get(column, "") for column in columns))
    table.title = f"  {metric}: measured (published)"
    return table


def _show_verdict(verdict: "Verdict") -> None:
    """Print a claim, and below it the judgements by counts and by time."""
    from drafttree_lab.replay.judge import KINDS
    from drafttree_lab.report.notation import told

    console = make_console()
    console.print(Text(f"  {verdict.text}" + (" (main)" if verdict.main else "")), soft_wrap=True)
    for basis, judgement in verdict.judgements.items():
        line = Text(f"    {KINDS[basis]:<23}")
        line.append(f"{judgement.outcome:<16}", style=STYLES.get(judgement.outcome, "dim"))
        finding, *reasons = told(judgement) or [f"as {judgement.repeats}, {judgement.repeated}"]
        console.print(line.append(finding), soft_wrap=True)
        for reason in reasons:
            console.print(Text(f"{'':<43}{reason}", style="dim"), soft_wrap=True)


def cell(entry: "Entry") -> str:
    """The measured number of an entry, marked if it has ties, followed by the published one in brackets."""
    from drafttree_lab.replay.results import TIED

    mark = TIED if entry.ties else ""
    measurement = [f"{entry.measured.mean:.2f}{mark}"] if entry.measured else []
    law = [f"R {entry.by_law.mean:.2f}"] if entry.by_law else []
    return ", ".join([*measurement, *law]) + (f" ({entry.published:g})" if entry.published is not None else "")
