"""Judgements on a paper's claims from measurements of its methods, corrected for the number of claims."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, product
from operator import attrgetter
from typing import Literal

from scipy.stats import norm
from torch import Tensor

from drafttree_lab.replay.intervals import ENDS, LEVEL, Estimate, Jackknife, Spread, holm
from drafttree_lab.replay.paper import Bound, Comparison, Metric, Order, Trend
from drafttree_lab.replay.paper_files import measurable_claims, outside_file

Outcome = Literal["reproduced", "contradicted", "undecided", "left open", "too few", "not comparable", "not run"]
"""`left open`: reproduced at one value of a number that the paper does not give, contradicted at another."""
MOST_PROMPTS = 100_000
"""Above this number, no number of prompts is said to decide a claim."""
LEAST_PROMPTS = 10
"""Fewer prompts decide nothing, since their intervals miss the true value more often than 5 %."""
SAME_ORDER = 0.5
"""Kendall's tau above which an order counts as the claimed one: three of four pairs of methods are in order."""
Means = Callable[[str, Metric], Tensor]
"""Maps a method, or `method@value`, and a metric to the mean that `Jackknife.mean` gives."""


KINDS: Mapping[str, str] = {
    "at_agreement": "with a fitted drafter",
    "by_counts": "with our drafters",
    "by_time": "on this machine",
}
"""Names of the kinds of judgement.

Two are by counts: with drafters that are fitted to the paper's, and with those that are named or ship. The third is by
time.
"""
AGREEMENT = "how near the paper's drafter is to its target"
COSTS = "what passes cost in the paper"
CONFIDENCE = "how sure the paper's drafter is of its tokens"
"""What a ratio depends on besides the prompts, each as the end of a sentence."""
SAME = 0.25
"""Two ratios of the same texts are one datum if they differ by at most this share of a standard error."""


@dataclass(frozen=True)
class Judgement:
    """An outcome, with what was measured.

    Attributes:
        outcome: the outcome.
        said: the finding in words, or why there is none.
        estimate: a ratio, or Kendall's tau; None if nothing was measured.
        low: lower end of the estimate's 95 % interval.
        high: upper end.
        p: the probability of such a ratio if the true one is 1; for an order, the level from which on it is decided.
            None without an estimate.
        prompts: number of prompts.
        needed: number of prompts that would decide the claim if the estimate stays; None if it is decided, or no number
            would.
        floors: by cause that more prompts do not remove, the p-value with infinitely many prompts.
        reason: for a contradicted claim, the term of the speed-up law, or the share, that causes it.
        datum: a digest of the texts and metrics of the estimate.
        repeats: the earlier result with the same datum; None if there is none.
        repeated: the claim of that result.
        claims: the number of the paper's claims that p is corrected for; 0 if it is not.
        joint: p, corrected for the claims of all papers that ship, as the outcome is not; None with a single paper.
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
    joint: float | None = None
    is_order: bool = False

    @property
    def is_ahead(self) -> bool | None:
        """Whether the estimate is above that of no difference; None without an estimate."""
        return None if self.estimate is None else self.estimate > (SAME_ORDER if self.is_order else 1)

    def is_datum_of(self, judgement: "Judgement") -> bool:
        """Whether another judgement is on the same texts, with the same ratio or its inverse."""
        if not self.datum or self.datum != judgement.datum or self.is_order:
            return bool(self.datum) and self.datum == judgement.datum and self.estimate == judgement.estimate
        if not (self.estimate and judgement.estimate and self.low and self.high):
            return False
        log_distance = abs(math.log(self.estimate)) - abs(math.log(judgement.estimate))
        return abs(log_distance) <= SAME * math.log(self.high / self.low) / 4


@dataclass(frozen=True)
class Verdict:
    """The judgements on a claim.

    Attributes:
        id: the claim's id in the paper's file.
        text: the claim in words.
        line: its line in the paper's text.
        main: whether it is a main claim of the paper.
        at_agreement: by counted tokens and passes at the paper's costs, with a drafter that agrees with its target as
            often as the paper's. None if the claim is about measured time, or the drafter is the paper's own.
        by_counts: the same with the drafter that is named or ships.
        by_time: by the time on this machine; None if counts alone decide.
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
        """The judgements by kind, without those that are None."""
        judgements: dict[str, Judgement] = {}
        for basis in KINDS:
            judgement = getattr(self, basis)
            if judgement:
                judgements[basis] = judgement
        return judgements


