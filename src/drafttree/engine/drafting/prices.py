"""What passes and rounds cost: the measured curve, its file, and how rounds mend it.

Costs are seconds where they were measured; only their ratios decide. The curve is of one text, and perhaps of another
hour; each number of texts has a line of its own that leads from it to what passes over so many cost.
"""

import hashlib
import json
import math
import platform
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch import nn

from drafttree.core.cost_curve import CostCurve, Costs, DraftCosts, parse_cost_curve
from drafttree.core.errors import ConfigError
from drafttree.drafters.base import Drafter
from drafttree.engine.drafting.disk_cache import read_cached, write_cached
from drafttree.engine.metrics import Round
from drafttree.models import Model, TargetModel
from drafttree.models.module.released import shapes

MEMORY = 32.0
"""Rounds after which a round counts 1/e, in costs and in the rate of drafting alike."""
LATEST = 9
"""Values of which the median counts: what else a machine does must not decide, and a new pace has to."""
FIRST, OUTLIER = 4.0, 1.5
"""Behind so many passes, one counts for this multiple of what was expected at most. One that is cheaper by as much
shows that those before it were outliers."""
NOISE, INFORMED = 0.1, 0.25
"""The share by which passes of one size differ: costs are proportional to the curve's until those of several sizes have
shown more. What a row adds is known well enough from this share of that evidence on."""
SLOPES = 32.0
"""The slope of a line is within this factor of the proportional one: noise must not make a row free or endless."""
MOST_KNOWN = 4096
"""Ways to draft whose costs are remembered while no round mends them."""
READING = -1
"""Where the others have their `bucket`, that of passes over prompts alone: they score nothing, and are long."""
UNKNOWN = CostCurve(
    target=Costs((1, 2), (1.0, 1.0625)),
    draft=(DraftCosts(0.0, Costs((1,), (0.0,))), DraftCosts(0.25, Costs((1,), (0.05,)))),
    overhead=0.0,
    plain_overhead=0.0,
)
"""Where nothing was measured a row adds a sixteenth of a pass, lookup costs nothing and another model a quarter."""


class Latest:
    """The median of the latest values of something by size; a size that was not seen has that of the nearest one."""

    def __init__(self) -> None:
        self._values: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}

    def at(self, size: float, unknown: float, *, exactly: bool = False) -> float:
        """The value at a size, `unknown` where there is none, or none of this very size."""
        if (size_bucket := bucket(size)) in self._medians:
            return self._medians[size_bucket]
        if exactly or not self._medians:
            return unknown
        return self._medians[min(self._medians, key=lambda known: abs(known - size_bucket))]

    def observe(self, size: float, value: float) -> None:
        """Take note of a round's value."""
        size_bucket = bucket(size)
        values = self._values.setdefault(size_bucket, deque(maxlen=LATEST))
        if values and OUTLIER * value < self._medians[size_bucket]:
            values.clear()
        values.append(value)
        self._medians[size_bucket] = median(values)

    def forget(self, size: float) -> None:
        """Take the values at a size for outliers."""
        del self._values[bucket(size)], self._medians[bucket(size)]


