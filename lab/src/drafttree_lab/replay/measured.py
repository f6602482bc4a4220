"""What finished cells amount to: values, and the judgements by counts at the paper's costs and by the clock."""

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import log
from statistics import fmean

import numpy as np
import torch
from torch import Tensor

from drafttree.core.cost_curve import Costs
from drafttree.measure.interval import Interval
from drafttree.measure.run_store import RunStore
from drafttree_lab.graded import CONFIDENCES
from drafttree_lab.replay.agreement import Fit
from drafttree_lab.replay.costs import BY_PAPER, MEASURED, CostSource, PassCosts
from drafttree_lab.replay.intervals import Fraction, Jackknife
from drafttree_lab.replay.judge import CONFIDENCE, Evidence, Judgement, Verdict, judge
from drafttree_lab.replay.paper import (
    AUTOREGRESSIVE,
    BASES,
    COUNTED,
    GAINS,
    TIMED,
    Bound,
    Claim,
    Comparison,
    Metric,
    NotComparable,
    Order,
    Trend,
)
from drafttree_lab.replay.plan import Block, Experiment, Task, clauses, short_digest
from drafttree_lab.replay.text_cell import Fractions, TextCounts, TextTimes, WayTimes

SPEEDS: frozenset[Metric] = frozenset({"speedup", "tokens_per_second", "tpot"})
FALLING: frozenset[Metric] = frozenset({"tpot", "rounds"})
"""Metrics that are lower for the method that is ahead."""
LENGTHS: frozenset[Metric] = frozenset({"tau", "rounds"})
"""Metrics that are the inverse of one another where all texts are of one length."""
PROGRESS: frozenset[Metric] = frozenset({"tau", "path", "rounds", "drafted_share"})
COSTS = ("v(n)", "c delta", "h")
"""The terms of a round's cost: its target pass, its draft passes, and the rest."""
Places = Mapping[str, Sequence[tuple[Block, str]]]
"""By method of a claim, in its order, the blocks where it stands, with its name there."""
Shared = Mapping[str, Sequence[int]]
"""By set, the prompts that all blocks of it have finished."""


@dataclass(frozen=True)
class Value(Interval):
    """A measured number with its interval over so many prompts of a set."""

    prompts: int = 0


@dataclass(frozen=True)
class Fitted:
    """The same experiment with drafters that are fitted to the paper's.

    Attributes:
        fit: how they were found.
        by_confidence: the experiment by the confidence of its drafter; empty where none was found.
        moved: with the drafter whose agreement differs by a standard error.
        reason: why no drafter was fitted; empty where one was.
    """

    fit: Fit | None = None
    by_confidence: Mapping[float, Experiment] = field(default_factory=dict)
    moved: Experiment | None = None
    reason: str = ""

    @property
    def experiments(self) -> list[Experiment]:
        """All that is run."""
        return [*self.by_confidence.values(), *([self.moved] if self.moved else [])]


