"""The judgement on a paper's claim, from what was measured of its methods; all claims corrected for their number."""

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

import torch
from scipy.stats import norm
from torch import Tensor

from drafttree_lab.replay.intervals import LEVEL, Estimate, Jackknife, Spread, holm
from drafttree_lab.replay.paper import Bound, Comparison, Metric, Order, Trend
from drafttree_lab.replay.paper_files import measurable_claims

Outcome = Literal["reproduced", "contradicted", "undecided", "left open", "too few", "not comparable", "not run"]
"""`left open`: reproduced and contradicted, as a number is chosen that the paper does not tell."""
MOST_PROMPTS = 100_000
LEAST_PROMPTS = 10
"""With fewer prompts nothing is decided: intervals miss more often than they say."""
SAME_ORDER = 0.5
"""Kendall's tau above which an order is the claimed one: three of four pairs of methods stand in it."""
Means = Callable[[str, Metric], Tensor]
"""By a method, or `method@value`, and a metric, its mean as `Jackknife.mean` gives it."""


KINDS: Mapping[str, str] = {
    "at_agreement": "with a fitted drafter",
    "by_counts": "with our drafters",
    "by_time": "on this machine",
}
"""The judgements on a claim in words: by counts with drafters that are fitted to the paper's, by counts with those that
are named or ship, and by time."""
COSTS, AGREEMENT = "what passes cost in the paper", "how near the paper's drafter is to its target"
"""What a ratio depends on besides the prompts."""
DIGITS = 6
"""Two claims whose ratios agree in so many digits, of all prompts and without each of them, rest on the same data."""


