"""The terminal: consoles, tables, progress bars, and JSON on standard output."""

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text


@contextmanager
def progress(total: int) -> Iterator[Callable[..., None]]:
    """A progress bar on standard error; what it gives says what was done, and advances it by one or by a number."""
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda name, count=1: bar.update(task, advance=count, description=name)


@contextmanager
def working(what: str) -> Iterator[None]:
    """Say on standard error what takes a while: on a terminal beside a spinner that goes away, else in a line."""
    console = make_console(stderr=True)
    if console.is_terminal:
        with console.status(Text(what, style="dim")):
            yield
    else:
        console.print(Text(what))
        yield


def make_console(stderr: bool = False) -> Console:
    """A console as wide as the terminal, of unlimited width if output goes elsewhere."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else 1000)


def make_table(*columns: str, right: int = 0) -> Table:
    """An empty table whose last `right` columns, or those after the first, are numbers."""
    table = Table(box=None, header_style="bold", title_justify="left", pad_edge=False, padding=(0, 2, 0, 0))
    numbers = range(1, 1 + right)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in numbers else "left", overflow="fold")
    return table


def print_json(report: Mapping[str, object]) -> None:
    """Print one JSON object on a line of its own; JSON has no number without an end, so such are null."""
    print(json.dumps(_finite(report), ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
