"""The costs of the parts of a round, by which a policy weighs a node against its time.

All costs are in one unit, seconds where they were measured; only their ratios decide. In the words of the speed-up law:
v(n) = `target(n)` / `target(1)`, c = `draft(...)` / `target(1)`, h = `overhead` / `target(1)`.
"""

import re
import sys
from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

from drafttree.core.errors import ConfigError

LARGEST_STEP = 8
"""Largest ratio of two neighbouring measured sizes; costs between them are interpolated."""
LARGEST_COST = 1e100
"""Largest cost in a file: sums and multiples of larger ones would be infinite."""
SIZE = re.compile("[1-9][0-9]{0,5}")


@dataclass(frozen=True)
class Costs:
    """The cost of a pass by its size: linear between measured sizes, and beyond the last two.

    Attributes:
        sizes: the measured sizes, ascending; the first is 1.
        costs: the cost of each size, never falling; above 0, or for draft passes 0 too.
    """

    sizes: tuple[int, ...]
    costs: tuple[float, ...]

    @classmethod
    def of(cls, measured: Mapping[int, float]) -> "Costs":
        """The costs of measured passes. A larger pass that was measured as cheaper gets the smaller one's cost."""
        sizes = tuple(sorted(measured))
        costs = []
        highest_cost = 0.0
        for size in sizes:
            highest_cost = max(highest_cost, measured[size])
            costs.append(highest_cost)
        return cls(sizes, tuple(costs))

    def up_to(self, max_size: int) -> list[float]:
        """The costs of passes of the sizes 0 to `max_size`; the first has no meaning."""
        table = self._table
        if len(table) <= max_size:
            self.__dict__["_table"] = table = [*table, *map(self.at, range(len(table), max_size + 1))]
        return table[: max_size + 1]

    @cached_property
    def _table(self) -> list[float]:
        return []

    def at(self, size: int) -> float:
        """The cost of a pass of this size."""
        index = bisect_left(self.sizes, size)
        if index < len(self.sizes) and self.sizes[index] == size:
            return self.costs[index]
        high = min(max(index, 1), len(self.sizes) - 1)
        if not high:
            return self.costs[0]
        low = high - 1
        slope = (self.costs[high] - self.costs[low]) / (self.sizes[high] - self.sizes[low])
        return self.costs[low] + slope * (size - self.sizes[low])


@dataclass(frozen=True)
class DraftCosts:
    """The costs of drafting by level; each includes the growth of the tree on its level.

    Attributes:
        first: cost of the pass at the root.
        later: cost of a pass over a frontier, by its width; next to nothing for heads that draft all levels at once.
    """

    first: float
    later: Costs


@dataclass(frozen=True)
class CostCurve:
    """The costs of a target and a drafter on a machine.

    Attributes:
        target: cost of a target pass by number of nodes, the root included.
        draft: costs of each model of the drafter; one entry, unless it mixes several.
        overhead: cost of a round that drafts, without its passes.
        plain_overhead: the same of a round that does not draft.
    """

    target: Costs
    draft: tuple[DraftCosts, ...]
    overhead: float
    plain_overhead: float

    @cached_property
    def plain_round(self) -> float:
        """The cost of a round that drafts nothing and commits one token."""
        return self.target.at(1) + self.plain_overhead

    def draft_of(self, source: int) -> DraftCosts:
        """The costs of one model of the drafter; the last ones if the curve has fewer."""
        return self.draft[min(source, len(self.draft) - 1)]

    def round(self, nodes: int, widths: tuple[int, ...], source: int = 0) -> float:
        """The cost of a round.

        Args:
            nodes: number of nodes of its tree, the root included.
            widths: widths of the frontiers that were drafted from, the root's first; empty for a round without drafts.
            source: which model of the drafter drafted.
        """
        if not widths:
            return self.target.at(nodes) + self.plain_overhead
        draft = self.draft_of(source)
        return self.target.at(nodes) + self.overhead + draft.first + sum(map(draft.later.at, widths[1:]))

    def to_json(self) -> dict[str, Any]:
        """The curve as the JSON object of a curve file; `parse_cost_curve` reads it."""
        return {
            "target": _named(self.target),
            "draft": [{"first": draft.first, "later": _named(draft.later)} for draft in self.draft],
            "overhead": self.overhead,
            "plain_overhead": self.plain_overhead,
        }


def parse_cost_curve(value: Any) -> CostCurve:
    """Read the JSON object that `CostCurve.to_json` makes.

    Raises:
        ConfigError: a field is missing, a value is not a cost, costs fall, or sizes lie too far apart.
    """
    fields = _object(value, "a cost curve", ("target", "draft", "overhead", "plain_overhead"))
    drafts = fields["draft"] if isinstance(fields["draft"], list) else [fields["draft"]]
    if not drafts:
        raise ConfigError("a cost curve's 'draft' is empty; give the costs of one model at least")
    return CostCurve(
        target=_costs(fields["target"], "'target'"),
        draft=tuple(
            DraftCosts(
                _cost(draft_fields["first"], "'first'", zero=True), _costs(draft_fields["later"], "'later'", zero=True)
            )
            for draft_fields in (_object(draft, "'draft'", ("first", "later")) for draft in drafts)
        ),
        overhead=_cost(fields["overhead"], "'overhead'", zero=True),
        plain_overhead=_cost(fields["plain_overhead"], "'plain_overhead'", zero=True),
    )


def _costs(value: Any, label: str, *, zero: bool = False) -> Costs:
    if not isinstance(value, dict) or not value:
        raise ConfigError(f'a cost curve\'s {label} is not an object of costs by size, such as {{"1": 1.0, "4": 1.2}}')
    if bad := next((size for size in value if not SIZE.fullmatch(str(size))), None):
        raise ConfigError(f"a cost curve's {label} has a size of {bad!r}; sizes are whole numbers from 1 up")
    measured = {int(size): _cost(cost, f"{label} at {size}", zero=zero) for size, cost in value.items()}
    sizes = sorted(measured)
    if sizes[0] != 1:
        raise ConfigError(f"a cost curve's {label} begins at {sizes[0]}; measure 1 too")
    for size, next_size in pairwise(sizes):
        if next_size > LARGEST_STEP * size:
            raise ConfigError(
                f"a cost curve's {label} has a gap between {size} and {next_size}; measure {LARGEST_STEP * size} too"
            )
        if measured[next_size] < measured[size]:
            raise ConfigError(
                f"a cost curve's {label} falls from {measured[size]:g} at {size} to {measured[next_size]:g} at "
                f"{next_size}; a larger pass is no cheaper, so measure both again"
            )
    return Costs.of(measured)


def _cost(value: Any, label: str, *, zero: bool = False) -> float:
    number = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= sys.float_info.max
    if not number or not (value or zero):
        raise ConfigError(f"a cost curve's {label} is {value!r}; give a cost {'of 0 or more' if zero else 'above 0'}")
    if value > LARGEST_COST:
        raise ConfigError(f"a cost curve's {label} is {value!r}; give a cost of at most {LARGEST_COST:g}")
    return float(value)


def _object(value: Any, label: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{label} is not a JSON object with {', '.join(names)}")
    if missing_names := [name for name in names if name not in value]:
        raise ConfigError(f"{label} lacks {', '.join(missing_names)}; it needs {', '.join(names)}")
    if extra := [name for name in value if name not in names]:
        raise ConfigError(f"{label} has {', '.join(map(str, extra))}, which is unknown; known: {', '.join(names)}")
    return value


def _named(costs: Costs) -> dict[str, float]:
    return {str(size): cost for size, cost in zip(costs.sizes, costs.costs, strict=True)}
