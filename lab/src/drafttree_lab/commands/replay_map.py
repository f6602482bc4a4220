"""`drafttree replay map`: who wins where, by agreement, cost of a draft pass and cost of a tree."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

import typer

from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress

MAP = "map"
DEFAULTS: dict[str, Any] = {"out": Path("build/replay-map"), "output": None, "limit": 16, "max_new_tokens": 96}
"""Options whose defaults are others than those of the papers' tables."""
SHARED = ("target", "roles", "minutes", "seed", "device", "json_")
ROLE = "Draft model"
"""Who is graded, by the papers' name."""


def replay_map(context: typer.Context, extra: Collection[str]) -> None:
    """Count the map and show it; with `-o` the figure is drawn too.

    Args:
        context: context of `drafttree replay`, whose options it takes.
        extra: what is named besides `map`.

    Raises:
        ConfigError: something is named besides it, or an option has no meaning here.
    """
    _check(context, extra)
    given = {name: context.params[name] for name in (*DEFAULTS, *SHARED)}
    given |= {name: value for name, value in DEFAULTS.items() if not _is_given(context, name)}

    from drafttree.evaluation.run_store import NothingFinished
    from drafttree_lab.display.winner_map import show_map
    from drafttree_lab.replay.replay_target import ReplayTarget
    from drafttree_lab.replay.roles import find_roles, parse_roles
    from drafttree_lab.report.map_figure import check_output, write_figure
    from drafttree_lab.winner_map.winner_map import TextRuns, choose_prompts, count_steps, read_map_prompts, run_map

    output = check_output(given["output"]) if given["output"] else None
    who = find_roles(["traversal"], given["target"], parse_roles(given["roles"] or []))
    if ROLE not in who.drafters:
        raise ConfigError(who.missing[ROLE])
    texts = read_map_prompts(given["limit"])
    load = ReplayTarget(given["target"], "float32", given["device"], None)
    decoder = load.load_drafter(who.drafters[ROLE])
    sets = load.encode(texts, given["max_new_tokens"], chat=False)
    decides = {name: given[name] for name in ("limit", "max_new_tokens", "seed")}
    store = load.open_store(given["out"], given["minutes"], map=True, drafter=who.drafters[ROLE], **decides)
    runs = TextRuns(decoder, store, given["max_new_tokens"], given["seed"])
    with store.interruptible():
        runs.prompts = choose_prompts(sets, given["limit"], given["seed"], lambda ids: runs.plain(ids).looping)
    if store.interrupted:
        raise NothingFinished(store)
    with progress(count_steps(len(runs.prompts))) as advance:
        found = run_map(runs, advance)
    if output:
        write_figure(found, output)
    ResultOptions(given["out"], given["minutes"], given["json_"]).finish(
        store, found.to_json(), lambda: show_map(found)
    )


def _check(context: typer.Context, extra: Collection[str]) -> None:
    if extra:
        raise ConfigError(f"map takes no results, not {', '.join(extra)}: drafttree replay map -o who-wins.svg")
    known = {"what", *DEFAULTS, *SHARED}
    if wrong := [each for each in context.command.params if each.name not in known and _is_given(context, each.name)]:
        raise ConfigError(
            f"{wrong[0].opts[0]} says nothing to the map, which is counted at its own costs; leave it out"
        )


def _is_given(context: typer.Context, name: str | None) -> bool:
    source = context.get_parameter_source(name or "")
    return source is not None and source.name != "DEFAULT"
