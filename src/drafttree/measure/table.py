"""Rows of figures as a table in the terminal and as JSON."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from rich.table import Table

from drafttree.measure.interval import Interval

Row = Mapping[str, Any]


def to_table(title: str, rows: Iterable[Row], columns: Mapping[str, str]) -> Table:
    """A table of some columns of the rows; columns without any figure are left out.

    Args:
        title: the line above the table.
        rows: figures by name; a missing one leaves its cell empty.
        columns: by name, the format of the numbers; "" for text.
    """
    table_rows = list(rows)
    formats = {name: form for name, form in columns.items() if any(row.get(name) is not None for row in table_rows)}
    style: Any = {"box": None, "header_style": "bold", "pad_edge": False, "padding": (0, 2, 0, 0)}
    table = Table(title=title, title_justify="left", **style)
    for name, form in formats.items():
        table.add_column(name, justify="right" if form else "left", overflow="fold")
    for row in table_rows:
        table.add_row(*(_cell(row.get(name), form) for name, form in formats.items()))
    return table


def _cell(value: Any, form: str) -> str:
    return "" if value is None else format(value, form)


def to_json(value: Any) -> Any:
    """Nested values with figures, such as rows, as plain values for JSON."""
    if isinstance(value, Interval):
        return vars(value)
    if isinstance(value, Mapping):
        return {str(name): to_json(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(member) for member in value]
    return value.item() if isinstance(value, np.generic) else value
