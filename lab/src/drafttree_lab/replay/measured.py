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
            pairs = [
                pair
                for number in self.numbers(block, "tokens_per_second")
                for pair in zip(*(self.turns(block, each, number) for each in (name, AUTOREGRESSIVE)), strict=True)
            ]
            if not pairs:
                return None
            unit = fmean(plain.target_pass for _, plain in pairs)
            target = fmean(own.target_pass for own, _ in pairs) / unit
            return PassCosts(fmean(own.draft_pass for own, _ in pairs) / unit, Costs((1,), (target,)))
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
        if not numbers or (needs_costs and not all(self.pass_costs(block, each) for each in (name, AUTOREGRESSIVE))):
            return None
        jackknife = self._jackknife({block.setting.set: numbers})
        values = partial(self._values, jackknife, block, numbers=numbers, by_counts=by_counts)
        if metric in GAINS:
            method, at, value = name.partition("@")
            base = self.experiment.result.over.get(method, AUTOREGRESSIVE)
            base = base if base == AUTOREGRESSIVE else f"{base}{at}{value}"
            if base not in block.ways:
                return None
            found = values(name, GAINS[metric]) / values(base, GAINS[metric])
        else:
            found = values(name, metric)
        if not bool(found[0].isfinite()):
            return None
        estimate = jackknife.estimate(found)
        ends = [estimate.value, estimate.low, estimate.high]
        if metric in GAINS:
            ends = [None if end is None else 100 * (end - 1) for end in ends]
        mean, low, high = ends
        return Value(mean or 0.0, low, high, len(numbers))

    @property
    def looping(self) -> float:
        """The share of plain decoding's texts that end in a loop; 0 where there are none."""
        places = ((block, number) for block in self.experiment.blocks for number in self.numbers(block, "tau"))
        found = [counts.looping for block, number in places if (counts := self.counts(block, AUTOREGRESSIVE, number))]
        return sum(found) / len(found) if found else 0.0

    def verdicts(self) -> list[Verdict]:
        """The verdict on every claim."""
        return [
            Verdict(each.id, each.text, each.line, each.main, self._judge_fitted(each), *self._judgements(each))
            for each in self.experiment.result.claims
        ]

    @property
    def near(self) -> "Measured | None":
        """The cells with the fitted drafter that is as sure as it is right; None where there is none."""
        own = self.fitted.by_confidence.get(1.0) if self.fitted else None
        return replace(self, experiment=own, fitted=None) if own else None

    def tau(self, name: str) -> tuple[Jackknife, Tensor]:
        """The jackknife over all prompts, and a way's tokens per round in the mean over sets, by `Jackknife.mean`."""
        blocks = {block.setting.set: block for block in self.experiment.blocks}
        shared = {place: numbers for place, block in blocks.items() if len(numbers := self.numbers(block, "tau")) > 1}
        jackknife = self._jackknife(shared)
        found = [
            self._values(jackknife, blocks[place], name, "tau", numbers=numbers, by_counts=True)
            for place, numbers in shared.items()
        ]
        return jackknife, torch.stack(found).mean(0)

    def _jackknife(self, shared: Shared) -> Jackknife:
        """The jackknife over some prompts of each set."""
        digests = {name: [self.digests[name][number] for number in numbers] for name, numbers in shared.items()}
        return Jackknife({name: [self.clusters.get(each, each) for each in own] for name, own in digests.items()})

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
            if found := self._other(block, number):
                return found[name]
            counts = self.counts(block, name, number)
            if costs and counts:
                return costs.fraction(metric, counts)
            if metric in TIMED:
                turns = [each.fraction(metric) for each in self.turns(block, name, number)]
                return fmean(above for above, _ in turns), fmean(below for _, below in turns)
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
        experiment, result = self.experiment, self.experiment.result
        if isinstance(claim, NotComparable):
            return Judgement("not comparable", claim.reason), None
        if reason := result.unavailable or ("" if experiment.blocks else "; ".join(clauses(experiment.missing))):
            return Judgement("not run", reason), None
        absent = {name.partition("@")[0] for name in claim.names} & experiment.missing.keys()
        if absent:
            return Judgement("not run", experiment.missing[min(absent)]), None
        return (
            self._judge(claim, by_counts=True) if result.is_judged(claim, timed=False) else None,
            self._judge(claim, by_counts=False) if result.is_judged(claim, timed=True) else None,
        )

    def _judge_fitted(self, claim: Claim) -> Judgement | None:
        """By counts with drafters that are fitted to the paper's; None where only a clock can tell, or none is."""
        fitted, result = self.fitted, self.experiment.result
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
        own = by_confidence.pop(1.0)
        absent = {name.partition("@")[0] for name in claim.names} & own.experiment.missing.keys()
        if absent:
            return Judgement("not run", own.experiment.missing[min(absent)])
        moved = replace(own, experiment=fitted.moved) if fitted.moved else None
        rest = [*by_confidence.values()]
        found = own._judge(claim, by_counts=True, moved=moved, freedom=fitted.fit.freedom, others=rest)
        others = {
            confidence: each._judge(claim, by_counts=True, others=[own, *rest])
            for confidence, each in by_confidence.items()
        }
        told = [f"{each.estimate:.2f} at {confidence:g}" for confidence, each in others.items() if each.estimate]
        said = f"; by confidence {', '.join(told)}" if told else ""
        if unchecked := [f"{each:g}" for each in sorted(CONFIDENCES.values()) if each not in fitted.by_confidence]:
            row = f"no drafter of them lets {fitted.fit.method} commit {fitted.fit.wanted:.2f} tokens a round"
            said += f"; not checked at confidences of {' and '.join(unchecked)}, as {row}"
        if found.estimate is None:
            return found
        if {each.is_ahead for each in others.values() if each.estimate} <= {found.is_ahead}:
            return replace(found, said=found.said + said)
        is_decided = found.outcome in ("reproduced", "contradicted")
        return replace(
            found,
            outcome="undecided" if is_decided else found.outcome,
            said=f"{found.said}{said}, where it flips",
            reason=None if is_decided else found.reason,
            floors={**found.floors, CONFIDENCE: 1.0},
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
                own = set(variant.numbers(block, claim.metric, by_counts=by_counts))
                finished[block.setting.set] = finished.get(block.setting.set, own) & own
        shared = {name: sorted(numbers) for name, numbers in finished.items() if numbers}
        if not shared:
            what = "run" if by_counts else "timed"
            return Judgement("not run", f"no prompt was {what} in all its methods yet")
        blocks = [block for block in self._blocks_of(claim) if block.setting.set in shared]
        # values of the axis that were run, as they stand behind the @ of a name
        axis = [str(block.value) for block in blocks if block.value is not None]
        axis = list(dict.fromkeys([*axis, *(name.partition("@")[2] for name in blocks[0].ways if "@" in name)]))
        if isinstance(claim, Trend) and len(axis) < 2:
            return Judgement("not run", "a trend takes two values of what is varied")
        ends = [f"@{axis[0]}", f"@{axis[-1]}"] if isinstance(claim, Trend) else [""]
        places = {name + end: _places(name + end, blocks) for name in claim.names for end in ends}
        if lacking := next((name for name, own in places.items() if not own), None):
            return Judgement("not run", f"{lacking} is not among what was run")
        every = [place for own in places.values() for place in own]
        sets = {block.setting.set for block, _ in every}
        shared = {name: numbers for name, numbers in shared.items() if name in sets}
        needs_costs = by_counts and BASES.get(claim.metric, claim.metric) in COUNTED
        if needs_costs and (unknown := next((way for block, way in every if not self.pass_costs(block, way)), None)):
            reason = "nothing was timed yet" if self.costs.name == MEASURED else "the paper does not tell it"
            return Judgement("not run", f"the cost of the draft passes of {unknown} is not known: {reason}")
        jackknife = self._jackknife(shared)
        means = partial(self._mean, claim, jackknife, shared, by_counts=by_counts)
        are_drawn = needs_costs and self.costs == BY_PAPER and self.experiment.draws
        evidence = Evidence(
            means,
            jackknife,
            sum(map(len, shared.values())),
            drawn=partial(means, drawn=True) if are_drawn else None,
            moved=partial(moved._mean, claim, jackknife, shared, by_counts=True) if moved else None,
            moved_freedom=freedom,
        )
        found = replace(judge(claim, evidence, axis), datum=self._datum(claim, places, shared))
        if found.outcome not in ("contradicted", "left open") or self.experiment.result.kind != "decoding":
            return found
        judged = {name: own for name, own in places.items() if name not in getattr(claim, "others", {}).values()}
        ratio = found.estimate or 1.0
        if isinstance(claim, Trend):  # of the last value over the first, which stands before it
            ratio = 1 / ratio
        is_ahead = (ratio > 1) != (claim.metric in FALLING)
        return replace(found, reason=self._reason(claim.metric, judged, shared, by_counts, is_ahead))

    def _datum(self, claim: Comparison | Bound | Order | Trend, places: Places, shared: Shared) -> str:
        """A digest of the texts that a claim rests on and of what is taken of them, whatever stands on which side."""

        def key(block: Block, name: str, number: int) -> object:
            task = self._task(block, number)
            is_text = self.experiment.result.kind == "decoding"
            return task.counts_key(block.ways[name]) if is_text else (*task.other_key, name)

        texts = [
            [key(block, name, number) for block, name in own for number in shared[block.setting.set]]
            for own in places.values()
        ]
        metrics = {claim.metric, getattr(claim, "right_metric", None) or claim.metric}
        taken = sorted({next((min(each) for each in (SPEEDS, LENGTHS) if one in each), one) for one in metrics})
        return short_digest([isinstance(claim, Order), taken, sorted(map(short_digest, texts))])

    def _blocks_of(self, claim: Comparison | Bound | Order | Trend) -> list[Block]:
        """The blocks that a claim is on."""
        own_setting = filter(self.experiment.is_of_its_setting, self.experiment.blocks)
        return [each for each in own_setting if claim.temperature in (None, each.setting.temperature)]

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
        found = (values(block, way, numbers=shared[block.setting.set]) for block, way in _places(name, blocks))
        return torch.stack(list(found)).mean(0)

    def _reason(self, metric: Metric, places: Places, shared: Shared, by_counts: bool, is_ahead: bool) -> str | None:
        """One line on the methods of a claim, and what puts the first of two ahead, or behind."""
        if metric not in SPEEDS | PROGRESS:
            return None
        found = {name: self._terms(own, shared, by_counts=by_counts) for name, own in places.items()}
        first, *others = found.values()
        moved = dict[str, float]()
        if metric in SPEEDS:  # R = tau / (v + c delta + h)
            told = "; ".join(
                f"{name}: tau {own['tau']:.2f}, v {own['v(n)']:.2f} over {own['nodes']:.0f} nodes, "
                f"c delta {own['c delta']:.2f}" + (f", h {own['h']:.2f}" if own["h"] else "")
                for name, own in found.items()
            )
            if len(others) == 1:
                (second,) = others
                cost = sum(each[term] for each in (first, second) for term in COSTS) / 2
                moved = {"tau": log(first["tau"] / second["tau"])}
                moved |= {term: (second[term] - first[term]) / cost for term in COSTS}
        else:  # tau = 1 + levels * accepted share
            told = "; ".join(
                f"{name}: {own['levels']:.2f} levels a round, {own['accepted']:.2f} accepted"
                for name, own in found.items()
            )
            if len(others) == 1 and all(own["levels"] and own["accepted"] for own in found.values()):
                (second,) = others
                levels = log(first["levels"] / second["levels"])
                share = log(first["accepted"] / second["accepted"]) - levels
                moved = {"the accepted share": share, "the number of levels": levels}
        if not moved:
            return told
        decisive = max(moved, key=lambda name: moved[name] if is_ahead else -moved[name])
        return f"{decisive} decides ({told})"

    def _terms(self, places: Sequence[tuple[Block, str]], shared: Shared, *, by_counts: bool) -> Mapping[str, float]:
        """Means per round of a method: tau, levels, accepted tokens, nodes, and in plain passes what it costs."""
        rows = []
        for block, name in places:
            costs = self.pass_costs(block, name) if by_counts else None
            for number in shared[block.setting.set]:
                if (counts := self.counts(block, name, number)) is None:
                    continue
                rounds, passes, spent = len(counts.committed), sum(counts.passes), np.zeros(4)
                if costs:
                    target = sum(map(costs.target.at, counts.nodes))
                    spent += target, costs.draft * passes, costs.round * rounds, rounds
                elif not by_counts:
                    turns = (self.turns(block, each, number) for each in (name, AUTOREGRESSIVE))
                    for own, plain in zip(*turns, strict=True):
                        target = own.target_pass * rounds
                        spent += target, own.draft_pass * passes, own.overhead * rounds, plain.target_pass * rounds
                sums = map(sum, (counts.committed, counts.levels, counts.accepted, counts.nodes))
                rows.append((rounds, *sums, *spent))
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
