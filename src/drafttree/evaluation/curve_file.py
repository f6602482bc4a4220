"""Files of cost curves: what another machine measured, to be weighed on this one."""

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
        drafters: the drafters whose curves are wanted.

    Raises:
        InputError: it cannot be read, is not JSON, lacks a drafter, or a curve in it is not one or has gaps.
    """
    found = read_json_file(path)
    if isinstance(found, dict) and "target" in (found.get("costs") or ()):
        found = found["costs"]
    if not isinstance(found, dict) or "target" in found:
        found = dict.fromkeys(drafters, found)
    elif lacking := [name for name in drafters if name not in found]:
        raise InputError(f"{path}: no cost curve of {', '.join(lacking)}; it has {', '.join(found) or 'none'}")
    try:
        return {name: parse_cost_curve(found[name]) for name in drafters}
    except ConfigError as error:
        raise InputError(f"{path}: {error}") from None
