"""The results of measurements: kept in a folder as they are made, and shown in the end or when Ctrl-C ends it."""

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
"""The exit code of a command that Ctrl-C has ended, as shells have it."""
UNFINISHED = 3
"""The exit code of a command whose minutes were over before all was run, and of a tune that recommends nothing yet."""
EXIT_CODES = {
    0: "success",
    1: "a check or a text failed",
    2: "wrong arguments or input",
    UNFINISHED: "the time was over first, or tune has nothing to recommend yet",
    INTERRUPTED: "ended by Ctrl-C",
}
"""What the exit codes of all commands mean."""
NOT_OF_THE_COMMAND = {"out", "output", "json_", "save", "minutes"}
"""Options that do not change what a run gives."""


def _check_minutes(minutes: float | None) -> float | None:
    """The minutes as given.

    Raises:
        ConfigError: they are not above 0.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise ConfigError(f"--minutes is {minutes:g}; give a number above 0, such as 5")
    return minutes


Minutes = Annotated[
    float | None,
    typer.Option(
        callback=_check_minutes,
        help="Start no new run after this many minutes. With --out, the same command continues.",
    ),
]
Out = Annotated[Path | None, typer.Option(help="Folder for finished runs. The same command continues from it.")]


@dataclass(frozen=True)
class ResultOptions:
    """Where finished runs are kept, how long to run, and how the result is printed."""

    out: Out = None
    minutes: Minutes = None
    json_: AsJson = False

    def open_store(self, context: typer.Context, *inputs: object) -> RunStore:
        """The store of a command's finished runs.

        Args:
            context: the context of the command; its options decide what is run, but for `NOT_OF_THE_COMMAND`.
            *inputs: what the files named in the options hold.

        Raises:
            InputError: the folder cannot be used.
        """
        options = {name: str(value) for name, value in context.params.items() if name not in NOT_OF_THE_COMMAND}
        digest = hashlib.sha256(repr(inputs).encode()).hexdigest()
        command = {"command": context.command_path, **options, "digest of the prompts": digest}
        return RunStore(self.out, command, partial=True, minutes=self.minutes)

    def finish(self, store: RunStore, summary: dict[str, object], show: Callable[[], None]) -> None:
        """Print a result, as JSON or as a person's tables.

        Raises:
            typer.Exit: if it was ended by Ctrl-C or the time, after it was shown.
        """
        if self.json_:
            print_json(summary)
        else:
            show()
        if store.interrupted:
            raise typer.Exit(tell_end(store))


def tell_end(store: RunStore) -> int:
    """Say what has ended a measurement, Ctrl-C or the time; the exit code."""
    advice = f"the same command goes on from {store.folder}" if store.folder else "--out FOLDER keeps finished runs"
    print(f"drafttree: {'the minutes are over' if store.out_of_time else 'interrupted'}; {advice}", file=sys.stderr)
    return UNFINISHED if store.out_of_time else INTERRUPTED