class Line:
    """The line from costs by the curve to those of rounds.

    Rounds of one size cannot tell a higher price of every row from one of the pass as such; those of several can.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, expected: float, measured: float) -> None:
        """Take note of a pass."""
        if self._weight:
            if OUTLIER * measured < self.at(expected):
                self._weight = self._x = self._y = self._xx = self._xy = 0.0
            elif self._weight >= FIRST:
                measured = min(measured, OUTLIER * self.at(expected))
        decay = 1 - 1 / MEMORY
        self._weight = decay * self._weight + 1
        self._x = decay * self._x + expected
        self._y = decay * self._y + measured
        self._xx = decay * self._xx + expected * expected
        self._xy = decay * self._xy + expected * measured

    @property
    def is_informed(self) -> bool:
        """Whether sizes differed enough lately to tell what a further row costs."""
        return self._weight > 0 and self._spread > INFORMED * self._prior

    def at(self, expected: float) -> float:
        """The cost of a pass where this is expected."""
        return self.all([expected])[0]

    def all(self, expected: Sequence[float]) -> list[float]:
        """The costs of several passes."""
        middle = self._x / self._weight
        level = self._y / self._weight
        through_zero = level / middle
        slope = (self._xy - self._weight * middle * level + self._prior * through_zero) / (self._spread + self._prior)
        slope = min(max(slope, through_zero / SLOPES), SLOPES * through_zero)
        offset = level - slope * middle
        min_slope = through_zero / SLOPES
        return [max(offset + slope * cost, min_slope * cost) for cost in expected]

    @property
    def _prior(self) -> float:
        """The spread that the line through zero stands for."""
        return (NOISE * self._x / self._weight) ** 2

    @property
    def _spread(self) -> float:
        """The sum of squared distances of the sizes from their mean."""
        return self._xx - self._x**2 / self._weight


class Prices:
    """The costs of passes and rounds by how many texts they advance.

    Args:
        curve: as measured, of one text; None where nothing was.
        frozen: leave it as it is, so that no clock decides what is drafted.
    """

    def __init__(self, curve: CostCurve | None, *, frozen: bool = False) -> None:
        self.measured = curve or UNKNOWN
        self.frozen = frozen
        self._passes: dict[int, Line] = {}
        self._plain = Latest()  # of passes over roots alone, what all else is compared with
        self._rest = {False: Latest(), True: Latest()}
        self._drafts = [Latest() for _ in self.measured.draft]
        # What every text of a round asks anew, until a round mends it.
        self._rounds: dict[tuple[int, int, bool], tuple[float, float]] = {}
        self._draftings: dict[tuple[int, ...], float] = {}

    def target(self, batch: int, rows: int) -> float:
        """Cost of a target pass over the rows of so many texts."""
        return self.targets(batch, rows, 0)[0]

    def targets(self, batch: int, rows: int, more: int) -> list[float]:
        """Costs of target passes over so many rows and 0, 1, 2 ... `more`; none is cheaper than one of a row a text."""
        curve = self.measured.target
        curve_costs = [curve.at(rows)] if not more else curve.up_to(rows + more)[rows:]
        if not self._passes:
            return curve_costs
        batch_bucket = bucket(batch)
        line = self._passes[
            batch_bucket
            if batch_bucket in self._passes
            else min(self._passes, key=lambda known: abs(known - batch_bucket))
        ]
        costs = line.all(curve_costs)
        plain_cost = self._plain.at(batch, -1.0, exactly=True)
        costs = [max(cost, plain_cost) for cost in costs]
        if rows <= batch and plain_cost >= 0:
            costs[0] = plain_cost
        return costs

    def level(self, source: int, width: int) -> float:
        """Cost of a draft pass over so many nodes, behind the first one."""
        return self.measured.draft_of(source).later.at(width) * self._factor(source).at(width, 1.0)

    def drafting(self, source: int, widths: Sequence[int]) -> float:
        """Cost of drafting levels of these widths over all texts, the first being that of the roots."""
        key = source, *widths
        if key not in self._draftings:
            if len(self._draftings) >= MOST_KNOWN:
                self._draftings.clear()
            mean = sum(widths) / max(len(widths), 1)
            self._draftings[key] = self._by_curve(source, widths) * self._factor(source).at(mean, 1.0)
        return self._draftings[key]

    def round(self, batch: int, rows: int, drafting: float | None = None) -> float:
        """Cost of a whole round, given that of drafting; None for a round without drafts."""
        key = batch, rows, drafting is not None
        if key not in self._rounds:
            self._rounds[key] = self.target(batch, rows), self._other(batch, drafted=drafting is not None)
        target, outside_cost = self._rounds[key]
        return target + (drafting or 0.0) + outside_cost

    def knows_rows(self, batch: int) -> bool:
        """Whether it is known what a further row adds to a pass over so many texts."""
        line = self._passes.get(bucket(batch))
        return self.frozen or (line is not None and line.is_informed)

    def rows_within(self, batch: int, most: int, cost: float) -> int:
        """How many rows, at most so many, may join those of a plain round before it costs more than this."""
        low, high = 0, most
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if self.round(batch, batch + middle) <= cost else (low, middle - 1)
        return low

    def observe(
        self,
        batch: int,
        rows: int,
        target: float,
        draft: float,
        rest: float | None,
        drafted: Sequence[tuple[int, Sequence[int]]],
    ) -> None:
        """Mend the costs by a round that has ended.

        Args:
            batch: texts that it advanced, 0 where it read prompts and nothing else.
            rows: rows of its target pass.
            target: seconds of that pass.
            draft: seconds of drafting, growing the trees included.
            rest: seconds of all else; None where drafters have read prompts in them, or texts that ended were kept.
            drafted: source and widths, over all texts, of every group that was drafted for.
        """
        if self.frozen or not rows:
            return
        self._rounds.clear()
        self._draftings.clear()
        line = self._passes.setdefault(bucket(batch) if batch else READING, Line())
        line.observe(self.measured.target.at(rows), target)
        if not batch:
            return
        if rows == batch:
            self._plain.observe(batch, target)
        elif OUTLIER * target < self._plain.at(batch, 0.0, exactly=True):
            self._plain.forget(batch)  # more rows are never cheaper, so those were outliers
        if (expected_cost := sum(self._by_curve(*group) for group in drafted)) > 0:
            widths = [width for _, group_widths in drafted for width in group_widths]
            for source in {source for source, _ in drafted}:
                self._factor(source).observe(sum(widths) / len(widths), draft / expected_cost)
        if rest is not None:
            self._rest[bool(drafted)].observe(batch, rest)

    def observe_text(self, rounds: Sequence[Round]) -> None:
        """Mend the costs by rounds of a text that was written alone."""
        for turn in rounds:
            growth, groups = (turn.growth_seconds, [(turn.source, turn.widths)]) if turn.widths else (0.0, [])
            rest_seconds = turn.outside_seconds - growth
            self.observe(1, turn.nodes, turn.target_seconds, turn.drafting_seconds, rest_seconds, groups)

    def curve(self) -> CostCurve:
        """The curve of rounds of one text as rounds have mended it; what was not seen is as much slower as a pass."""
        measured_curve = self.measured
        pace = self.target(1, 1) / self.measured.target.at(1)
        return CostCurve(
            target=Costs.of({nodes: self.target(1, nodes) for nodes in measured_curve.target.sizes}),
            draft=tuple(
                DraftCosts(
                    draft.first * factor.at(1, pace),
                    Costs.of({width: draft.later.at(width) * factor.at(width, pace) for width in draft.later.sizes}),
                )
                for draft, factor in zip(measured_curve.draft, self._drafts, strict=True)
            ),
            overhead=self._rest[True].at(1, pace * measured_curve.overhead),
            plain_overhead=self._rest[False].at(1, pace * measured_curve.plain_overhead),
        )

    def _other(self, batch: int, *, drafted: bool) -> float:
        """Cost of a round outside its passes; where no such round was seen, as of the other kind."""
        overhead = self.measured.overhead if drafted else self.measured.plain_overhead
        return self._rest[drafted].at(batch, self._rest[not drafted].at(batch, overhead))

    def _factor(self, source: int) -> Latest:
        """What drafting costs by the clock over what it costs by the curve."""
        return self._drafts[min(source, len(self._drafts) - 1)]

    def _by_curve(self, source: int, widths: Sequence[int]) -> float:
        """Cost of drafting by the curve, in which the first level is that of one text."""
        draft = self.measured.draft_of(source)
        return draft.first + sum(map(draft.later.at, widths)) - draft.later.at(1) if widths else 0.0


def bucket(size: float) -> int:
    """Sizes within a factor of the root of 2 are one."""
    return round(2 * math.log2(max(size, 1.0)))


# The file.


@dataclass(frozen=True)
class KeptCosts:
    """What is kept of a target and a drafter for the next process.

    Attributes:
        costs: costs as they were measured, or mended since.
        alone: what a target pass over several nodes cost in passes over one, without other work between them; it tells
            whether the machine is still as it was when the costs were measured.
    """

    costs: CostCurve
    alone: float


class CostFile:
    """Where the costs of a target and a drafter on this machine are kept, if they can be told from others.

    Args:
        target: the target, by its architecture, device, dtype and threads; one that is no transformers model is not
            kept.
        drafter: the drafter, by its architecture.
        greedy: whether rounds are; costs of the others are kept apart.
    """

    def __init__(self, target: Model, drafter: Drafter, *, greedy: bool = True) -> None:
        self._key = cost_key(target, drafter, greedy=greedy)

    def read(self) -> KeptCosts | None:
        """The costs that are kept, None where there are none, or none that can be read."""
        match read_cached(self._key) if self._key else None:
            case {"costs": costs, "alone": float(alone)} if alone > 0:
                try:
                    return KeptCosts(parse_cost_curve(costs), alone)
                except ConfigError:  # of another version
                    return None
        return None

    def write(self, kept: KeptCosts) -> KeptCosts:
        """Keep the costs, and return them."""
        if self._key:
            write_cached(self._key, {"costs": kept.costs.to_json(), "alone": kept.alone})
        return kept


def cost_key(target: Model, drafter: Drafter, *, greedy: bool = True) -> str | None:
    """What decides the costs, as a text; None where the target is no transformers model and cannot be told apart.

    Shapes and types of weights decide, their values do not.
    """
    if not isinstance(target, TargetModel):
        return None
    rounds = "greedy" if greedy else "sampled"
    fields = (_digest(target), _digest(drafter), machine(target.device), str(target.dtype), rounds, torch.__version__)
    return " | ".join(fields)


def machine(device: torch.device) -> str:
    """The part of a machine that passes take their time on; processors of two machines are taken to differ."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device} of {platform.node()}, {platform.machine()}, {torch.get_num_threads()} threads"


def _digest(model: Any) -> str:
    """A digest of the architecture of a target or a drafter."""
    return hashlib.sha256(json.dumps(_describe(model), default=str).encode()).hexdigest()[:16]


def _describe(part: Any, depth: int = 0) -> Any:
    if isinstance(part, TargetModel):
        return [type(part.backend).__name__, _describe(part.module)]
    if isinstance(part, nn.Module):
        config: Any = getattr(part, "config", None)
        return [type(part).__name__, config.to_diff_dict() if hasattr(config, "to_diff_dict") else None, shapes(part)]
    if isinstance(part, bool | int | float | str | torch.dtype) or part is None:
        return str(part)
    attributes: dict[str, Any] = vars(part) if hasattr(part, "__dict__") and depth < 3 else {}
    return [
        type(part).__qualname__,
        [(name, _describe(attribute, depth + 1)) for name, attribute in sorted(attributes.items())],
    ]
