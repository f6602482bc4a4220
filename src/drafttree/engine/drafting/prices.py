"""The prices of passes and rounds: the measured cost curve, its file, and its correction by rounds.

Measured costs are in seconds; only ratios matter. The curve was measured with one text, perhaps under another load of
the machine. So for each batch size, a line maps costs of the curve to costs of passes.
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
from drafttree.engine.metrics import TextRound
from drafttree.models import Model, TargetModel
from drafttree.models.module.released import shapes

MEMORY = 32.0
"""Number of further rounds after which a round's weight, in costs and in rates, has fallen to 1/e."""
LATEST = 9
"""Number of values whose median counts: enough to ignore single slow rounds, few enough to follow a new pace."""
FIRST, OUTLIER = 4.0, 1.5
"""After this many passes, a pass counts as at most this multiple of its expected cost. A pass that is cheaper by this
factor shows that the passes before it were outliers."""
NOISE, INFORMED = 0.1, 0.25
"""Relative noise of passes of one size. Costs are proportional to the curve's until passes of several sizes outweigh
this noise. From the second share of this evidence on, the cost of a further row counts as known."""
SLOPES = 32.0
"""A line's slope stays within this factor of the proportional one, so that noise makes no row free or priceless."""
MAX_CACHED = 4096
"""Maximum number of costs that are cached between two rounds."""
READING = -1
"""The key, in place of a `bucket`, of passes that only read prompts."""
UNKNOWN = CostCurve(
    target=Costs((1, 2), (1.0, 1.0625)),
    draft=(DraftCosts(0.0, Costs((1,), (0.0,))), DraftCosts(0.25, Costs((1,), (0.05,)))),
    overhead=0.0,
    plain_overhead=0.0,
)
"""The costs if nothing was measured: a row adds 1/16 of a pass, and lookup is free. Another model costs 1/4 of a pass
for the first level and 1/20 for each further one."""


class Latest:
    """The median of the latest values of each size. A size without values takes those of the nearest size."""

    def __init__(self) -> None:
        self._values: dict[int, deque[float]] = {}
        self._medians: dict[int, float] = {}

    def at(self, size: float, default: float, *, exactly: bool = False) -> float:
        """The value at a size; `default` if there are no values, or with `exactly` none of this very size."""
        if (size_bucket := bucket(size)) in self._medians:
            return self._medians[size_bucket]
        if exactly or not self._medians:
            return default
        return self._medians[min(self._medians, key=lambda known_bucket: abs(known_bucket - size_bucket))]

    def observe(self, size: float, value: float) -> None:
        """Add the value of a round."""
        size_bucket = bucket(size)
        values = self._values.setdefault(size_bucket, deque(maxlen=LATEST))
        if values and OUTLIER * value < self._medians[size_bucket]:
            values.clear()
        values.append(value)
        self._medians[size_bucket] = median(values)

    def forget(self, size: float) -> None:
        """Drop the values at a size, as outliers."""
        del self._values[bucket(size)], self._medians[bucket(size)]


class Line:
    """Maps costs of the curve to costs of passes, by a weighted linear regression over recent passes.

    Passes of one size cannot tell whether each row or the whole pass has become dearer; passes of several sizes can.
    """

    def __init__(self) -> None:
        self._weight = self._x = self._y = self._xx = self._xy = 0.0

    def observe(self, expected: float, measured: float) -> None:
        """Add a pass.

        Args:
            expected: its cost by the curve.
            measured: its measured cost.
        """
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
        """Whether recent passes differed enough in size to tell the cost of a further row."""
        return self._weight > 0 and self._spread > INFORMED * self._prior

    def at(self, expected: float) -> float:
        """The cost of a pass, given its cost by the curve."""
        return self.all([expected])[0]

    def all(self, expected: Sequence[float]) -> list[float]:
        """The costs of passes, given their costs by the curve."""
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
        """The weight of the proportional line, in the unit of `_spread`."""
        return (NOISE * self._x / self._weight) ** 2

    @property
    def _spread(self) -> float:
        """The weighted sum of squared distances of expected costs from their mean."""
        return self._xx - self._x**2 / self._weight


