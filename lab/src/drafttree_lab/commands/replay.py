"""`drafttree replay`: the tables and figures of the papers, published values beside measured ones."""

import shlex
import sys
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from drafttree.core.errors import ConfigError, InputError
from drafttree.interfaces.cli.options import AsJson, Device, Seed, Target
from drafttree.interfaces.cli.results import Minutes, ResultOptions
from drafttree.interfaces.console import progress
from drafttree.measure.shapes import SHAPES, find_shape
from drafttree_lab.commands.replay_map import MAP, replay_map

LIST, REPORT = "list", "report"
What = Annotated[
    list[str],
    typer.Argument(
        help='"list"; "list PAPER"; "report FOLDER"; "map"; or what to run: "all", papers, results such as talon/1.'
    ),
]


def replay(
    context: typer.Context,
    what: What,
    target: Target = "embedded",
    roles: Annotated[
        list[str] | None,
        typer.Option("--as", help="ROLE=DRAFTER: the drafter for a role in the papers. May be repeated."),
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for finished runs. The same command continues from it.")] = Path(
        "build/replay"
    ),
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help='File that "report" writes: .html for everything, .md for the claims.'),
    ] = Path("replay.html"),
    limit: Annotated[
        int, typer.Option(min=1, help="Number of prompts per set, evenly spaced. Verdicts need ten.")
    ] = 10,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="Maximum number of tokens per text. The papers use 500 and more.")
    ] = 128,
    max_prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum prompt length, instead of the papers' L_max.")
    ] = None,
    points: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of values per sweep, evenly spaced.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Number of runs per prompt.")] = 1,
    counts_only: Annotated[
        bool, typer.Option("--counts-only", help="Count only and time nothing. Any machine will do.")
    ] = False,
    inflate: Annotated[
        str | None, typer.Option(help=f"Make the target as expensive as a larger model: {', '.join(SHAPES)}.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Published target to compare with, such as Qwen3-8B. Default: the one of each result."),
    ] = None,
    cost: Annotated[
        str, typer.Option(help='Costs by which counts are compared: "published", "measured" or "c=0.08,v=1".')
    ] = "published",
    data: Annotated[Path | None, typer.Option(help="Folder of prompt sets. Default: the sets in the package.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the target's chat template to the prompts.")] = False,
    minutes: Minutes = None,
    seed: Seed = 0,
    dtype: Annotated[str, typer.Option(help="Data type. In float32 all methods write the same text.")] = ("float32"),
    device: Device = "auto",
    json_: AsJson = False,
) -> None:
    """Replay the papers' tables and figures.

    Published values stand beside measured ones, with a verdict on every claim. The exit code is 0 if all is done, 3 if
    the minutes are over and runs are left.
    """
    if what[0] == REPORT:
        _report(what[1:], output)
        return
    if what[0] == MAP:
        replay_map(context, what[1:])
        return
    if inflate:
        find_shape(inflate)

    from drafttree_lab.display import replay as replay_display
    from drafttree_lab.replay.experiment import ALL, NO_PROMPTS, Sizes, check_model, find_results
    from drafttree_lab.replay.pass_costs import CostSource
    from drafttree_lab.replay.prompt_texts import read_prompt_texts
    from drafttree_lab.replay.replay import Replay, experiments, run_replay
    from drafttree_lab.replay.replay_target import ReplayTarget
    from drafttree_lab.replay.results_folder import write_results
    from drafttree_lab.replay.roles import find_roles, parse_roles

    costs = CostSource.parse(cost)
    listed = what[0] == LIST
    results = find_results((what[1:] or [ALL]) if listed else what)
    papers = list(dict.fromkeys(paper for paper, _ in results))
    check_model(papers, model)
    given = parse_roles(roles or [])
    who = find_roles(papers, target, given)
    texts = read_prompt_texts(papers, data, limit)
    sizes = Sizes(limit, max_new_tokens, max_prompt_tokens, repeats, chat, points, model)
    planned = experiments(results, who, texts, sizes)
    if listed:
        replay_display.show_list(planned, limit, repeats)
        return
    load = ReplayTarget(target, dtype, device, inflate)
    ids = load.encode(texts, max_new_tokens, chat=chat) | {
        (paper, NO_PROMPTS): [[turn] for turn in range(limit)] for paper in papers
    }
    load.check(given.values())
    store = load.open_store(out, minutes, seed=seed, chat=chat)
    command = shlex.join(["drafttree", *sys.argv[1:]])

    def keep(found: Replay) -> None:
        with suppress(InputError):  # told at the end, where the results are shown
            write_results(out, found.results, command)

    options: dict[str, Any] = {"repeats": repeats, "seed": seed, "timed": not counts_only}
    with progress(sum(len(each.blocks) for each in planned) * limit * repeats) as advance:
        found = run_replay(
            planned,
            ids,
            load.make_decoder,
            partial(load.measure, seed),
            store,
            costs=costs,
            progress=advance,
            keep=keep,
            **options,
        )
    try:
        write_results(out, found.results, command)
    finally:  # a full disk keeps nobody from seeing them
        ResultOptions(out, minutes, json_).finish(store, found.to_json(), lambda: replay_display.show_replay(found))


def _report(folders: list[str], output: Path) -> None:
    """Write the page of a folder.

    Raises:
        ConfigError: not one folder is named.
    """
    if len(folders) != 1:
        raise ConfigError(f"report takes one folder, not {len(folders)}: drafttree replay report build/replay -o PAGE")

    from drafttree_lab.replay.results_folder import read_results
    from drafttree_lab.report import write_report

    write_report(read_results(Path(folders[0])), output)
    print(f"written: {output}", file=sys.stderr)
