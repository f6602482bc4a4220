"""Stores the finished runs of a measurement in a folder, and shows the result at the end or after Ctrl-C."""

import hashlib
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli.options import AsJson
from drafttree.interfaces.console import print_json
from drafttree.measure.run_store import RunStore

INTERRUPTED = 130
"""Exit code of a command that Ctrl-C has ended, as in shells."""
UNFINISHED = 3
"""Exit code if a run or a recommendation is missing, for example because the minutes ended before."""
EXIT_CODES = {
    0: "success",
    1: "a check or a text failed",
    2: "wrong arguments or input",
    UNFINISHED: "something is not done, for example because the time ran out",
    INTERRUPTED: "ended by Ctrl-C",
}
"""Meanings of the exit codes of all commands."""
IRRELEVANT_OPTIONS = {"out", "output", "json_", "save", "minutes"}
"""Options that do not change the results of runs."""


def _check_minutes(minutes: float | None) -> float | None:
    """Return `minutes` as they are.

    Raises:
        ConfigError: `minutes` are not above 0 and finite.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise ConfigError(f"--minutes is {minutes:g}; give a number above 0, such as 5")
    return minutes


Minutes = Annotated[
    float | None,
    typer.Option(
        "--minutes",
        callback=_check_minutes,
        metavar="MINUTES",
        help="Start no new run after this many minutes. With --out, the same command continues.",
        show_default="no limit",
    ),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="Folder for finished runs. The same command continues from it."),
]


@dataclass(frozen=True)
class ResultOptions:
    """Where finished runs are stored, how long to run, and how the result is printed."""

    out: Out = None
    minutes: Minutes = None
    json_: AsJson = False

    def open_store(self, context: typer.Context, *inputs: object) -> RunStore:
        """Open the store of a command's finished runs.

        Args:
            context: the context of the command; its options, except `IRRELEVANT_OPTIONS`, identify the runs.
            *inputs: contents of the files that the options name, which identify them too.

        Raises:
            InputError: the folder cannot be used.
        """
        options = {name: str(value) for name, value in context.params.items() if name not in IRRELEVANT_OPTIONS}
        digest = hashlib.sha256(repr(inputs).encode()).hexdigest()
        command = {"command": context.command_path, **options, "digest of the prompts": digest}
        return RunStore(self.out, command, partial=True, minutes=self.minutes)

    def finish(self, store: RunStore, summary: dict[str, object], show: Callable[[], None]) -> None:
        """Print a result.

        Args:
            store: the store of the runs.
            summary: the result, for JSON.
            show: prints the result in tables.

        Raises:
            typer.Exit: Ctrl-C or the time limit ended the runs early; the result is printed first.
        """
        if self.json_:
            print_json(summary)
        else:
            show()
        if store.interrupted:
            raise typer.Exit(tell_end(store))


def tell_end(store: RunStore) -> int:
    """Say whether Ctrl-C or the time limit ended a measurement; return the exit code."""
    advice = f"the same command continues from {store.folder}" if store.folder else "--out FOLDER keeps finished runs"
    end = "the time limit is reached" if store.out_of_time else "interrupted"
    print(f"drafttree: {end}; {advice}", file=sys.stderr)
    return UNFINISHED if store.out_of_time else INTERRUPTED
