"""The judgement on a paper's claim, from what was measured of its methods; main claims corrected for their number."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from scipy.stats import norm
from torch import Tensor

from drafttree_lab.replay.intervals import LEVEL, Estimate, Jackknife, holm
from drafttree_lab.replay.paper import Bound, Comparison, Metric, Order, Trend, paper_names, read_paper

Outcome = Literal["reproduced", "contradicted", "undecided", "left open", "too few", "not comparable", "not run"]
"""`left open`: reproduced and contradicted, as a number is chosen that the paper does not tell."""
MOST_PROMPTS = 100_000
LEAST_PROMPTS = 10
"""With fewer prompts nothing is decided: intervals miss more often than they say."""
SAME_ORDER = 0.5
"""Kendall's tau above which an order is the claimed one: three of four pairs of methods stand in it."""
Means = Callable[[str, Metric], Tensor]
"""By a method, or `method@value`, and a metric, its mean as `Jackknife.mean` gives it."""


@dataclass(frozen=True)
class Judgement:
    """An outcome, with what was measured.

    Attributes:
        said: what was measured, or why nothing was.
        estimate: a ratio, or Kendall's tau; None without one.
        low: lower end of its 95 % interval.
        high: upper end.
        p: the probability of such a ratio if it is 1 in truth; None for an order, and without an estimate.
        prompts: prompts that it rests on.
        needed: prompts that would decide it, if the estimate stays; None where it is decided or none would.
        reason: where it is contradicted, which term of the speed-up law or which share does it.
    """

    outcome: Outcome
    said: str
    estimate: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    prompts: int = 0
    needed: int | None = None
    reason: str | None = None


@dataclass(frozen=True)
class Verdict:
    """Both judgements on a claim, which is told as the paper's file has it.

    Attributes:
        by_counts: by counted tokens and passes, at the paper's costs where the claim is on speed; None where only a
            clock can tell.
        by_time: by the time on this machine; None where counts alone decide.
    """

    id: str
    text: str
    line: int
    main: bool
    by_counts: Judgement | None
    by_time: Judgement | None

    @property
    def judgements(self) -> Mapping[str, Judgement]:
        """The judgements that there are, by "by counts" and "by time"."""
        both = {"by counts": self.by_counts, "by time": self.by_time}
        return {name: each for name, each in both.items() if each}


def judge(
    claim: Comparison | Bound | Order | Trend, means: Means, jackknife: Jackknife, axis: Sequence[object], prompts: int
) -> Judgement:
    """The judgement on a claim.

    Args:
        claim: what is judged.
        means: means of its methods.
        jackknife: what made them.
        axis: values of the result's axis that were run, for a trend.
        prompts: prompts that the means rest on.
    """
    match claim:
        case Order():
            return _judge_order(claim, means, jackknife, prompts)
        case Comparison():
            right = claim.right_metric or claim.metric
            values = means(claim.left, claim.metric) / means(claim.right, right)
            name = f"{claim.left} / {claim.right}"
            if claim.right_metric:
                left, right = (metric.replace("_", " ") for metric in (claim.metric, claim.right_metric))
                name = f"{claim.left}, {left} / {right}"
        case Bound():
            values, name = means(claim.method, claim.metric) / claim.bound, f"{claim.method} / {claim.bound:g}"
        case _:
            first, last = (means(f"{claim.method}@{value}", claim.metric) for value in (axis[0], axis[-1]))
            method = claim.method
            if claim.over:
                under = (means(f"{claim.over}@{value}", claim.metric) for value in (axis[0], axis[-1]))
                first, last = (own / base for own, base in zip((first, last), under, strict=True))
                method = f"{claim.method} / {claim.over}"
            values, name = last / first, f"{method}, {axis[-1]} over {axis[0]}:"
    found = _judge_ratio(jackknife.estimate(values), claim.sign, name, prompts)
    if not isinstance(claim, Comparison) or not claim.hangs_on:
        return found
    # it hangs on a number of which the paper says nothing
    right = means(claim.right, claim.right_metric or claim.metric)
    others = {
        value: _judge_ratio(jackknife.estimate(means(name, claim.metric) / right), claim.sign, f"at {value}", prompts)
        for value, name in claim.others.items()
    }
    said = f"{found.said}; the paper does not tell {claim.hangs_on}: {', '.join(each.said for each in others.values())}"
    outcomes = {found.outcome, *(each.outcome for each in others.values())}
    is_open = outcomes >= {"reproduced", "contradicted"}
    return replace(found, said=said, outcome="left open" if is_open else found.outcome)


