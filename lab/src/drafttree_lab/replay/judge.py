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
        judgements = {basis: getattr(self, basis) for basis in KINDS}
        return {basis: judgement for basis, judgement in judgements.items() if judgement}


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
    findings = []
    outcomes = {judgement.outcome}
    for value, name in claim.others.items():
        (ratio,) = _ratios(claim.model_copy(update={"left": name}), axis).values()
        alternative = _judge_ratios(evidence, {f"at {value}": ratio}, claim.sign)
        findings.append(alternative.said)
        outcomes.add(alternative.outcome)
    finding = f"{judgement.said}; the paper does not tell {claim.hangs_on}: {', '.join(findings)}"
    is_open = outcomes >= {"reproduced", "contradicted"}
    return replace(judgement, said=finding, outcome="left open" if is_open else judgement.outcome)


def _ratios(claim: Comparison | Bound | Trend, axis: Sequence[object]) -> Mapping[str, Callable[[Means], Tensor]]:
    """The ratios that a claim says are all above or all below 1, by name."""
    match claim:
        case Comparison():
            right_metric = claim.right_metric or claim.metric

            def against(right: str) -> Callable[[Means], Tensor]:
                return lambda means: means(claim.left, claim.metric) / means(right, right_metric)

            if claim.right_metric:
                metrics = f"{claim.metric} / {right_metric}".replace("_", " ")
                return {f"{claim.left}, {metrics}": against(rival) for rival in claim.right}
            return {f"{claim.left} / {rival}": against(rival) for rival in claim.right}
        case Bound(method=method, over=over, bound=bound, metric=metric):
            name = f"({method} / {over}) / {bound:g}" if over else f"{method} / {bound:g}"
            return {name: lambda means: means(method, metric) / (means(over, metric) if over else 1.0) / bound}
        case _:

            def ratio(means: Means) -> Tensor:
                def mean_at(value: object) -> Tensor:
                    mean = means(f"{claim.method}@{value}", claim.metric)
                    return mean / means(f"{claim.over}@{value}", claim.metric) if claim.over else mean

                return mean_at(axis[-1]) / mean_at(axis[0])

            method = f"{claim.method} / {claim.over}" if claim.over else claim.method
            return {f"{method}, {axis[-1]} over {axis[0]}:": ratio}


def _judge_ratios(evidence: Evidence, ratios: Mapping[str, Callable[[Means], Tensor]], sign: str) -> Judgement:
    """The judgement on ratios that are all to be on one side of 1.

    All of them have to be for sure (an intersection-union test, which needs no correction); one that is not contradicts
    the claim, with Bonferroni's correction for their number.
    """
    estimates = {name: evidence.estimate(ratio) for name, ratio in ratios.items()}
    decisive = _decisive(estimates, sign)
    ratio = decisive.ratio
    prompts = evidence.prompts
    finding = f"{decisive.name} {ratio.value:.2f}"
    enough = evidence.jackknife.size >= LEAST_PROMPTS
    if enough and not 0 < ratio.value < math.inf:
        return Judgement("undecided", f"{finding}: a count of 0 has no ratio", prompts=prompts)
    if ratio.low is None or ratio.high is None or not enough:
        finding += f" on {prompts} {'prompt' if prompts == 1 else 'prompts'}"
        return Judgement("too few", finding, ratio.value, prompts=prompts)
    p = decisive.corrected(ratio.p)
    finding += f" [{ratio.low:.2f}, {ratio.high:.2f}]"
    if ratio.allowed:
        low, high = ratio.allowed
        finding += f", {low:.2f} to {high:.2f} by what the paper's rows allow its passes to cost"
    if decisive.comparisons > 1:
        finding += f"; it is the surest of {decisive.comparisons} comparisons, and p is {p:.2f}"
    outcome: Outcome = "undecided" if p > LEVEL else "contradicted" if decisive.is_counterexample else "reproduced"
    floors = {name: decisive.corrected(floor) for name, floor in ratio.floors.items()}
    return Judgement(outcome, finding, ratio.value, ratio.low, ratio.high, p, prompts, floors=floors)


@dataclass(frozen=True)
class Decisive:
    """The ratio that decides a claim.

    Attributes:
        is_counterexample: whether it is on the other side of 1 than the claim says.
        comparisons: how many ratios it was chosen among as the surest one; 1 where it is the least sure.
    """

    name: str
    ratio: Ratio
    is_counterexample: bool
    comparisons: int

    def corrected(self, p: float) -> float:
        """A probability with Bonferroni's correction for the comparisons."""
        return min(1.0, self.comparisons * p)