class Prices:
    """The costs of passes and rounds by batch size.

    Args:
        curve: the curve measured with one text; None if nothing was measured.
        frozen: keep the costs as they are, so that no clock decides what is drafted.
    """

    def __init__(self, curve: CostCurve | None, *, frozen: bool = False) -> None:
        self.measured = curve or UNKNOWN
        self.frozen = frozen
        self._passes: dict[int, Line] = {}
        self._plain = Latest()  # costs of passes over roots alone
        self._overheads = {False: Latest(), True: Latest()}
        self._drafts = [Latest() for _ in self.measured.draft]
        # Caches for the texts of one round; the next observed round clears them.
        self._rounds: dict[tuple[int, int, bool], tuple[float, float]] = {}
        self._draftings: dict[tuple[int, ...], float] = {}

    def target(self, batch: int, rows: int) -> float:
        """Cost of a target pass over `rows` rows of `batch` texts."""
        return self.targets(batch, rows, 0)[0]

    def targets(self, batch: int, rows: int, max_added: int) -> list[float]:
        """Costs of target passes over `rows` to `rows + max_added` rows, none less than that of a pass over roots."""
        curve = self.measured.target
        curve_costs = [curve.at(rows)] if not max_added else curve.up_to(rows + max_added)[rows:]
        if not self._passes:
            return curve_costs
        batch_bucket = bucket(batch)
        line = self._passes[
            batch_bucket
            if batch_bucket in self._passes
            else min(self._passes, key=lambda known_bucket: abs(known_bucket - batch_bucket))
        ]
        costs = line.all(curve_costs)
        plain_cost = self._plain.at(batch, -1.0, exactly=True)
        costs = [max(cost, plain_cost) for cost in costs]
        if rows <= batch and plain_cost >= 0:
            costs[0] = plain_cost
        return costs

    def level(self, source: int, width: int) -> float:
        """Cost of a draft pass after the first one, over `width` nodes."""
        return self.measured.draft_of(source).later.at(width) * self._factor(source).at(width, 1.0)

    def drafting(self, source: int, widths: Sequence[int]) -> float:
        """Cost of drafting levels of these widths over all texts; the first width is the number of roots."""
        key = source, *widths
        if key not in self._draftings:
            if len(self._draftings) >= MAX_CACHED:
                self._draftings.clear()
            mean = sum(widths) / max(len(widths), 1)
            self._draftings[key] = self._by_curve(source, widths) * self._factor(source).at(mean, 1.0)
        return self._draftings[key]

    def round(self, batch: int, rows: int, drafting: float | None = None) -> float:
        """Cost of a whole round.

        Args:
            batch: texts of the round.
            rows: rows of its target pass.
            drafting: cost of drafting; None for a round without drafts.
        """
        key = batch, rows, drafting is not None
        if key not in self._rounds:
            if len(self._rounds) >= MAX_CACHED:
                self._rounds.clear()
            self._rounds[key] = self.target(batch, rows), self._overhead(batch, drafted=drafting is not None)
        target, overhead = self._rounds[key]
        return target + (drafting or 0.0) + overhead

    def knows_rows(self, batch: int) -> bool:
        """Whether the cost of a further row is known for this batch size."""
        line = self._passes.get(bucket(batch))
        return self.frozen or (line is not None and line.is_informed)

    def rows_within(self, batch: int, max_rows: int, cost: float) -> int:
        """The number of rows, up to `max_rows`, that can be added to a plain round until it costs more than `cost`."""
        low, high = 0, max_rows
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
        rest_seconds: float | None,
        drafted: Sequence[tuple[int, Sequence[int]]],
    ) -> None:
        """Correct the costs by a round.

        Args:
            batch: number of texts that wrote tokens; 0 if the round only read prompts.
            rows: rows of its target pass.
            target: seconds of that pass.
            draft: seconds of drafting, including tree growth.
            rest_seconds: all other seconds; None if they include reading prompts or storing ended texts.
            drafted: per group that drafted, the index of the drafter's model and the level widths over all texts.
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
            self._plain.forget(batch)  # more rows are never cheaper, so the earlier values were outliers
        if (expected_cost := sum(self._by_curve(*group) for group in drafted)) > 0:
            widths = [width for _, group_widths in drafted for width in group_widths]
            for source in {source for source, _ in drafted}:
                self._factor(source).observe(sum(widths) / len(widths), draft / expected_cost)
        if rest_seconds is not None:
            self._overheads[bool(drafted)].observe(batch, rest_seconds)

    def observe_text(self, rounds: Sequence[TextRound]) -> None:
        """Correct the costs by rounds of a text that was written alone."""
        for text_round in rounds:
            growth, groups = (
                (text_round.growth_seconds, [(text_round.source, text_round.widths)])
                if text_round.widths
                else (0.0, [])
            )
            rest_seconds = text_round.outside_seconds - growth
            self.observe(
                1, text_round.nodes, text_round.target_seconds, text_round.drafting_seconds, rest_seconds, groups
            )

    def curve(self) -> CostCurve:
        """The corrected curve for rounds of one text. Costs that no round has shown are scaled like target passes."""
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
            overhead=self._overheads[True].at(1, pace * measured_curve.overhead),
            plain_overhead=self._overheads[False].at(1, pace * measured_curve.plain_overhead),
        )

    def _overhead(self, batch: int, *, drafted: bool) -> float:
        """Cost of a drafted or a plain round outside its passes; if none was observed, that of the other kind."""
        overhead = self.measured.overhead if drafted else self.measured.plain_overhead
        return self._overheads[drafted].at(batch, self._overheads[not drafted].at(batch, overhead))

    def _factor(self, source: int) -> Latest:
        """For a model of the drafter, the ratio of measured drafting costs to those of the curve, by mean width."""
        return self._drafts[min(source, len(self._drafts) - 1)]

    def _by_curve(self, source: int, widths: Sequence[int]) -> float:
        """Cost of drafting by the curve, whose first level has one root; further roots cost like other nodes."""
        draft = self.measured.draft_of(source)
        return draft.first + sum(map(draft.later.at, widths)) - draft.later.at(1) if widths else 0.0


def bucket(size: float) -> int:
    """The bucket of a size; sizes within a factor of about the square root of 2 share one."""
    return round(2 * math.log2(max(size, 1.0)))


# The file.


@dataclass(frozen=True)
class KeptCosts:
    """The costs that are kept for the next process.

    Attributes:
        costs: the costs as measured, or as corrected since.
        alone: cost of a wide target pass relative to one over a single node, both timed alone. `is_current` compares
            it with the present ratio.
    """

    costs: CostCurve
    alone: float


class CostFile:
    """The file with the costs of a target and a drafter on this machine; no file if they cannot be identified.

    Args:
        target: the target, told apart by its architecture, device, dtype and threads. Nothing is kept unless it is a
            transformers model.
        drafter: the drafter, told apart by its architecture.
        greedy: whether the costs are those of greedy rounds; those of sampled rounds are kept separately.
    """

    def __init__(self, target: Model, drafter: Drafter, *, greedy: bool = True) -> None:
        self._key = cost_key(target, drafter, greedy=greedy)

    def read(self) -> KeptCosts | None:
        """The kept costs; None if there are none, or they cannot be read."""
        match read_cached(self._key) if self._key else None:
            case {"costs": costs, "alone": float(alone)} if alone > 0:
                try:
                    return KeptCosts(parse_cost_curve(costs), alone)
                except ConfigError:  # of another version
                    return None
        return None

    def write(self, kept_costs: KeptCosts) -> KeptCosts:
        """Keep the costs, and return them."""
        if self._key:
            write_cached(self._key, {"costs": kept_costs.costs.to_json(), "alone": kept_costs.alone})
        return kept_costs


def cost_key(target: Model, drafter: Drafter, *, greedy: bool = True) -> str | None:
    """A string of all that the costs depend on; None if the target is not a transformers model.

    Costs depend on the shapes and types of weights, not on their values.
    """
    if not isinstance(target, TargetModel):
        return None
    rounds = "greedy" if greedy else "sampled"
    fields = (_digest(target), _digest(drafter), machine(target.device), str(target.dtype), rounds, torch.__version__)
    return " | ".join(fields)


def machine(device: torch.device) -> str:
    """The name of a device; processors of two machines count as different."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{device} of {platform.node()}, {platform.machine()}, {torch.get_num_threads()} threads"


def _digest(model: Any) -> str:
    """A digest of the architecture of a target or a drafter."""
    return hashlib.sha256(json.dumps(_describe(model), default=str).encode()).hexdigest()[:16]


def _describe(model: Any, depth: int = 0) -> Any:
    if isinstance(model, TargetModel):
        return [model.backend.name, _describe(model.module)]
    if isinstance(model, nn.Module):
        config: Any = getattr(model, "config", None)
        return [type(model).__name__, config.to_diff_dict() if hasattr(config, "to_diff_dict") else None, shapes(model)]
    if isinstance(model, bool | int | float | str | torch.dtype) or model is None:
        return str(model)
    attributes: dict[str, Any] = vars(model) if hasattr(model, "__dict__") and depth < 3 else {}
    return [
        type(model).__qualname__,
        [(name, _describe(attribute, depth + 1)) for name, attribute in sorted(attributes.items())],
    ]
