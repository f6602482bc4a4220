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
    """Context manager: a progress bar on standard error. Call its value with a text and a number of steps."""
    columns = (TextColumn("{task.description:<16}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=total)
        yield lambda name, count=1: bar.update(task, advance=count, description=name)


@contextmanager
def working(activity: str) -> Iterator[None]:
    """Context manager: print an activity on standard error, on a terminal with a spinner."""
    console = make_console(stderr=True)
    if console.is_terminal:
        with console.status(Text(activity, style="dim")):
            yield
    else:
        console.print(Text(activity))
        yield


def make_console(stderr: bool = False) -> Console:
    """A console as wide as the terminal, or of unlimited width if the output is not a terminal."""
    stream = sys.stderr if stderr else sys.stdout
    return Console(stderr=stderr, highlight=False, width=None if stream.isatty() else 1000)


def make_table(*columns: str, right: int = 0) -> Table:
    """An empty table; the `right` columns after the first hold numbers and are aligned to the right."""
    table = Table(box=None, header_style="bold", title_justify="left", pad_edge=False, padding=(0, 2, 0, 0))
    numbers = range(1, 1 + right)
    for index, column in enumerate(columns):
        table.add_column(column, justify="right" if index in numbers else "left", overflow="fold")
    return table


def print_json(report: Mapping[str, object]) -> None:
    """Print a JSON object on one line; infinite numbers and NaN, which JSON does not have, become null."""
    print(json.dumps(_finite(report), ensure_ascii=False, allow_nan=False))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _finite(element) for name, element in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(element) for element in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
