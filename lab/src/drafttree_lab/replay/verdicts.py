"""The verdicts on the claims of a result from its finished cells: by counts at given costs, and by measured time."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain

import torch
from torch import Tensor

from drafttree_lab.graded import CONFIDENCES
from drafttree_lab.replay.agreement import Fit
from drafttree_lab.replay.costs import BY_PAPER, MEASURED
from drafttree_lab.replay.intervals import Jackknife
from drafttree_lab.replay.judge import CONFIDENCE, Evidence, Judgement, Verdict, judge
from drafttree_lab.replay.measured import SPEEDS, Measured, Way
from drafttree_lab.replay.paper import (
    AUTOREGRESSIVE,
    BASES,
    COUNTED,
    Bound,
    Claim,
    Comparison,
    JudgedClaim,
    Metric,
    NotComparable,
    Order,
    Trend,
)
from drafttree_lab.replay.plan import Block, Experiment, clauses, short_digest
from drafttree_lab.replay.reasons import EXPLAINED, RoundSums, RoundTerms, explain

FALLING: frozenset[Metric] = frozenset({"tpot", "rounds"})
"""Metrics whose lower value is better."""
LENGTHS: frozenset[Metric] = frozenset({"tau", "rounds"})
"""Metrics of which one is the inverse of the other if all texts have the same length."""


def judge_claims(cells: Measured) -> list[Verdict]:
    """The verdict on every claim of an experiment."""
    verdicts = []
    for claim in cells.experiment.result.claims:
        by_counts, by_time = _judge_with_our_drafters(cells, claim)
        at_agreement = _judge_with_fitted_drafters(cells, claim)
        verdicts.append(Verdict(claim.id, claim.text, claim.line, claim.main, at_agreement, by_counts, by_time))
    return verdicts


def _judge_with_our_drafters(cells: Measured, claim: Claim) -> tuple[Judgement | None, Judgement | None]:
    """The judgements by counts and by time; None for a kind that does not apply."""
    experiment = cells.experiment
    result = experiment.result
    if isinstance(claim, NotComparable):
        return Judgement("not comparable", claim.reason), None
    if reason := result.unavailable or ("" if experiment.blocks else "; ".join(clauses(experiment.missing))):
        return Judgement("not run", reason), None
    if reason := _absence(claim, experiment):
        return Judgement("not run", reason), None
    by_counts = by_time = None
    if result.is_judged(claim, timed=False):
        by_counts = ClaimCells.shared(cells, claim, by_counts=True).judge()
    if result.is_judged(claim, timed=True):
        by_time = ClaimCells.shared(cells, claim, by_counts=False).judge()
    return by_counts, by_time


def _judge_with_fitted_drafters(cells: Measured, claim: Claim) -> Judgement | None:
    """The judgement by counts with drafters that are fitted to the paper's.

    None if the claim is about measured time, or no drafter is fitted.
    """
    fitted = cells.fitted
    if isinstance(claim, NotComparable) or not fitted or not cells.experiment.result.is_judged(claim, timed=False):
        return None
    if fitted.reason or not fitted.fit:
        return Judgement("not run", fitted.reason)
    methods = _methods_of(claim)
    if methods <= {AUTOREGRESSIVE, fitted.fit.method} and (AUTOREGRESSIVE in methods or isinstance(claim, Bound)):
        row = f"{fitted.fit.method} has its published tokens per round by choice of the drafter"
        return Judgement("not comparable", f"{row}, so it predicts nothing")
    if not fitted.by_confidence:
        return Judgement("not run", f"{fitted.fit}")
    fitted_cells = FittedCells.beside(cells)
    if reason := _absence(claim, fitted_cells.calibrated.experiment):
        return Judgement("not run", reason)
    return fitted_cells.judge(claim)


def _methods_of(claim: Claim) -> set[str]:
    return {name.partition("@")[0] for name in claim.names}


def _absence(claim: Claim, experiment: Experiment) -> str | None:
    """Why a method of a claim was not run; None if all were."""
    absent_methods = _methods_of(claim) & experiment.missing.keys()
    return experiment.missing[min(absent_methods)] if absent_methods else None


@dataclass(frozen=True)
class FittedCells:
    """The finished cells of an experiment with the drafters that are fitted to the paper's.

    Attributes:
        fit: how the drafters were found.
        calibrated: the cells with the calibrated drafter.
        moved: the cells with a drafter whose agreement differs by a standard error; None without one.
        by_confidence: the cells with overconfident and underconfident drafters, by confidence.
    """

    fit: Fit
    calibrated: Measured
    moved: Measured | None
    by_confidence: Mapping[float, Measured]

    @classmethod
    def beside(cls, cells: Measured) -> "FittedCells":
        """The cells with fitted drafters of the experiment of some cells."""
        fitted = cells.fitted
        assert fitted
        assert fitted.fit
        by_confidence = {
            confidence: replace(cells, experiment=experiment, fitted=None)
            for confidence, experiment in fitted.by_confidence.items()
        }
        calibrated = by_confidence.pop(1.0)
        moved = replace(calibrated, experiment=fitted.moved) if fitted.moved else None
        return cls(fitted.fit, calibrated, moved, by_confidence)

    def judge(self, claim: JudgedClaim) -> Judgement:
        """The judgement with the calibrated drafter; undecided if another confidence turns it around."""
        other_cells = [*([self.moved] if self.moved else []), *self.by_confidence.values()]
        calibrated = ClaimCells.shared(self.calibrated, claim, by_counts=True, other_cells=other_cells)
        judgement = calibrated.judge(self.moved, self.fit.freedom)
        if judgement.estimate is None:
            return judgement
        alternatives = self._alternatives(claim)
        finding = f"{judgement.said}{_told_alternatives(alternatives)}{self._told_unchecked()}"
        if all(alternative.is_ahead == judgement.is_ahead for alternative in alternatives.values()):
            return replace(judgement, said=finding)
        is_decided = judgement.outcome in ("reproduced", "contradicted")
        return replace(
            judgement,
            outcome="undecided" if is_decided else judgement.outcome,
            said=f"{finding}, where it flips",
            reason=None if is_decided else judgement.reason,
            floors={**judgement.floors, CONFIDENCE: 1.0},
        )

    def _alternatives(self, claim: JudgedClaim) -> dict[float, Judgement]:
        """By confidence, the judgements with overconfident and underconfident drafters that have an estimate."""
        other_cells = [self.calibrated, *self.by_confidence.values()]
        alternatives = {}
        for confidence, cells in self.by_confidence.items():
            judgement = ClaimCells.shared(cells, claim, by_counts=True, other_cells=other_cells).judge()
            if judgement.estimate:
                alternatives[confidence] = judgement
        return alternatives

    def _told_unchecked(self) -> str:
        """A clause with the confidences at which no drafter was found; empty if there are none."""
        found_confidences = {1.0, *self.by_confidence}
        unchecked_confidences = sorted(set(CONFIDENCES.values()) - found_confidences)
        if not unchecked_confidences:
            return ""
        row = f"no drafter of them lets {self.fit.method} commit {self.fit.wanted:.2f} tokens a round"
        return f"; not checked at confidences of {' and '.join(map('{:g}'.format, unchecked_confidences))}, as {row}"


def _told_alternatives(alternatives: Mapping[float, Judgement]) -> str:
    """A clause with the estimates by confidence; empty without estimates."""
    estimates = [f"{judgement.estimate:.2f} at {confidence:g}" for confidence, judgement in alternatives.items()]
    return f"; by confidence {', '.join(estimates)}" if estimates else ""


@dataclass(frozen=True)
class ClaimCells:
    """The finished cells that a claim is judged on.

    Attributes:
        cells: all cells of the experiment.
        claim: the claim.
        by_counts: whether speeds are counted at given costs; otherwise they are timed.
        finished: by prompt set, the prompts that are finished in all blocks of the set.
    """

    cells: Measured
    claim: JudgedClaim
    by_counts: bool
    finished: Mapping[str, Sequence[int]]

    @classmethod
    def shared(
        cls, cells: Measured, claim: JudgedClaim, *, by_counts: bool, other_cells: Sequence[Measured] = ()
    ) -> "ClaimCells":
        """The cells of a claim on the prompts that are finished with all drafters.

        Args:
            cells: all cells of the experiment.
            claim: the claim.
            by_counts: as the attribute.
            other_cells: the cells of the experiment with other drafters.
        """
        finished: dict[str, set[int]] = {}
        for variant in (cells, *other_cells):
            for block in _blocks_of(claim, variant.experiment):
                numbers = set(variant.numbers(block, claim.metric, by_counts=by_counts))
                finished[block.setting.set] = finished.get(block.setting.set, numbers) & numbers
        prompts = {name: sorted(numbers) for name, numbers in finished.items() if numbers}
        return cls(cells, claim, by_counts, prompts)

    def judge(self, moved: Measured | None = None, freedom: float = 1.0) -> Judgement:
        """The judgement on the claim.

        Args:
            moved: the cells with a drafter whose agreement differs by a standard error; None without one.
            freedom: degrees of freedom of that error.
        """
        if obstacle := self._obstacle():
            return Judgement("not run", obstacle)
        are_drawn = self._needs_costs and self.cells.costs == BY_PAPER and self.cells.experiment.draws
        evidence = Evidence(
            self._mean,
            self._jackknife,
            sum(map(len, self._prompts.values())),
            drawn=partial(self._mean, use_draws=True) if are_drawn else None,
            moved=replace(self, cells=moved)._mean if moved else None,
            moved_freedom=freedom,
        )
        judgement = replace(judge(self.claim, evidence, self._axis), datum=self._datum)
        is_text = self.cells.experiment.result.kind == "decoding"
        if is_text and judgement.outcome in ("contradicted", "left open"):
            return replace(judgement, reason=self._reason(judgement.estimate or 1.0))
        return judgement

    def _obstacle(self) -> str | None:
        """Why the claim cannot be judged; None if it can."""
        if not self.finished:
            return f"no prompt was {'run' if self.by_counts else 'timed'} in all its methods yet"
        if isinstance(self.claim, Trend) and len(self._axis) < 2:
            return "a trend takes two values of what is varied"
        for name, method_ways in self._ways.items():
            if not method_ways:
                return f"{name} is not among what was run"
        if self._needs_costs and (uncosted_way := self.cells.uncosted_way(self.claim.metric, self._all_ways)):
            reason = "nothing was timed yet" if self.cells.costs.name == MEASURED else "the paper does not tell it"
            return f"the cost of the draft passes of {uncosted_way} is not known: {reason}"
        return None

    @property
    def _needs_costs(self) -> bool:
        return self.by_counts and BASES.get(self.claim.metric, self.claim.metric) in COUNTED

    @cached_property
    def _blocks(self) -> list[Block]:
        blocks = _blocks_of(self.claim, self.cells.experiment)
        return [block for block in blocks if block.setting.set in self.finished]

    @cached_property
    def _axis(self) -> list[str]:
        """The values of the axis that were run, as in the names `method@value`."""
        values = [str(block.value) for block in self._blocks if block.value is not None]
        values += [name.partition("@")[2] for name in self._blocks[0].ways if "@" in name]
        return list(dict.fromkeys(values))

    @cached_property
    def _ways(self) -> Mapping[str, Sequence[Way]]:
        """The ways of each method of the claim; for a trend, at both ends of the axis."""
        ends = [f"@{self._axis[0]}", f"@{self._axis[-1]}"] if isinstance(self.claim, Trend) else [""]
        return {name + end: _ways_of(name + end, self._blocks) for name in self.claim.names for end in ends}

    @property
    def _all_ways(self) -> list[Way]:
        return list(chain.from_iterable(self._ways.values()))

    @cached_property
    def _prompts(self) -> Mapping[str, Sequence[int]]:
        """The finished prompts of the sets of the claim."""
        sets = {block.setting.set for block, _ in self._all_ways}
        return {name: numbers for name, numbers in self.finished.items() if name in sets}

    @cached_property
    def _jackknife(self) -> Jackknife:
        return self.cells.jackknife(self._prompts)

    def _mean(self, name: str, metric: Metric, *, use_draws: bool = False) -> Tensor:
        """The mean of a metric of a method over the prompts, as `Jackknife.mean` gives it."""
        replicates = []
        for block, way in _ways_of(name, self._blocks):
            if numbers := self._prompts.get(block.setting.set):
                values = partial(self.cells.values, self._jackknife, block, way, metric, numbers=numbers)
                replicates.append(values(by_counts=self.by_counts, use_draws=use_draws))
        return torch.stack(replicates).mean(0)

    @property
    def _datum(self) -> str:
        """A digest of the texts and metrics of the claim; exchanging the two sides does not change it."""
        texts = []
        for method_ways in self._ways.values():
            keys = []
            for block, name in method_ways:
                keys += [self.cells.key(block, name, number) for number in self._prompts[block.setting.set]]
            texts.append(short_digest(keys))
        right_metric = self.claim.right_metric if isinstance(self.claim, Comparison) else None
        metrics = {_representative(self.claim.metric), _representative(right_metric or self.claim.metric)}
        return short_digest([isinstance(self.claim, Order), sorted(metrics), sorted(texts)])

    def _reason(self, ratio: float) -> str | None:
        """Why the first method is ahead or behind, in one line; None for metrics that are not explained.

        Args:
            ratio: the measured ratio.
        """
        metric = self.claim.metric
        if metric not in EXPLAINED:
            return None
        replaced_names = self.claim.others.values() if isinstance(self.claim, Comparison) else ()
        terms = {name: self._terms(ways) for name, ways in self._ways.items() if name not in replaced_names}
        if isinstance(self.claim, Trend):  # its ratio is of the last axis value over the first, which `terms` has first
            ratio = 1 / ratio
        return explain(metric, terms, is_ahead=(ratio > 1) != (metric in FALLING))

    def _terms(self, ways: Sequence[Way]) -> RoundTerms:
        """The terms of the speed-up law for a method's rounds."""
        sums = RoundSums()
        for block, name in ways:
            costs = self.cells.pass_costs(block, name) if self.by_counts else None
            for number in self._prompts[block.setting.set]:
                counts = self.cells.counts(block, name, number)
                if counts is None:
                    continue
                sums.add(counts)
                if costs:
                    sums.add_costs(counts, costs)
                elif not self.by_counts:
                    sums.add_times(counts, self.cells.turn_pairs(block, name, [number]))
        return sums.terms()


def _blocks_of(claim: JudgedClaim, experiment: Experiment) -> list[Block]:
    """The blocks that a claim is about."""
    own_setting = filter(experiment.is_of_its_setting, experiment.blocks)
    return [block for block in own_setting if claim.temperature in (None, block.setting.temperature)]


def _ways_of(name: str, blocks: Sequence[Block]) -> list[Way]:
    """The ways of a method in some blocks.

    Args:
        name: a method, or `method@value`; the value is that of a way, of the axis, or the name of a prompt set.
        blocks: the blocks.
    """
    method, _, value = name.partition("@")
    ways = []
    for block in blocks:
        if name in block.ways:
            ways.append((block, name))
        elif method in block.ways and value in ("", str(block.value), block.setting.set):
            ways.append((block, method))
    return ways


def _representative(metric: Metric) -> Metric:
    """One metric that represents all metrics that are computed from the same cells in the same way."""
    for group in (SPEEDS, LENGTHS):
        if metric in group:
            return min(group)
    return metric