@dataclass(frozen=True)
class Measured:
    """The finished cells of one experiment.

    Attributes:
        experiment: the experiment whose they are.
        store: the store that keeps them.
        digests: digests of the prompts that are looked for, by set.
        repeats: turns that are looked for.
        group: which texts count: those where plain decoding's ends in a loop ("looping"), the others ("not looping"),
            or "all".
        costs: what passes cost where counts decide a claim on speed.
        clusters: by digest, what prompts have in common with others that resemble them; the others stand alone.
        fitted: the experiment with drafters that are fitted to the paper's; None where its drafter is the paper's own.
    """

    experiment: Experiment
    store: RunStore
    digests: Mapping[str, Sequence[str]]
    repeats: int = 1
    group: str = "all"
    costs: CostSource = BY_PAPER
    clusters: Mapping[str, Hashable] = field(default_factory=dict)
    fitted: Fitted | None = None

    def numbers(self, block: Block, metric: Metric, *, by_counts: bool = False) -> list[int]:
        """The prompts of a block for which all its ways have what a metric needs."""
        timed = BASES.get(metric, metric) in TIMED and not by_counts

        def is_whole(number: int) -> bool:
            if self.experiment.result.kind != "decoding":
                return self._other(block, number) is not None
            plain = self.counts(block, AUTOREGRESSIVE, number)
            if plain is None or (self.group != "all" and plain.looping != (self.group == "looping")):
                return False
            if timed and not self.turns(block, AUTOREGRESSIVE, number):
                return False
            return all(self.counts(block, name, number) for name in block.ways)

        return list(filter(is_whole, range(len(self.digests[block.setting.set]))))

    def counts(self, block: Block, name: str, number: int) -> TextCounts | None:
        """The counts of a way on a prompt."""
        return self.store.find(self._task(block, number).counts_key(block.ways[name]), TextCounts)

    def turns(self, block: Block, name: str, number: int) -> list[TextTimes]:
        """The times of a way in the turns of a prompt."""
        tasks = (self._task(block, number, repeat) for repeat in range(self.repeats))
        turns = (self.store.find(task.turn_key, WayTimes) for task in tasks)
        return [turn[name] for turn in turns if turn]

    def pass_costs(self, block: Block, name: str, *, drawn: bool = False) -> PassCosts | None:
        """What the passes of a way cost, by which counts judge speeds; None where it is not known.

        Args:
            drawn: whether it is all costs that the paper's rows allow, instead of those that they say.
        """
        if self.costs.name == MEASURED:  # the mean over all prompts
            turns = [
                turn
                for number in self.numbers(block, "tokens_per_second")
                for turn in zip(*(self.turns(block, way, number) for way in (name, AUTOREGRESSIVE)), strict=True)
            ]
            if not turns:
                return None
            unit = fmean(plain.target_pass for _, plain in turns)
            target = fmean(way_times.target_pass for way_times, _ in turns) / unit
            return PassCosts(fmean(way_times.draft_pass for way_times, _ in turns) / unit, Costs((1,), (target,)))
        method = name.partition("@")[0]
        if self.costs.given and method != AUTOREGRESSIVE:
            return self.costs.given
        return (self.experiment.draws if drawn else self.experiment.costs).get(method)

    def value(self, block: Block, name: str, metric: Metric, *, by_counts: bool = False) -> Value | None:
        """A metric of a way, None without a cell of it.

        Args:
            by_counts: whether a speed is counted at given costs, instead of timed.
        """
        numbers = self.numbers(block, metric, by_counts=by_counts)
        needs_costs = by_counts and BASES.get(metric, metric) in COUNTED
        if not numbers or (needs_costs and not all(self.pass_costs(block, way) for way in (name, AUTOREGRESSIVE))):
            return None
        jackknife = self._jackknife({block.setting.set: numbers})
        values = partial(self._values, jackknife, block, numbers=numbers, by_counts=by_counts)
        if metric in GAINS:
            method, separator, value = name.partition("@")
            base = self.experiment.result.over.get(method, AUTOREGRESSIVE)
            base = base if base == AUTOREGRESSIVE else f"{base}{separator}{value}"
            if base not in block.ways:
                return None
            replicates = values(name, GAINS[metric]) / values(base, GAINS[metric])
        else:
            replicates = values(name, metric)
        if not bool(replicates[0].isfinite()):
            return None
        estimate = jackknife.estimate(replicates)
        ends = [estimate.value, estimate.low, estimate.high]
        if metric in GAINS:
            ends = [None if end is None else 100 * (end - 1) for end in ends]
        mean, low, high = ends
        return Value(mean or 0.0, low, high, len(numbers))

    @property
    def looping(self) -> float:
        """The share of plain decoding's texts that end in a loop; 0 where there are none."""
        prompts = ((block, number) for block in self.experiment.blocks for number in self.numbers(block, "tau"))
        loop_flags = [
            counts.looping for block, number in prompts if (counts := self.counts(block, AUTOREGRESSIVE, number))
        ]
        return sum(loop_flags) / len(loop_flags) if loop_flags else 0.0

    def verdicts(self) -> list[Verdict]:
        """The verdict on every claim."""
        return [
            Verdict(claim.id, claim.text, claim.line, claim.main, self._judge_fitted(claim), *self._judgements(claim))
            for claim in self.experiment.result.claims
        ]

    @property
    def near(self) -> "Measured | None":
        """The cells with the fitted drafter that is as sure as it is right; None where there is none."""
        experiment = self.fitted.by_confidence.get(1.0) if self.fitted else None
        return replace(self, experiment=experiment, fitted=None) if experiment else None

    def tau(self, name: str) -> tuple[Jackknife, Tensor]:
        """The jackknife over all prompts, and a way's tokens per round in the mean over sets, by `Jackknife.mean`."""
        blocks = {block.setting.set: block for block in self.experiment.blocks}
        prompts_by_set = {
            set_name: numbers for set_name, block in blocks.items() if len(numbers := self.numbers(block, "tau")) > 1
        }
        jackknife = self._jackknife(prompts_by_set)
        replicates = [
            self._values(jackknife, blocks[set_name], name, "tau", numbers=numbers, by_counts=True)
            for set_name, numbers in prompts_by_set.items()
        ]
        return jackknife, torch.stack(replicates).mean(0)

    def _jackknife(self, shared: Shared) -> Jackknife:
        """The jackknife over some prompts of each set."""
        digests = {name: [self.digests[name][number] for number in numbers] for name, numbers in shared.items()}
        return Jackknife(
            {
                name: [self.clusters.get(digest, digest) for digest in set_digests]
                for name, set_digests in digests.items()
            }
        )

    def _values(
        self,
        jackknife: Jackknife,
        block: Block,
        name: str,
        metric: Metric,
        *,
        numbers: Sequence[int],
        by_counts: bool,
        drawn: bool = False,
    ) -> Tensor:
        """A metric of a way in a block, of all prompts and without each of them, as `Jackknife.mean` gives it.

        A speed is counted where costs are given, and timed where not.
        """
        if metric == "speedup":
            speed = partial(self._values, jackknife, block, metric="tokens_per_second", numbers=numbers, drawn=drawn)
            return speed(name, by_counts=by_counts) / speed(AUTOREGRESSIVE, by_counts=by_counts)
        costs = self.pass_costs(block, name, drawn=drawn) if by_counts and metric in COUNTED else None

        def fraction(number: int) -> Fraction:
            if fractions := self._other(block, number):
                return fractions[name]
            counts = self.counts(block, name, number)
            if costs and counts:
                return costs.fraction(metric, counts)
            if metric in TIMED:
                turns = [turn.fraction(metric) for turn in self.turns(block, name, number)]
                return fmean(numerator for numerator, _ in turns), fmean(denominator for _, denominator in turns)
            return counts.fraction(metric) if counts else (0.0, 0.0)

        return jackknife.mean([(block.setting.set, list(map(fraction, numbers)))], self.experiment.average(metric))

    def _other(self, block: Block, number: int) -> Fractions | None:
        """The fractions of a result of another kind, which has one metric."""
        if self.experiment.result.kind == "decoding":
            return None
        return self.store.find(self._task(block, number).other_key, Fractions)

    def _task(self, block: Block, number: int, repeat: int = 0) -> Task:
        digests = self.digests[block.setting.set]
        return Task(self.experiment, block, number, digests[number], repeat, digests[:number])

    def _judgements(self, claim: Claim) -> tuple[Judgement | None, Judgement | None]:
        """By counts and by time."""
        experiment = self.experiment
        result = self.experiment.result
        if isinstance(claim, NotComparable):
            return Judgement("not comparable", claim.reason), None
        if reason := result.unavailable or ("" if experiment.blocks else "; ".join(clauses(experiment.missing))):
            return Judgement("not run", reason), None
        absent_methods = {name.partition("@")[0] for name in claim.names} & experiment.missing.keys()
        if absent_methods:
            return Judgement("not run", experiment.missing[min(absent_methods)]), None
        return (
            self._judge(claim, by_counts=True) if result.is_judged(claim, timed=False) else None,
            self._judge(claim, by_counts=False) if result.is_judged(claim, timed=True) else None,
        )

    def _judge_fitted(self, claim: Claim) -> Judgement | None:
        """By counts with drafters that are fitted to the paper's; None where only a clock can tell, or none is."""
        fitted = self.fitted
        result = self.experiment.result
        if isinstance(claim, NotComparable) or not fitted or not result.is_judged(claim, timed=False):
            return None
        if fitted.reason or not fitted.fit:
            return Judgement("not run", fitted.reason)
        methods = {name.partition("@")[0] for name in claim.names}
        if methods <= {AUTOREGRESSIVE, fitted.fit.method} and (AUTOREGRESSIVE in methods or isinstance(claim, Bound)):
            row = f"{fitted.fit.method} has its published tokens per round by choice of the drafter"
            return Judgement("not comparable", f"{row}, so it predicts nothing")
        if not fitted.by_confidence:
            return Judgement("not run", f"{fitted.fit}")
        by_confidence = {
            confidence: replace(self, experiment=experiment, fitted=None)
            for confidence, experiment in fitted.by_confidence.items()
        }
        calibrated_cells = by_confidence.pop(1.0)
        absent_methods = {name.partition("@")[0] for name in claim.names} & calibrated_cells.experiment.missing.keys()
        if absent_methods:
            return Judgement("not run", calibrated_cells.experiment.missing[min(absent_methods)])
        moved_cells = replace(calibrated_cells, experiment=fitted.moved) if fitted.moved else None
        other_cells = [*by_confidence.values()]
        judgement = calibrated_cells._judge(
            claim, by_counts=True, moved=moved_cells, freedom=fitted.fit.freedom, others=other_cells
        )
        alternatives = {
            confidence: cells._judge(claim, by_counts=True, others=[calibrated_cells, *other_cells])
            for confidence, cells in by_confidence.items()
        }
        estimates = [
            f"{alternative.estimate:.2f} at {confidence:g}"
            for confidence, alternative in alternatives.items()
            if alternative.estimate
        ]
        remark = f"; by confidence {', '.join(estimates)}" if estimates else ""
        if unchecked_confidences := [
            f"{confidence:g}" for confidence in sorted(CONFIDENCES.values()) if confidence not in fitted.by_confidence
        ]:
            row = f"no drafter of them lets {fitted.fit.method} commit {fitted.fit.wanted:.2f} tokens a round"
            remark += f"; not checked at confidences of {' and '.join(unchecked_confidences)}, as {row}"
        if judgement.estimate is None:
            return judgement
        if {alternative.is_ahead for alternative in alternatives.values() if alternative.estimate} <= {
            judgement.is_ahead
        }:
            return replace(judgement, said=judgement.said + remark)
        is_decided = judgement.outcome in ("reproduced", "contradicted")
        return replace(
            judgement,
            outcome="undecided" if is_decided else judgement.outcome,
            said=f"{judgement.said}{remark}, where it flips",
            reason=None if is_decided else judgement.reason,
            floors={**judgement.floors, CONFIDENCE: 1.0},
        )

    def _judge(
        self,
        claim: Comparison | Bound | Order | Trend,
        *,
        by_counts: bool,
        moved: "Measured | None" = None,
        freedom: float = 1.0,
        others: Sequence["Measured"] = (),
    ) -> Judgement:
        """The judgement on a claim.

        Args:
            by_counts: whether speeds are counted at given costs, instead of timed.
            moved: the same with a drafter whose agreement differs by a standard error.
            freedom: degrees of freedom of that error.
            others: the same with other drafters, which is judged on the same prompts.
        """
        variants = [self, *([moved] if moved else []), *others]
        finished: dict[str, set[int]] = {}
        for variant in variants:
            for block in variant._blocks_of(claim):
                numbers = set(variant.numbers(block, claim.metric, by_counts=by_counts))
                finished[block.setting.set] = finished.get(block.setting.set, numbers) & numbers
        prompts_by_set = {name: sorted(numbers) for name, numbers in finished.items() if numbers}
        if not prompts_by_set:
            verb = "run" if by_counts else "timed"
            return Judgement("not run", f"no prompt was {verb} in all its methods yet")
        blocks = [block for block in self._blocks_of(claim) if block.setting.set in prompts_by_set]
        # values of the axis that were run, as they stand behind the @ of a name
        axis = [str(block.value) for block in blocks if block.value is not None]
        axis = list(dict.fromkeys([*axis, *(name.partition("@")[2] for name in blocks[0].ways if "@" in name)]))
        if isinstance(claim, Trend) and len(axis) < 2:
            return Judgement("not run", "a trend takes two values of what is varied")
        ends = [f"@{axis[0]}", f"@{axis[-1]}"] if isinstance(claim, Trend) else [""]
        ways = {name + end: _places(name + end, blocks) for name in claim.names for end in ends}
        if absent_name := next((name for name, method_ways in ways.items() if not method_ways), None):
            return Judgement("not run", f"{absent_name} is not among what was run")
        all_ways = [way for method_ways in ways.values() for way in method_ways]
        sets = {block.setting.set for block, _ in all_ways}
        prompts_by_set = {name: numbers for name, numbers in prompts_by_set.items() if name in sets}
        needs_costs = by_counts and BASES.get(claim.metric, claim.metric) in COUNTED
        if needs_costs and (
            uncosted_way := next((way for block, way in all_ways if not self.pass_costs(block, way)), None)
        ):
            reason = "nothing was timed yet" if self.costs.name == MEASURED else "the paper does not tell it"
            return Judgement("not run", f"the cost of the draft passes of {uncosted_way} is not known: {reason}")
        jackknife = self._jackknife(prompts_by_set)
        means = partial(self._mean, claim, jackknife, prompts_by_set, by_counts=by_counts)
        are_drawn = needs_costs and self.costs == BY_PAPER and self.experiment.draws
        evidence = Evidence(
            means,
            jackknife,
            sum(map(len, prompts_by_set.values())),
            drawn=partial(means, drawn=True) if are_drawn else None,
            moved=partial(moved._mean, claim, jackknife, prompts_by_set, by_counts=True) if moved else None,
            moved_freedom=freedom,
        )
        judgement = replace(judge(claim, evidence, axis), datum=self._datum(claim, ways, prompts_by_set))
        if judgement.outcome not in ("contradicted", "left open") or self.experiment.result.kind != "decoding":
            return judgement
        judged_ways = {
            name: method_ways for name, method_ways in ways.items() if name not in getattr(claim, "others", {}).values()
        }
        ratio = judgement.estimate or 1.0
        if isinstance(claim, Trend):  # of the last value over the first, which stands before it
            ratio = 1 / ratio
        is_ahead = (ratio > 1) != (claim.metric in FALLING)
        return replace(judgement, reason=self._reason(claim.metric, judged_ways, prompts_by_set, by_counts, is_ahead))

    def _datum(self, claim: Comparison | Bound | Order | Trend, places: Places, shared: Shared) -> str:
        """A digest of the texts that a claim rests on and of what is taken of them, whatever stands on which side."""

        def key(block: Block, name: str, number: int) -> object:
            task = self._task(block, number)
            is_text = self.experiment.result.kind == "decoding"
            return task.counts_key(block.ways[name]) if is_text else (*task.other_key, name)

        texts = [
            [key(block, name, number) for block, name in method_ways for number in shared[block.setting.set]]
            for method_ways in places.values()
        ]
        metrics = {claim.metric, getattr(claim, "right_metric", None) or claim.metric}
        representatives = sorted(
            {next((min(group) for group in (SPEEDS, LENGTHS) if metric in group), metric) for metric in metrics}
        )
        return short_digest([isinstance(claim, Order), representatives, sorted(map(short_digest, texts))])

    def _blocks_of(self, claim: Comparison | Bound | Order | Trend) -> list[Block]:
        """The blocks that a claim is on."""
        own_setting = filter(self.experiment.is_of_its_setting, self.experiment.blocks)
        return [block for block in own_setting if claim.temperature in (None, block.setting.temperature)]

    def _mean(
        self,
        claim: Comparison | Bound | Order | Trend,
        jackknife: Jackknife,
        shared: Shared,
        name: str,
        metric: Metric,
        *,
        by_counts: bool,
        drawn: bool = False,
    ) -> Tensor:
        """The mean of a metric of a method over some prompts, as `Jackknife.mean` gives it."""
        blocks = [block for block in self._blocks_of(claim) if block.setting.set in shared]
        values = partial(self._values, jackknife, metric=metric, by_counts=by_counts, drawn=drawn)
        replicates = (values(block, way, numbers=shared[block.setting.set]) for block, way in _places(name, blocks))
        return torch.stack(list(replicates)).mean(0)

    def _reason(self, metric: Metric, places: Places, shared: Shared, by_counts: bool, is_ahead: bool) -> str | None:
        """One line on the methods of a claim, and what puts the first of two ahead, or behind."""
        if metric not in SPEEDS | PROGRESS:
            return None
        terms_by_method = {
            name: self._terms(method_ways, shared, by_counts=by_counts) for name, method_ways in places.items()
        }
        first_terms, *other_terms = terms_by_method.values()
        contributions = dict[str, float]()
        if metric in SPEEDS:  # R = tau / (v + c delta + h)
            summary = "; ".join(
                f"{name}: tau {terms['tau']:.2f}, v {terms['v(n)']:.2f} over {terms['nodes']:.0f} nodes, "
                f"c delta {terms['c delta']:.2f}" + (f", h {terms['h']:.2f}" if terms["h"] else "")
                for name, terms in terms_by_method.items()
            )
            if len(other_terms) == 1:
                (second_terms,) = other_terms
                cost = sum(terms[term] for terms in (first_terms, second_terms) for term in COSTS) / 2
                contributions = {"tau": log(first_terms["tau"] / second_terms["tau"])}
                contributions |= {term: (second_terms[term] - first_terms[term]) / cost for term in COSTS}
        else:  # tau = 1 + levels * accepted share
            summary = "; ".join(
                f"{name}: {terms['levels']:.2f} levels a round, {terms['accepted']:.2f} accepted"
                for name, terms in terms_by_method.items()
            )
            if len(other_terms) == 1 and all(
                terms["levels"] and terms["accepted"] for terms in terms_by_method.values()
            ):
                (second_terms,) = other_terms
                levels = log(first_terms["levels"] / second_terms["levels"])
                share = log(first_terms["accepted"] / second_terms["accepted"]) - levels
                contributions = {"the accepted share": share, "the number of levels": levels}
        if not contributions:
            return summary
        decisive_term = max(contributions, key=lambda name: contributions[name] if is_ahead else -contributions[name])
        return f"{decisive_term} decides ({summary})"

    def _terms(self, places: Sequence[tuple[Block, str]], shared: Shared, *, by_counts: bool) -> Mapping[str, float]:
        """Means per round of a method: tau, levels, accepted tokens, nodes, and in plain passes what it costs."""
        rows = []
        for block, name in places:
            costs = self.pass_costs(block, name) if by_counts else None
            for number in shared[block.setting.set]:
                if (counts := self.counts(block, name, number)) is None:
                    continue
                rounds = len(counts.committed)
                passes = sum(counts.passes)
                cost_sums = np.zeros(4)
                if costs:
                    target = sum(map(costs.target.at, counts.nodes))
                    cost_sums += target, costs.draft * passes, costs.round * rounds, rounds
                elif not by_counts:
                    turns = (self.turns(block, way, number) for way in (name, AUTOREGRESSIVE))
                    for way_times, plain in zip(*turns, strict=True):
                        target = way_times.target_pass * rounds
                        cost_sums += (
                            target,
                            way_times.draft_pass * passes,
                            way_times.overhead * rounds,
                            plain.target_pass * rounds,
                        )
                sums = map(sum, (counts.committed, counts.levels, counts.accepted, counts.nodes))
                rows.append((rounds, *sums, *cost_sums))
        rounds, *totals, plain = np.sum(rows, 0).tolist()
        terms = zip(("tau", "levels", "accepted", "nodes", *COSTS), totals, strict=True)
        return {name: total / ((plain or 1.0) if name in COSTS else rounds) for name, total in terms}


def _places(name: str, blocks: Sequence[Block]) -> list[tuple[Block, str]]:
    """The blocks in which a method stands, and its name there.

    `method@value` may name a way, the blocks of a value of the axis, or those of a set.
    """
    method, _, value = name.partition("@")
    return [
        (block, name if name in block.ways else method)
        for block in blocks
        if name in block.ways or (method in block.ways and value in ("", str(block.value), block.setting.set))
    ]
