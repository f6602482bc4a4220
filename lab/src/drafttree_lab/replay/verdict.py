"""What measurements say of a paper's claim."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import torch
from torch import Tensor

from drafttree_lab.replay.bootstrap import interval
from drafttree_lab.replay.paper import Claim, Comparison, Order, Trend

Outcome = Literal["reproduced", "contradicted", "undecided", "not comparable", "not run"]
MOST_PROMPTS = 100_000
LEAST_PROMPTS = 3
"""With fewer prompts of a set, resampling them says nothing."""
SAME_ORDER = 0.5
"""Kendall's tau above which an order is the claimed one: three of four pairs of methods stand in it."""
Means = Callable[[str], Tensor]
"""By the name of a method, or `method@value`, the mean of the claim's metric, as `Bootstrap.mean` gives it."""


@dataclass(frozen=True)
class Verdict:
    """The outcome of a claim.

    Attributes:
        id: the id of the claim.
        text: what the paper says.
        line: the line of the paper's text.
        main: whether it is one of the paper's main claims.
        outcome: the verdict.
        said: what was measured, or why there is no verdict.
        estimate: a ratio, or Kendall's tau; None without one.
        low: lower end of its 95 % interval.
        high: upper end.
        prompts: prompts that it rests on.
        needed: prompts that would decide it, if the estimate stays; None where it is decided or none would.
    """

    id: str
    text: str
    line: int
    main: bool
    outcome: Outcome
    said: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    prompts: int = 0
    needed: int | None = None


def without(claim: Claim, outcome: Outcome, reason: str) -> Verdict:
    """The verdict on a claim for which nothing was measured."""
    return Verdict(claim.id, claim.text, claim.line, claim.main, outcome, reason)


def judge(
    claim: Comparison | Order | Trend, means: Means, axis: Sequence[object], prompts: int, *, enough: bool
) -> Verdict:
    """The verdict on a claim.

    Args:
        claim: what is judged.
        means: means of its metric.
        axis: values of the result's axis that were run, for a trend.
        prompts: prompts that the means rest on.
        enough: whether every set has `LEAST_PROMPTS`; if not, nothing is decided.
    """
    if isinstance(claim, Order):
        values, neutral, name = _kendall(claim.methods, means), SAME_ORDER, "Kendall's tau"
        reached = ">"
    else:
        values, name = _ratio(claim, means, axis)
        neutral, reached = 1.0, claim.sign
    estimate, (low, high) = values[0].item(), interval(values)
    outcome = _outcome(low, high, neutral, reached) if enough else "undecided"
    said = f"{name} {estimate:.2f} [{low:.2f}, {high:.2f}]"
    found: dict[str, Any] = {"estimate": estimate, "low": low, "high": high, "prompts": prompts}
    if not enough:
        said = f"{name} {estimate:.2f}, on too few prompts to judge: give {LEAST_PROMPTS} of every set"
    elif outcome == "undecided":
        found["needed"] = _needed(estimate, low, high, neutral, prompts)
    return Verdict(claim.id, claim.text, claim.line, claim.main, outcome, said, **found)


def _ratio(claim: Comparison | Trend, means: Means, axis: Sequence[object]) -> tuple[Tensor, str]:
    if isinstance(claim, Comparison):
        return means(claim.left) / means(claim.right), f"{claim.left} / {claim.right}"
    first, last = (_relative(claim, means, value) for value in (axis[0], axis[-1]))
    method = f"{claim.method} / {claim.over}" if claim.over else claim.method
    return last / first, f"{method}, {axis[-1]} over {axis[0]}:"


def _relative(claim: Trend, means: Means, value: object) -> Tensor:
    own = means(f"{claim.method}@{value}")
    return own / means(f"{claim.over}@{value}") if claim.over else own


def _kendall(methods: Sequence[str], means: Means) -> Tensor:
    """Kendall's tau of the claimed order and the measured one."""
    found = {name: means(name) for name in methods}
    signs = [torch.sign(found[high] - found[low]) for high, low in combinations(methods, 2)]
    return torch.stack(signs).mean(0)


def _outcome(low: float, high: float, neutral: float, sign: str) -> Outcome:
    if low <= neutral <= high:
        return "undecided"
    return "reproduced" if (low > neutral) == (sign == ">") else "contradicted"


def _needed(estimate: float, low: float, high: float, neutral: float, prompts: int) -> int | None:
    """Prompts with which the interval would end at the neutral value: its width falls with their root."""
    distance = abs(estimate - neutral)
    if not distance or not math.isfinite(high - low):
        return None
    needed = math.ceil(prompts * ((high - low) / 2 / distance) ** 2)
    return max(needed, prompts + 1) if needed <= MOST_PROMPTS else None


def count_outcomes(verdicts: Sequence[Verdict]) -> Mapping[str, int]:
    """How many claims have each outcome."""
    counts: dict[str, int] = {}
    for each in verdicts:
        counts[each.outcome] = counts.get(each.outcome, 0) + 1
    return counts