@dataclass(frozen=True)
class Evidence:
    """What a claim is judged by.

    Attributes:
        means: means of its methods.
        jackknife: the jackknife over the prompts of these means.
        prompts: number of prompts.
        drawn: means at many pass costs that the paper's rows allow, `[1 + clusters, draws]`. None if the paper's costs
            are exact or do not matter.
        moved: means with a drafter whose agreement differs by one standard error; None if the drafter is not fitted.
        moved_freedom: degrees of freedom of that error.
    """

    means: Means
    jackknife: Jackknife
    prompts: int
    drawn: Means | None = None
    moved: Means | None = None
    moved_freedom: float = 1.0

    def estimates(self, ratio: Callable[[Means], Tensor]) -> list[Estimate]:
        """A ratio of means at the paper's costs, then at the low and the high end of the costs that its rows allow.

        Between these two ends lie 95 % of the ratios at allowed costs.
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
            for quantile in ENDS:
                draw = order[round(quantile * (len(order) - 1))]
                columns.append(drawn_ratios[:, draw])
        return [self.jackknife.estimate(column, spreads) for column in columns]

    def estimate(self, ratio: Callable[[Means], Tensor]) -> "Ratio":
        """A ratio of means, with the widest interval and the largest p-value over all costs that the rows allow."""
        main_estimate, *ends = estimates = self.estimates(ratio)
        if any(estimate.low is None for estimate in estimates):
            return Ratio(main_estimate.value)
        flips = len({estimate.value > 1 for estimate in estimates}) > 1
        return Ratio(
            main_estimate.value,
            min(estimate.low or 0.0 for estimate in estimates),
            max(estimate.high or 0.0 for estimate in estimates),
            1.0 if flips else max(map(attrgetter("p"), estimates)),
            {AGREEMENT: main_estimate.floor, COSTS: 1.0 if flips else max(map(attrgetter("floor"), estimates))},
            list(map(attrgetter("value"), ends)),
        )


@dataclass(frozen=True)
class Ratio:
    """A ratio, with what the uncertain costs of a paper make of it.

    Attributes:
        value: the ratio at the paper's costs.
        low: the lower end of its interval over all costs that the paper's rows allow; None with too few prompts.
        high: the upper end.
        p: the probability of such a ratio if the true one is 1, at the allowed costs that make it largest.
        floors: as of a judgement.
        allowed: the ratio at both ends of the allowed costs; empty if the costs are exact.
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
    # the claim depends on a number that the paper does not give
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

            ratios: dict[str, Callable[[Means], Tensor]] = {}
            metrics = f"{claim.metric} / {right_metric}".replace("_", " ")
            for rival in claim.right:
                name = f"{claim.left}, {metrics}" if claim.right_metric else f"{claim.left} / {rival}"
                ratios[name] = against(rival)
            return ratios
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
    """The judgement on a claim that all ratios are on one side of 1.

    The claim is reproduced if every ratio is significantly on that side; this intersection-union test needs no
    correction. It is contradicted if one ratio is significantly on the other side, with Bonferroni's correction.
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
        is_counterexample: whether it lies on the other side of 1 than the claim says.
        comparisons: the number of ratios that it was chosen from; 1 unless it is a counterexample.
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
    if counterexamples:  # the one with the least p; of equal ones, the farthest from the claimed side
        name = min(counterexamples, key=lambda name: (estimates[name].p, factor * estimates[name].value))
        return Decisive(name, estimates[name], True, len(estimates))
    # the one with the largest p; of equal ones, the one nearest to 1
    name = max(estimates, key=lambda name: (estimates[name].p, -factor * estimates[name].value))
    return Decisive(name, estimates[name], False, 1)


def _judge_order(claim: Order, evidence: Evidence) -> Judgement:
    """The judgement on an order of methods, by Kendall's tau of the claimed order and the measured one.

    Each pair of methods is decided by its ratio, with Holm's correction for the number of pairs. The interval of tau
    covers both orders of every undecided pair; the finding names these pairs.
    """

    def ratio(high: str, low: str) -> Callable[[Means], Tensor]:
        return lambda means: means(high, claim.metric) / means(low, claim.metric)

    prompts = evidence.prompts
    method_pairs = list(combinations(claim.methods, 2))
    estimates = [evidence.estimate(ratio(high, low)) for high, low in method_pairs]
    signs = [(estimate.value > 1) - (estimate.value < 1) for estimate in estimates]
    tau = sum(signs) / len(estimates)
    if evidence.jackknife.size < LEAST_PROMPTS or any(estimate.low is None for estimate in estimates):
        return Judgement(
            "too few", f"Kendall's tau {tau:.2f} on {prompts} prompts", tau, prompts=prompts, is_order=True
        )
    corrected = holm(list(map(attrgetter("p"), estimates)))

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
    finding += _told_open(method_pairs, estimates, corrected)
    return Judgement(decided(LEVEL), finding, tau, low, high, p, prompts, is_order=True)


def _told_open(method_pairs: Sequence[tuple[str, str]], estimates: Sequence[Ratio], p_values: Sequence[float]) -> str:
    """A clause with the pairs of methods whose order is not decided, and their ratios; empty if all are."""
    clauses = []
    for (name, rival), estimate, p in zip(method_pairs, estimates, p_values, strict=True):
        if p > LEVEL:
            clauses.append(f"{name} / {rival} {estimate.value:.2f} [{estimate.low:.2f}, {estimate.high:.2f}]")
    return f"; undecided: {', '.join(clauses)}" if clauses else ""


Groups = Sequence[tuple[str, Sequence[Verdict]]]
"""The name of each result, and its verdicts."""
Family = tuple[str, str]
"""A paper, or `JOINT`; and a kind of judgement."""
JOINT = ""
"""All papers that ship, as one family."""


@dataclass(frozen=True)
class PlacedJudgement:
    """A judgement with a p-value.

    Attributes:
        result: index of its result.
        verdict: index of its verdict within this result.
    """

    result: int
    verdict: int
    judgement: Judgement

    @property
    def location(self) -> tuple[int, int]:
        """The indices of its result and verdict."""
        return self.result, self.verdict


def _families(groups: Groups) -> dict[Family, list[PlacedJudgement]]:
    """The judgements that have a p-value, by family: those of each paper, and jointly those of all that ship."""
    families: dict[Family, list[PlacedJudgement]] = {}
    for basis, (result, (name, verdicts)) in product(KINDS, enumerate(groups)):
        paper = name.partition("/")[0]
        for owner in (paper,) if outside_file(paper) else (paper, JOINT):
            family = families.setdefault((owner, basis), [])
            for index, verdict in enumerate(verdicts):
                judgement: Judgement | None = getattr(verdict, basis)
                if judgement and judgement.p is not None:
                    family.append(PlacedJudgement(result, index, judgement))
    return families


def _papers_of(groups: Groups) -> list[str]:
    return list(dict.fromkeys(name.partition("/")[0] for name, _ in groups))


def _first_of_datum(family: Sequence[PlacedJudgement]) -> list[int]:
    """For each judgement, the index of the first one with the same datum."""
    first_indices = []
    for entry in family:
        for index, candidate in enumerate(family):
            is_same = candidate.judgement is entry.judgement
            if is_same or candidate.judgement.is_datum_of(entry.judgement):
                first_indices.append(index)
                break
    return first_indices


def count_claims(groups: Groups) -> dict[Family, int]:
    """By family, the number of claims of its papers that can be judged; claims on one datum count once."""
    shipped_papers = [paper for paper in _papers_of(groups) if not outside_file(paper)]
    counts = dict[Family, int]()
    for (owner, basis), family in _families(groups).items():
        family_papers = shipped_papers if owner == JOINT else [owner]
        datum_count = len(set(_first_of_datum(family)))
        claim_count = measurable_claims(family_papers, basis == "by_time") - len(family) + datum_count
        counts[owner, basis] = max(claim_count, datum_count)
    return counts


def correct_verdicts(groups: Groups, claims: Mapping[Family, int]) -> list[list[Verdict]]:
    """The verdicts of each result, with p-values corrected by Holm's method for the number of claims of a family.

    A paper is a family, and decides; the p-value over all papers that ship stands beside. A claim that was not judged
    counts with the largest p-value. Of a paper's claims on one datum only the first counts; the others refer to it.

    Args:
        groups: the name of each result, and its verdicts.
        claims: the number of claims of each family, from `count_claims`.
    """
    by_result = [list(verdicts) for _, verdicts in groups]
    families = _families(groups)
    has_joint = sum(not outside_file(paper) for paper in _papers_of(groups)) > 1
    for key, family in families.items():
        owner, basis = key
        if owner == JOINT:
            continue
        joint_corrections = _corrections(families.get((JOINT, basis), []), claims, (JOINT, basis)) if has_joint else {}
        corrections = _corrections(family, claims, key)
        for entry, first_index in zip(family, _first_of_datum(family), strict=True):
            joint = joint_corrections.get(entry.location)
            corrected = correct(entry.judgement, corrections[entry.location], joint)
            if family[first_index].judgement is not entry.judgement:
                corrected = _repeating(corrected, family[first_index], groups)
            verdicts = by_result[entry.result]
            verdicts[entry.verdict] = replace(verdicts[entry.verdict], **{basis: corrected})
    return by_result


def _repeating(judgement: Judgement, entry: PlacedJudgement, groups: Groups) -> Judgement:
    """A judgement that refers to another one with the same datum."""
    name, verdicts = groups[entry.result]
    return replace(judgement, repeats=name, repeated=verdicts[entry.verdict].id)


@dataclass(frozen=True)
class Correction:
    """A p-value after Holm's correction.

    Attributes:
        p: the corrected p-value.
        claims: the number of claims that it is corrected for.
    """

    p: float
    claims: int

    @property
    def told(self) -> str:
        """The p-value in words."""
        return f"{self.p:.2f}" if self.p >= 0.005 else "below 0.01"


def _corrections(
    family: Sequence[PlacedJudgement], claims: Mapping[Family, int], key: Family
) -> dict[tuple[int, int], Correction]:
    """By location of a family's judgements, their corrections; those on one datum share it."""
    first_indices = _first_of_datum(family)
    unique_indices = list(dict.fromkeys(first_indices))
    p_values = holm([family[index].judgement.p or 0.0 for index in unique_indices], claims.get(key))
    p_by_index = dict(zip(unique_indices, p_values, strict=True))
    corrections = {}
    for entry, index in zip(family, first_indices, strict=True):
        corrections[entry.location] = Correction(p_by_index[index], claims[key])
    return corrections