def _decisive(estimates: Mapping[str, Ratio], sign: str) -> Decisive:
    """The ratio that decides whether all are on the claimed side of 1."""
    factor = 1 if sign == ">" else -1
    counterexamples = [name for name, estimate in estimates.items() if (estimate.value > 1) != (sign == ">")]
    if counterexamples:  # the surest, and of equal ones the one that is farthest behind
        name = min(counterexamples, key=lambda name: (estimates[name].p, factor * estimates[name].value))
        return Decisive(name, estimates[name], True, len(estimates))
    # the least sure, and of equal ones the one that is least ahead
    name = max(estimates, key=lambda name: (estimates[name].p, -factor * estimates[name].value))
    return Decisive(name, estimates[name], False, 1)


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


@dataclass(frozen=True)
class PlacedJudgement:
    """A judgement with a p-value.

    Attributes:
        result: the number of its result.
        verdict: the number of its verdict in this result.
    """

    result: int
    verdict: int
    judgement: Judgement


def _families(groups: Groups) -> dict[Family, list[PlacedJudgement]]:
    """By family its judgements with a p-value."""
    families: dict[Family, list[PlacedJudgement]] = {}
    for basis, (result, (name, verdicts)) in product(KINDS, enumerate(groups)):
        paper = name.partition("/")[0]
        family = families.setdefault((paper if outside_file(paper) else "", basis), [])
        for index, verdict in enumerate(verdicts):
            judgement: Judgement | None = getattr(verdict, basis)
            if judgement and judgement.p is not None:
                family.append(PlacedJudgement(result, index, judgement))
    return families


def _data(family: Sequence[PlacedJudgement]) -> list[int]:
    """For each judgement the number of the first that has the same datum."""
    first_indices = []
    for entry in family:
        for index, candidate in enumerate(family):
            is_same = candidate.judgement is entry.judgement
            if is_same or candidate.judgement.is_datum_of(entry.judgement):
                first_indices.append(index)
                break
    return first_indices


def count_claims(groups: Groups) -> dict[Family, int]:
    """By family the claims that can be judged of its papers in these results; those on one datum count once."""
    papers = dict.fromkeys(name.partition("/")[0] for name, _ in groups)
    counts = dict[Family, int]()
    for (outside_paper, basis), family in _families(groups).items():
        family_papers = [paper for paper in papers if (paper if outside_file(paper) else "") == outside_paper]
        datum_count = len(set(_data(family)))
        claim_count = measurable_claims(family_papers, basis == "by_time") - len(family) + datum_count
        counts[outside_paper, basis] = max(claim_count, datum_count)
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
    for key, family in _families(groups).items():
        first_indices = _data(family)
        unique_indices = list(dict.fromkeys(first_indices))
        p_values = holm([family[index].judgement.p or 0.0 for index in unique_indices], claims[key])
        p_by_index = dict(zip(unique_indices, p_values, strict=True))
        for entry, first_index in zip(family, first_indices, strict=True):
            corrected = correct(entry.judgement, p_by_index[first_index], claims[key])
            first_entry = family[first_index]
            if first_entry.judgement is not entry.judgement:
                name, first_verdicts = groups[first_entry.result]
                corrected = replace(corrected, repeats=name, repeated=first_verdicts[first_entry.verdict].id)
            verdicts = by_result[entry.result]
            verdicts[entry.verdict] = replace(verdicts[entry.verdict], **{key[1]: corrected})
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
        own_variance = _variance(judgement.p)
        floor_variance = _variance(floor)
        prompt_count = judgement.prompts * (own_variance - floor_variance) / (_variance(level) - floor_variance)
        prompt_count = max(math.ceil(prompt_count), judgement.prompts + 1) if prompt_count <= MOST_PROMPTS else None
    return replace(corrected, outcome="undecided", said=finding, needed=prompt_count, reason=None)


def _variance(p: float) -> float:
    """The variance with which a ratio has a p-value, as a multiple of what is the same for all of them."""
    return float(norm.isf(p / 2)) ** -2 if p else 0.0


def count_outcomes(judgements: Iterable[Judgement | None]) -> Mapping[str, int]:
    """How many judgements have each outcome; those that repeat another one do not count."""
    return Counter(judgement.outcome for judgement in judgements if judgement and not judgement.repeats)
