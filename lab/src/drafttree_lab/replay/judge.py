"""The judgement on a paper's claim, from what was measured of its methods; all claims corrected for their number."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from typing import Literal

from scipy.stats import norm
from torch import Tensor

from drafttree_lab.replay.intervals import ENDS, LEVEL, Estimate, Jackknife, Spread, holm
from drafttree_lab.replay.paper import Bound, Comparison, Metric, Order, Trend
from drafttree_lab.replay.paper_files import measurable_claims, outside_file

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
AGREEMENT = "how near the paper's drafter is to its target"
COSTS = "what passes cost in the paper"
CONFIDENCE = "how sure the paper's drafter is of its tokens"
"""What a ratio depends on besides the prompts."""
SAME = 0.25
"""Of a standard error, within which two ratios of the same texts are one datum."""


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
        floors: what more prompts do not reduce, and p if there were infinitely many, each with those before it.
        reason: where it is contradicted, which term of the speed-up law or which share does it.
        datum: the texts that it rests on and what is taken of them, as a digest.
        repeats: the result that has the same datum before; None where none has.
        repeated: the claim of that result.
        claims: how many claims it is corrected for; 0 where it is not.
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
    floors: Mapping[str, float] = field(default_factory=dict)
    reason: str | None = None
    datum: str | None = None
    repeats: str | None = None
    repeated: str = ""
    claims: int = 0
    is_order: bool = False

    @property
    def is_ahead(self) -> bool | None:
        """On which side of no difference the estimate lies; None without one."""
        return None if self.estimate is None else self.estimate > (SAME_ORDER if self.is_order else 1)

    def is_datum_of(self, other: "Judgement") -> bool:
        """Whether another one rests on the same texts, with the same ratio or its inverse."""
        if not self.datum or self.datum != other.datum or self.is_order:
            return bool(self.datum) and self.datum == other.datum and self.estimate == other.estimate
        if not (self.estimate and other.estimate and self.low and self.high):
            return False
        log_distance = abs(math.log(self.estimate)) - abs(math.log(other.estimate))
        return abs(log_distance) <= SAME * math.log(self.high / self.low) / 4


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
        return {basis: judgement for basis in KINDS if (judgement := getattr(self, basis))}


@dataclass(frozen=True)
class Evidence:
    """What a claim is judged by.

    Attributes:
        means: means of its methods.
        jackknife: what made them.
        prompts: prompts that they rest on.
        drawn: means at many costs of passes that the paper allows, `[1 + clusters, draws]`; None where its costs are
            exact or do not matter.
        moved: means with a drafter whose agreement differs by one standard error; None where it is not fitted.
        moved_freedom: degrees of freedom of that error.
    """

    means: Means
    jackknife: Jackknife
    prompts: int
    drawn: Means | None = None
    moved: Means | None = None
    moved_freedom: float = 1.0

    def estimates(self, ratio: Callable[[Means], Tensor]) -> list[Estimate]:
        """A ratio of means at the costs that the paper says, then at those that allow the least and the most of it.

        The last two hold 95 % of the costs that the paper allows between them.
        """
        values = ratio(self.means)
        spreads = list[Spread]()
        if self.moved:
            step = (ratio(self.moved)[0] / values[0]).log().nan_to_num(100.0, 100.0, -100.0)
            spreads.append(Spread(step.square().item(), self.moved_freedom))
        columns = [values]
        if self.drawn:
            drawn_ratios = ratio(self.drawn)
            order = drawn_ratios[0].argsort()
            columns += [drawn_ratios[:, order[round(share * (len(order) - 1))]] for share in ENDS]
        return [self.jackknife.estimate(column, spreads) for column in columns]

    def estimate(self, ratio: Callable[[Means], Tensor]) -> "Ratio":
        """A ratio of means at all costs that the paper allows, of which the worst decides."""
        main_estimate, *ends = estimates = self.estimates(ratio)
        if any(estimate.low is None for estimate in estimates):
            return Ratio(main_estimate.value)
        flips = len({estimate.value > 1 for estimate in estimates}) > 1
        return Ratio(
            main_estimate.value,
            min(estimate.low or 0.0 for estimate in estimates),
            max(estimate.high or 0.0 for estimate in estimates),
            1.0 if flips else max(estimate.p for estimate in estimates),
            {AGREEMENT: main_estimate.floor, COSTS: 1.0 if flips else max(estimate.floor for estimate in estimates)},
            [end.value for end in ends],
        )


@dataclass(frozen=True)
class Ratio:
    """A ratio with all that it depends on.

    Attributes:
        value: at the costs that the paper says.
        low: the lower end of its interval at all costs that the paper allows; None with too few prompts.
        high: the upper end.
        p: the probability of such a ratio if it is 1 in truth, at the costs that speak least against it.
        floors: as of a judgement.
        allowed: the ratio at the two ends of the costs that the paper allows; empty where these are exact.
    """

    value: float
    low: float | None = None
    high: float | None = None
    p: float = 1.0
    floors: Mapping[str, float] = field(default_factory=dict)
    allowed: Sequence[float] = ()


def judge(claim: Comparison | Bound | Order | Trend, evidence: Evidence, axis: Sequence[object]) -> Judgement:
    """The judgement on a claim.

    Args:
        axis: values of the result's axis that were run, for a trend.
    """
    if isinstance(claim, Order):
        return _judge_order(claim, evidence)
    judgement = _judge_ratios(evidence, _ratios(claim, axis), claim.sign)
    if not isinstance(claim, Comparison) or not claim.hangs_on:
        return judgement
    # it hangs on a number of which the paper says nothing
    alternatives = {}
    for value, name in claim.others.items():
        (ratio,) = _ratios(claim.model_copy(update={"left": name}), axis).values()
        alternatives[value] = _judge_ratios(evidence, {f"at {value}": ratio}, claim.sign)
    finding = (
        f"{judgement.said}; the paper does not tell {claim.hangs_on}: "
        f"{', '.join(alternative.said for alternative in alternatives.values())}"
    )
    outcomes = {judgement.outcome, *(alternative.outcome for alternative in alternatives.values())}
    is_open = outcomes >= {"reproduced", "contradicted"}
    return replace(judgement, said=finding, outcome="left open" if is_open else judgement.outcome)


def _ratios(claim: Comparison | Bound | Trend, axis: Sequence[object]) -> Mapping[str, Callable[[Means], Tensor]]:
    """The ratios that a claim says are all above or all below 1, by name."""
    match claim:
        case Comparison():
            metric = claim.right_metric or claim.metric

            def against(right: str) -> Callable[[Means], Tensor]:
                return lambda means: means(claim.left, claim.metric) / means(right, metric)

            if claim.right_metric:
                left_metric, right_metric = (
                    metric_name.replace("_", " ") for metric_name in (claim.metric, claim.right_metric)
                )
                return {f"{claim.left}, {left_metric} / {right_metric}": against(rival) for rival in claim.right}
            return {f"{claim.left} / {rival}": against(rival) for rival in claim.right}
        case Bound(method=method, over=over, bound=bound, metric=metric):
            name = f"({method} / {over}) / {bound:g}" if over else f"{method} / {bound:g}"
            return {name: lambda means: means(method, metric) / (means(over, metric) if over else 1.0) / bound}
        case _:

            def ratio(means: Means) -> Tensor:
                first_mean, last_mean = (
                    means(f"{claim.method}@{value}", claim.metric) for value in (axis[0], axis[-1])
                )
                if claim.over:
                    base_means = (means(f"{claim.over}@{value}", claim.metric) for value in (axis[0], axis[-1]))
                    first_mean, last_mean = (
                        mean / base for mean, base in zip((first_mean, last_mean), base_means, strict=True)
                    )
                return last_mean / first_mean

            method = f"{claim.method} / {claim.over}" if claim.over else claim.method
            return {f"{method}, {axis[-1]} over {axis[0]}:": ratio}


def _judge_ratios(evidence: Evidence, ratios: Mapping[str, Callable[[Means], Tensor]], sign: str) -> Judgement:
    """The judgement on ratios that are all to be on one side of 1.

    All of them have to be for sure (an intersection-union test, which needs no correction); one that is not contradicts
    the claim, with Bonferroni's correction for their number.
    """
    estimates = {name: evidence.estimate(ratio) for name, ratio in ratios.items()}
    prompts = evidence.prompts
    factor = 1 if sign == ">" else -1
    counterexamples = [name for name, estimate in estimates.items() if (estimate.value > 1) != (sign == ">")]
    if counterexamples:  # the surest, and of equal ones the one that is farthest behind
        decisive_name = min(counterexamples, key=lambda name: (estimates[name].p, factor * estimates[name].value))
    else:  # the least sure, and of equal ones the one that is least ahead
        decisive_name = max(estimates, key=lambda name: (estimates[name].p, -factor * estimates[name].value))
    decisive_ratio = estimates[decisive_name]
    comparisons = len(estimates) if counterexamples else 1
    enough = evidence.jackknife.size >= LEAST_PROMPTS
    if enough and not 0 < decisive_ratio.value < math.inf:
        return Judgement(
            "undecided", f"{decisive_name} {decisive_ratio.value:.2f}: a count of 0 has no ratio", prompts=prompts
        )
    if decisive_ratio.low is None or decisive_ratio.high is None or not enough:
        finding = f"{decisive_name} {decisive_ratio.value:.2f} on {prompts} {'prompt' if prompts == 1 else 'prompts'}"
        return Judgement("too few", finding, decisive_ratio.value, prompts=prompts)
    p = min(1.0, comparisons * decisive_ratio.p)
    floors = {name: min(1.0, comparisons * floor) for name, floor in decisive_ratio.floors.items()}
    finding = f"{decisive_name} {decisive_ratio.value:.2f} [{decisive_ratio.low:.2f}, {decisive_ratio.high:.2f}]"
    if decisive_ratio.allowed:
        low, high = decisive_ratio.allowed
        finding += f", {low:.2f} to {high:.2f} by what the paper's rows allow its passes to cost"
    if comparisons > 1:
        finding += f"; it is the surest of {comparisons} comparisons, and p is {p:.2f}"
    outcome: Outcome = "undecided" if p > LEVEL else "contradicted" if counterexamples else "reproduced"
    return Judgement(
        outcome, finding, decisive_ratio.value, decisive_ratio.low, decisive_ratio.high, p, prompts, floors=floors
    )


def _judge_order(claim: Order, evidence: Evidence) -> Judgement:
    """Kendall's tau of the claimed order and the measured one.

    Its interval holds all that the pairs leave possible: each pair is decided by its ratio, with Holm's correction for
    their number, and those that are not may stand either way.
    """

    def ratio(high: str, low: str) -> Callable[[Means], Tensor]:
        return lambda means: means(high, claim.metric) / means(low, claim.metric)

    ratios = [ratio(*methods) for methods in combinations(claim.methods, 2)]
    prompts = evidence.prompts
    estimates = [evidence.estimate(pair_ratio) for pair_ratio in ratios]
    signs = [(estimate.value > 1) - (estimate.value < 1) for estimate in estimates]
    tau = sum(signs) / len(estimates)
    if evidence.jackknife.size < LEAST_PROMPTS or any(estimate.low is None for estimate in estimates):
        return Judgement(
            "too few", f"Kendall's tau {tau:.2f} on {prompts} prompts", tau, prompts=prompts, is_order=True
        )
    corrected = holm([estimate.p for estimate in estimates])

    def ends(level: float) -> tuple[float, float]:
        decided_signs = [sign for sign, p in zip(signs, corrected, strict=True) if p <= level]
        open_count = len(estimates) - len(decided_signs)
        return (sum(decided_signs) - open_count) / len(estimates), (sum(decided_signs) + open_count) / len(estimates)

    def decided(level: float) -> Outcome:
        low, high = ends(level)
        return "reproduced" if low > SAME_ORDER else "contradicted" if high <= SAME_ORDER else "undecided"

    p = next((level for level in sorted(corrected) if decided(level) != "undecided"), 1.0)
    low, high = ends(LEVEL)
    finding = f"Kendall's tau {tau:.2f} [{low:.2f}, {high:.2f}]"
    return Judgement(decided(LEVEL), finding, tau, low, high, p, prompts, is_order=True)


Groups = Sequence[tuple[str, Sequence[Verdict]]]
"""The name of each result, and its verdicts."""
Family = tuple[str, str]
"""A paper from outside, or all of drafttree's papers, and a kind of judgement."""