def correct(judgement: Judgement, correction: Correction, joint: Correction | None = None) -> Judgement:
    """A judgement with a corrected p-value; if that leaves it undecided, with what would decide it.

    Args:
        judgement: the judgement with its p-value alone.
        correction: the correction for the claims of its paper.
        joint: the correction for the claims of all papers, which decides nothing; None with a single paper.
    """
    p = correction.p
    was_decided = judgement.outcome in ("reproduced", "contradicted")
    finding = judgement.said
    if was_decided and (joint or p > LEVEL):
        finding += f"; p is {correction.told} with Holm's correction for {correction.claims} claims"
        if joint:
            finding += f" of the paper, {joint.told} for {joint.claims} of all papers"
    corrected = replace(judgement, said=finding, claims=correction.claims, joint=joint.p if joint else None)
    if not judgement.p or (was_decided and p <= LEVEL) or not (was_decided or judgement.outcome == "undecided"):
        return corrected
    prompt_count = None
    level = LEVEL * judgement.p / p if p < 1 else LEVEL / correction.claims
    if cause := next((name for name, floor in judgement.floors.items() if floor > level), None):
        finding += f"; more prompts alone would not decide it, as it is not known well enough {cause}"
    elif not judgement.is_order and judgement.p < 1:
        # more prompts reduce the variance between prompts, not the variance behind the floors
        floor = max(judgement.floors.values(), default=0.0)
        own_variance = _variance(judgement.p)
        floor_variance = _variance(floor)
        prompt_count = judgement.prompts * (own_variance - floor_variance) / (_variance(level) - floor_variance)
        prompt_count = max(math.ceil(prompt_count), judgement.prompts + 1) if prompt_count <= MOST_PROMPTS else None
    return replace(corrected, outcome="undecided", said=finding, needed=prompt_count, reason=None)


def _variance(p: float) -> float:
    """The variance at which a given ratio has this p-value, in units of the squared logarithm of the ratio."""
    return float(norm.isf(p / 2)) ** -2 if p else 0.0


def count_outcomes(judgements: Iterable[Judgement | None]) -> Mapping[str, int]:
    """The number of judgements with each outcome, without those that repeat another."""
    return Counter(judgement.outcome for judgement in judgements if judgement and not judgement.repeats)