@dataclass(frozen=True)
class Judgement:
    """An outcome, with what was measured.

    Attributes:
        outcome: the outcome.
        said: what was measured, or why nothing was.
        estimate: a ratio, or Kendall's tau; None without one.
        low: lower end of its 95 % interval.
        high: upper end.
        p: the probability of such a ratio if it is 1 in truth, or the level from which on an order is decided; None
            without an estimate.
        prompts: prompts that it rests on.
        needed: prompts that would decide it, if the estimate stays; None where it is decided or none would.
        reason: where it is contradicted, which term of the speed-up law or which share does it.
        datum: what it rests on; the same of two claims that rest on the same data.
        repeats: the result that has the same datum before; None where none has.
        is_order: whether the estimate is Kendall's tau.
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
    datum: str | None = None
    repeats: str | None = None
    is_order: bool = False

    @property
    def is_ahead(self) -> bool | None:
        """On which side of no difference the estimate lies; None without one."""
        return None if self.estimate is None else self.estimate > (SAME_ORDER if self.is_order else 1)


@dataclass(frozen=True)
class Verdict:
    """The judgements on a claim, which is told as the paper's file has it.

    Attributes:
        at_agreement: by counted tokens and passes at the paper's costs, with a drafter as near to the target as the
            paper's; None where only a clock can tell, or where the drafter is the paper's own.
        by_counts: the same with the drafter that is named or ships.
        by_time: by the time on this machine; None where counts alone decide.
    """

    id: str
    text: str
    line: int
    main: bool
    at_agreement: Judgement | None
    by_counts: Judgement | None
    by_time: Judgement | None

    @property
    def judgements(self) -> Mapping[str, Judgement]:
        """The judgements that there are."""
        return {kind: own for kind in KINDS if (own := getattr(self, kind))}


@dataclass(frozen=True)
class Evidence:
    """What a claim is judged by.

    Attributes:
        means: means of its methods.
        jackknife: what made them.
        prompts: prompts that they rest on.
        draws: means at other costs of passes, drawn from those that the paper allows; empty where its costs are exact.
        draws_freedom: degrees of freedom of the errors that these costs follow from.
        moved: means with a drafter whose agreement differs by one standard error; None where it is not fitted.
        moved_freedom: degrees of freedom of that error.
    """

    means: Means
    jackknife: Jackknife
    prompts: int
    draws: Sequence[Means] = ()
    draws_freedom: float = 1.0
    moved: Means | None = None
    moved_freedom: float = 1.0

    def estimate(self, ratio: Callable[[Means], Tensor]) -> Estimate:
        """A ratio of means, with all that it depends on."""
        values, others = ratio(self.means), dict[str, Spread]()
        centre = values[0].log()
        if self.draws:
            moved = torch.stack([ratio(each)[0].log() - centre for each in self.draws])
            others[COSTS] = Spread(moved.square().mean().item(), self.draws_freedom)
        if self.moved:
            others[AGREEMENT] = Spread((ratio(self.moved)[0].log() - centre).square().item(), self.moved_freedom)
        return self.jackknife.estimate(values, {name: each for name, each in others.items() if each.variance > 0})


def judge(claim: Comparison | Bound | Order | Trend, evidence: Evidence, axis: Sequence[object]) -> Judgement:
    """The judgement on a claim.

    Args:
        axis: values of the result's axis that were run, for a trend.
    """
    if isinstance(claim, Order):
        return _judge_order(claim, evidence)
    ratio, name = _ratio(claim, axis)
    found = _judge_ratio(evidence, ratio, claim.sign, name)
    if not isinstance(claim, Comparison) or not claim.hangs_on:
        return found
    # it hangs on a number of which the paper says nothing
    others = {
        value: _judge_ratio(
            evidence, _ratio(claim.model_copy(update={"left": name}), axis)[0], claim.sign, f"at {value}"
        )
        for value, name in claim.others.items()
    }
    said = f"{found.said}; the paper does not tell {claim.hangs_on}: {', '.join(each.said for each in others.values())}"
    outcomes = {found.outcome, *(each.outcome for each in others.values())}
    is_open = outcomes >= {"reproduced", "contradicted"}
    return replace(found, said=said, outcome="left open" if is_open else found.outcome)


def _ratio(claim: Comparison | Bound | Trend, axis: Sequence[object]) -> tuple[Callable[[Means], Tensor], str]:
    """The ratio that a claim says is above or below 1, and its name."""
    match claim:
        case Comparison():
            right = claim.right_metric or claim.metric
            name = f"{claim.left} / {' or '.join(claim.right)}"
            if claim.right_metric:
                over, under = (metric.replace("_", " ") for metric in (claim.metric, claim.right_metric))
                name = f"{claim.left}, {over} / {under}"
            least = torch.amin if claim.sign == ">" else torch.amax

            def least_ahead(means: Means) -> Tensor:
                left = means(claim.left, claim.metric)
                return least(torch.stack([left / means(each, right) for each in claim.right]), 0)

            return least_ahead, name
        case Bound(method=method, over=over, bound=bound, metric=metric):
            name = f"({method} / {over}) / {bound:g}" if over else f"{method} / {bound:g}"
            return lambda means: means(method, metric) / (means(over, metric) if over else 1.0) / bound, name
        case _:

            def ratio(means: Means) -> Tensor:
                first, last = (means(f"{claim.method}@{value}", claim.metric) for value in (axis[0], axis[-1]))
                if claim.over:
                    under = (means(f"{claim.over}@{value}", claim.metric) for value in (axis[0], axis[-1]))
                    first, last = (own / base for own, base in zip((first, last), under, strict=True))
                return last / first

            method = f"{claim.method} / {claim.over}" if claim.over else claim.method
            return ratio, f"{method}, {axis[-1]} over {axis[0]}:"


def _judge_ratio(evidence: Evidence, ratio: Callable[[Means], Tensor], sign: str, name: str) -> Judgement:
    estimate, prompts = evidence.estimate(ratio), evidence.prompts
    value, low, high = estimate.value, estimate.low, estimate.high
    enough = evidence.jackknife.size >= LEAST_PROMPTS
    if enough and not 0 < value < math.inf:
        return Judgement("undecided", f"{name} {value:.2f}: a count of 0 has no ratio", prompts=prompts)
    if low is None or high is None or not enough:
        said = f"{name} {value:.2f} on {prompts} {'prompt' if prompts == 1 else 'prompts'}"
        return Judgement("too few", said, value, prompts=prompts)
    outcome: Outcome = "reproduced" if (value > 1) == (sign == ">") else "contradicted"
    said, needed = f"{name} {value:.2f} [{low:.2f}, {high:.2f}]", None
    if estimate.p > LEVEL:
        outcome = "undecided"
        if estimate.alone <= LEVEL:
            cause = max(estimate.causes, key=lambda each: estimate.causes[each])
            said += f"; it is not known well enough {cause}: p is {estimate.alone:.3f} without that error"
        elif (distance := abs(math.log(value))) and low and high and not estimate.causes:
            # the interval would end at 1: its width falls with the root of the prompts
            needed = math.ceil(prompts * (math.log(high / low) / 2 / distance) ** 2)
            needed = max(needed, prompts + 1) if needed <= MOST_PROMPTS else None
    datum = _datum([ratio(evidence.means)])
    return Judgement(outcome, said, value, low, high, estimate.p, prompts, needed, datum=datum)


def _datum(ratios: Sequence[Tensor]) -> str | None:
    """A digest of ratios or their inverses; None where all are 1, which data may be for many reasons."""
    logs = torch.stack([*ratios]).log()
    if not bool(logs.isfinite().all()) or not bool((logs.abs() > 10.0**-DIGITS).any()):
        return None
    logs = logs * logs[0, 0].sign() + 0.0
    return hashlib.sha256(repr([round(each, DIGITS) + 0.0 for each in logs.flatten().tolist()]).encode()).hexdigest()[
        :16
    ]


def _judge_order(claim: Order, evidence: Evidence) -> Judgement:
    """Kendall's tau of the claimed order and the measured one.

    Its interval holds all that the pairs leave possible: each pair is decided by its ratio, with Holm's correction for
    their number, and those that are not may stand either way.
    """

    def ratio(high: str, low: str) -> Callable[[Means], Tensor]:
        return lambda means: means(high, claim.metric) / means(low, claim.metric)

    ratios, prompts = [ratio(*pair) for pair in combinations(claim.methods, 2)], evidence.prompts
    pairs = [evidence.estimate(each) for each in ratios]
    signs = [(each.value > 1) - (each.value < 1) for each in pairs]
    tau = sum(signs) / len(pairs)
    if evidence.jackknife.size < LEAST_PROMPTS or any(each.low is None for each in pairs):
        return Judgement(
            "too few", f"Kendall's tau {tau:.2f} on {prompts} prompts", tau, prompts=prompts, is_order=True
        )
    corrected = holm([each.p for each in pairs])

    def ends(level: float) -> tuple[float, float]:
        known = [sign for sign, p in zip(signs, corrected, strict=True) if p <= level]
        open_pairs = len(pairs) - len(known)
        return (sum(known) - open_pairs) / len(pairs), (sum(known) + open_pairs) / len(pairs)

    def decided(level: float) -> Outcome:
        low, high = ends(level)
        return "reproduced" if low > SAME_ORDER else "contradicted" if high <= SAME_ORDER else "undecided"

    p = next((level for level in sorted(corrected) if decided(level) != "undecided"), 1.0)
    low, high = ends(LEVEL)
    said = f"Kendall's tau {tau:.2f} [{low:.2f}, {high:.2f}]"
    datum = _datum([each(evidence.means) for each in ratios])
    return Judgement(decided(LEVEL), said, tau, low, high, p, prompts, datum=datum, is_order=True)


def correct_verdicts(groups: Sequence[tuple[str, Sequence[Verdict]]]) -> list[list[Verdict]]:
    """Verdicts by result, decided by p-values with Holm's correction for the number of all claims.

    Each kind of judgement is corrected by itself, for as many claims as all papers have that can be judged so; those
    that were not judged count as if nothing spoke for them. Of claims that rest on the same datum one counts, and the
    others point to its result.

    Args:
        groups: the name of each result, and its verdicts.
    """
    found = [list(own) for _, own in groups]
    for kind in KINDS:
        places = [(group, place) for group, own in enumerate(found) for place in range(len(own))]
        judged = [
            (*each, own) for each in places if (own := getattr(found[each[0]][each[1]], kind)) and own.p is not None
        ]
        first: dict[str, int] = {}
        counted, ranks = [], []
        for group, _, own in judged:
            datum = own.datum or f"{len(counted)}"
            if datum not in first:
                first[datum] = len(counted)
                counted.append((group, own))
            ranks.append(first[datum])
        claims = max(measurable_claims(kind == "by_time") - (len(judged) - len(counted)), len(counted))
        values = holm([own.p for _, own in counted], claims)
        for (group, place, own), rank in zip(judged, ranks, strict=True):
            corrected = correct(own, values[rank], claims)
            if counted[rank][1] is not own:
                corrected = replace(corrected, repeats=groups[counted[rank][0]][0])
            found[group][place] = replace(found[group][place], **{kind: corrected})
    return found


def correct(judgement: Judgement, p: float, claims: int) -> Judgement:
    """A judgement with a p-value that was corrected for so many claims."""
    if judgement.outcome not in ("reproduced", "contradicted", "undecided") or p <= LEVEL or not judgement.p:
        return judgement
    level = LEVEL * judgement.p / p if p < 1 else LEVEL / claims
    share = (norm.isf(level / 2) / norm.isf(judgement.p / 2)) ** 2 if judgement.p < 1 else math.inf
    needed = None
    if not judgement.is_order and judgement.prompts * share <= MOST_PROMPTS:
        needed = math.ceil(judgement.prompts * share)
    if judgement.outcome == "undecided":
        return replace(judgement, needed=needed if judgement.needed else None)
    said = f"{judgement.said}; p is {p:.2f} with Holm's correction for {claims} claims"
    return replace(judgement, outcome="undecided", said=said, needed=needed, reason=None)


def count_outcomes(judgements: Iterable[Judgement | None]) -> Mapping[str, int]:
    """How many judgements have each outcome; those that repeat another one do not count."""
    return Counter(each.outcome for each in judgements if each and not each.repeats)