def _judge_ratio(estimate: Estimate, sign: str, name: str, prompts: int) -> Judgement:
    value, low, high = estimate.value, estimate.low, estimate.high
    if prompts >= LEAST_PROMPTS and not 0 < value < math.inf:
        return Judgement("undecided", f"{name} {value:.2f}: a count of 0 has no ratio", prompts=prompts)
    if low is None or high is None or prompts < LEAST_PROMPTS:
        said = f"{name} {value:.2f} on {prompts} {'prompt' if prompts == 1 else 'prompts'}"
        return Judgement("too few", said, value, prompts=prompts)
    outcome: Outcome = "reproduced" if (value > 1) == (sign == ">") else "contradicted"
    needed = None
    if estimate.p > LEVEL:
        outcome = "undecided"
        if (distance := abs(math.log(value))) and low and high:
            # the interval would end at 1: its width falls with the root of the prompts
            needed = math.ceil(prompts * (math.log(high / low) / 2 / distance) ** 2)
            needed = max(needed, prompts + 1) if needed <= MOST_PROMPTS else None
    return Judgement(
        outcome, f"{name} {value:.2f} [{low:.2f}, {high:.2f}]", value, low, high, estimate.p, prompts, needed
    )


def _judge_order(claim: Order, means: Means, jackknife: Jackknife, prompts: int) -> Judgement:
    """Kendall's tau of the claimed order and the measured one.

    Its interval holds all that the pairs leave possible: each pair is decided by its ratio, with Holm's correction for
    their number, and those that are not may stand either way.
    """
    found = {name: means(name, claim.metric) for name in claim.methods}
    pairs = [jackknife.estimate(found[high] / found[low]) for high, low in combinations(claim.methods, 2)]
    tau = sum((each.value > 1) - (each.value < 1) for each in pairs) / len(pairs)
    if prompts < LEAST_PROMPTS or any(each.low is None for each in pairs):
        return Judgement("too few", f"Kendall's tau {tau:.2f} on {prompts} prompts", tau, prompts=prompts)
    sure = [p <= LEVEL for p in holm([each.p for each in pairs])]
    known = sum((1 if each.value > 1 else -1) for each, is_sure in zip(pairs, sure, strict=True) if is_sure)
    low, high = ((known + sign * sure.count(False)) / len(pairs) for sign in (-1, 1))
    outcome: Outcome = "undecided"
    if low > SAME_ORDER or high <= SAME_ORDER:
        outcome = "reproduced" if low > SAME_ORDER else "contradicted"
    said = f"Kendall's tau {tau:.2f} [{low:.2f}, {high:.2f}]"
    return Judgement(outcome, said, tau, low, high, prompts=prompts)


def count_main_claims() -> int:
    """How many claims of all papers are main ones."""
    results = (result for paper in paper_names() for result in read_paper(paper).results.values())
    return sum(claim.main for result in results for claim in result.claims)


def correct_verdicts(groups: Sequence[Sequence[Verdict]]) -> list[list[Verdict]]:
    """Verdicts by result, whose main claims are decided by p-values with Holm's correction.

    Judgements by counts and by time are corrected apart, each for the number of main claims of all papers; those
    that were not judged count as if nothing spoke for them.
    """
    claims, found = count_main_claims(), [list(each) for each in groups]
    for kind in ("by_counts", "by_time"):
        places = [(own, place) for own in found for place, each in enumerate(own) if each.main]
        judged = [(own, place, each) for own, place in places if (each := getattr(own[place], kind))]
        judged = [(own, place, each) for own, place, each in judged if each.p is not None]
        values = holm([each.p for _, _, each in judged], max(claims, len(judged)))
        for (own, place, each), p in zip(judged, values, strict=True):
            own[place] = replace(own[place], **{kind: correct(each, p, claims)})
    return found


def correct(judgement: Judgement, p: float, claims: int) -> Judgement:
    """A judgement with a p-value that was corrected for so many claims."""
    if judgement.outcome not in ("reproduced", "contradicted", "undecided") or p <= LEVEL or not judgement.p:
        return judgement
    level = LEVEL * judgement.p / p if p < 1 else LEVEL / claims
    share = (norm.isf(level / 2) / norm.isf(judgement.p / 2)) ** 2 if judgement.p < 1 else math.inf
    needed = math.ceil(judgement.prompts * share) if judgement.prompts * share <= MOST_PROMPTS else None
    if judgement.outcome == "undecided":
        return replace(judgement, needed=needed)
    said = f"{judgement.said}; p is {p:.2f} with Holm's correction for {claims} main claims"
    return replace(judgement, outcome="undecided", said=said, needed=needed, reason=None)


def count_outcomes(judgements: Iterable[Judgement | None]) -> Mapping[str, int]:
    """How many judgements have each outcome."""
    return Counter(each.outcome for each in judgements if each)
