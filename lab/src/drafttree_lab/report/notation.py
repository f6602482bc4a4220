"""How numbers and names are written on the page."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from drafttree_lab.replay.measured import Value
from drafttree_lab.replay.paper import UNTOLD


def number(value: float) -> str:
    """A measured number with as many digits as are of use."""
    if abs(value) >= 100:
        return f"{value:.1f}" if abs(value) < 1000 else f"{value:.0f}"
    return f"{value:.2f}" if abs(value) >= 0.1 or value == 0 else f"{value:.2g}"


def interval(value: Value) -> str:
    """The interval of a measured number; empty where one prompt was run."""
    return "" if value.low is None or value.high is None else f"{number(value.low)} to {number(value.high)}"


def decimals(values: Iterable[float]) -> int:
    """The decimals of the most exact of some published numbers, which the others had in print too."""
    return max((len(f"{value:.10g}".partition(".")[2]) for value in values if value == value), default=0)


def printed(value: float, places: int | None = None) -> str:
    """A published number with so many decimals, or all it has; empty where the paper prints none."""
    if value != value:
        return ""
    return f"{value:.10g}" if places is None else f"{value:.{places}f}"


def model_name(model: str) -> str:
    """The target of a published number."""
    return "model not told" if model == UNTOLD else model


def anchor(name: str) -> str:
    """The name of a paper or result as an id of the page."""
    return re.sub(r"[^\w-]", "-", name)


def result_name(result: str) -> str:
    """A table or figure as papers refer to it: "Table 1" of `talon/1`, "Figure 3a" of `dynatree-v1/fig3a`."""
    name, _, part = result.rpartition("/")[2].partition("-")
    words = f"Table {name}" if name.isdigit() else re.sub("^fig(?=[0-9])", "Figure ", name)
    return words[:1].upper() + words[1:] + (f", {part}" if part else "")


FILTERS: Mapping[str, Callable[..., Any]] = {
    "anchor": anchor,
    "number": number,
    "interval": interval,
    "result_name": result_name,
    "decimals": decimals,
    "printed": printed,
    "model": model_name,
}
"""By their names in the template."""
