"""Rows of figures as a table in the terminal and as JSON: an experiment names its columns, and that is all."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.table import Table

from drafttree.measure.interval import Interval

Row = Mapping[str, Any]


def to_table(title: str, rows: Iterable[Row], columns: Mapping[str, str]) -> Table:
    """A table of some columns of the rows; one without a figure is left out, and a cell without one is empty.

    Args:
        title: stands above the table.
        rows: figures by name.
        columns: by name, how its numbers are formatted; "" for text.
    """
    table_rows = list(rows)
    formats = {name: form for name, form in columns.items() if any(row.get(name) is not None for row in table_rows)}
    style: Any = {"box": None, "header_style": "bold", "pad_edge": False, "padding": (0, 2, 0, 0)}
    table = Table(title=title, title_justify="left", **style)
    for name, form in formats.items():
        table.add_column(name, justify="right" if form else "left", overflow="fold")
    for row in table_rows:
        values = ((row.get(name), form) for name, form in formats.items())
        table.add_row(*("" if value is None else format(value, form) for value, form in values))
    return table


def to_json(value: Any) -> Any:
    """Rows, or whatever holds figures, as JSON has them."""
    if isinstance(value, Interval):
        return vars(value)
    if isinstance(value, Mapping):
        return {str(name): to_json(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(member) for member in value]
    return value.item() if isinstance(value, np.generic) else value