def _families(groups: Groups) -> dict[Family, list[tuple[int, int, Judgement]]]:
    """By family its judgements with a p-value, with the places of their results and verdicts."""
    families: dict[Family, list[tuple[int, int, Judgement]]] = {}
    for basis, (group, (name, verdicts)) in product(KINDS, enumerate(groups)):
        paper = name.partition("/")[0]
        entries = ((group, verdict_index, getattr(verdict, basis)) for verdict_index, verdict in enumerate(verdicts))
        family = (paper if outside_file(paper) else "", basis)
        families.setdefault(family, []).extend(entry for entry in entries if entry[2] and entry[2].p is not None)
    return families


def _data(judgements: Sequence[Judgement]) -> list[int]:
    """For each judgement the place of the first that has the same datum."""
    return [
        next(
            index
            for index, candidate in enumerate(judgements)
            if candidate is judgement or candidate.is_datum_of(judgement)
        )
        for judgement in judgements
    ]


def count_claims(groups: Groups) -> dict[Family, int]:
    """By family the claims that can be judged of its papers in these results; those on one datum count once."""
    papers = dict.fromkeys(name.partition("/")[0] for name, _ in groups)
    counts = dict[Family, int]()
    for (outside_paper, basis), entries in _families(groups).items():
        family_papers = [paper for paper in papers if (paper if outside_file(paper) else "") == outside_paper]
        datum_count = len(set(_data([judgement for *_, judgement in entries])))
        counts[outside_paper, basis] = max(
            measurable_claims(family_papers, basis == "by_time") - len(entries) + datum_count, datum_count
        )
    return counts


