"""Reads files of cost curves, which may come from another machine."""

from collections.abc import Sequence
from pathlib import Path

from drafttree.core.cost_curve import CostCurve, parse_cost_curve
from drafttree.core.errors import ConfigError, InputError
from drafttree.loading.json_file import read_json_file


def read_cost_curves(path: Path, drafters: Sequence[str]) -> dict[str, CostCurve]:
    """The cost curves of a JSON file by drafter.

    The file holds one curve as `CostCurve.to_json` gives it, for all drafters, or an object of curves by drafter, or
    what `drafttree generate --json` prints.

    Args:
        path: the JSON file.
        drafters: the drafters whose curves are read.

    Raises:
        InputError: the file cannot be read, is not JSON, lacks a drafter, or holds an invalid curve.
    """
    curves = read_json_file(path)
    if isinstance(curves, dict) and "target" in (curves.get("costs") or ()):
        curves = curves["costs"]
    if not isinstance(curves, dict) or "target" in curves:
        curves = dict.fromkeys(drafters, curves)
    elif missing_drafters := [name for name in drafters if name not in curves]:
        raise InputError(
            f"{path}: no cost curve of {', '.join(missing_drafters)}; it has {', '.join(curves) or 'none'}"
        )
    try:
        return {name: parse_cost_curve(curves[name]) for name in drafters}
    except ConfigError as error:
        raise InputError(f"{path}: {error}") from None