def correct_verdicts(groups: Groups, claims: Mapping[Family, int]) -> list[list[Verdict]]:
    """Verdicts by result, decided by p-values with Holm's correction for the number of all claims of a family.

    Each kind of judgement is corrected by itself; claims that were not judged count as if nothing spoke for them. Of
    claims that rest on the same datum one counts, and the others point to it.

    Args:
        groups: the name of each result, and its verdicts.
        claims: by family the number of its claims, by `count_claims`.
    """
    by_result = [list(verdicts) for _, verdicts in groups]
    for family, entries in _families(groups).items():
        first_indices = _data([judgement for *_, judgement in entries])
        unique_indices = dict.fromkeys(first_indices)
        values = dict(
            zip(
                unique_indices,
                holm([entries[index][2].p or 0.0 for index in unique_indices], claims[family]),
                strict=True,
            )
        )
        for (group, verdict_index, judgement), first_index in zip(entries, first_indices, strict=True):
            corrected = correct(judgement, values[first_index], claims[family])
            if entries[first_index][2] is not judgement:
                result_index, claim, _ = entries[first_index]
                corrected = replace(
                    corrected, repeats=groups[result_index][0], repeated=groups[result_index][1][claim].id
                )
            by_result[group][verdict_index] = replace(by_result[group][verdict_index], **{family[1]: corrected})
    return by_result


def correct(judgement: Judgement, p: float, claims: int) -> Judgement:
    """A judgement with a p-value that was corrected for so many claims, and what would decide it if it is undecided."""
    corrected = replace(judgement, claims=claims)
    was_decided = judgement.outcome in ("reproduced", "contradicted")
    if not judgement.p or (was_decided and p <= LEVEL) or not (was_decided or judgement.outcome == "undecided"):
        return corrected
    finding = judgement.said
    prompt_count = None
    if was_decided:
        finding += f"; p is {p:.2f} with Holm's correction for {claims} claims"
    level = LEVEL * judgement.p / p if p < 1 else LEVEL / claims
    if cause := next((name for name, floor in judgement.floors.items() if floor > level), None):
        finding += f"; more prompts alone would not decide it, as it is not known well enough {cause}"
    elif not judgement.is_order and judgement.p < 1:
        # the variance of the prompts falls with their number, the rest stays
        floor = max(judgement.floors.values(), default=0.0)
        own_variance, floor_variance, level_variance = (
            norm.isf(tail / 2) ** -2 if tail else 0.0 for tail in (judgement.p, floor, level)
        )
        prompt_count = judgement.prompts * (own_variance - floor_variance) / (level_variance - floor_variance)
        prompt_count = max(math.ceil(prompt_count), judgement.prompts + 1) if prompt_count <= MOST_PROMPTS else None
    return replace(corrected, outcome="undecided", said=finding, needed=prompt_count, reason=None)


def count_outcomes(judgements: Iterable[Judgement | None]) -> Mapping[str, int]:
    """How many judgements have each outcome; those that repeat another one do not count."""
    return Counter(judgement.outcome for judgement in judgements if judgement and not judgement.repeats)
