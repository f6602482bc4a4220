"""The finished cells of an experiment, and the values that are computed from them."""

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean

import torch
from torch import Tensor

from drafttree.core.cost_curve import Costs
from drafttree.measure.interval import Interval
from drafttree.measure.reference import Difference
from drafttree.measure.run_store import RunStore
from drafttree_lab.replay.agreement import Fit
from drafttree_lab.replay.costs import BY_PAPER, MEASURED, CostSource, PassCosts
from drafttree_lab.replay.intervals import Estimate, Fraction, Jackknife
from drafttree_lab.replay.paper import AUTOREGRESSIVE, BASES, COUNTED, GAINS, TIMED, Metric
from drafttree_lab.replay.plan import Block, Experiment, Key, Task
from drafttree_lab.replay.text_cell import Fractions, TextCounts, TextTimes, WayTimes

SPEEDS: frozenset[Metric] = frozenset({"speedup", "tokens_per_second", "tpot"})
Way = tuple[Block, str]
"""A block, and the name of one of its ways."""


@dataclass(frozen=True)
class Value(Interval):
    """A measured number with its interval and the number of prompts."""

    prompts: int = 0

    @classmethod
    def of(cls, estimate: Estimate, prompts: int) -> "Value":
        """The value of an estimate."""
        return cls(estimate.value, estimate.low, estimate.high, prompts)

    @property
    def gain(self) -> "Value":
        """By how much a ratio is above 1, in per cent."""
        low = None if self.low is None else 100 * (self.low - 1)
        high = None if self.high is None else 100 * (self.high - 1)
        return Value(100 * (self.mean - 1), low, high, self.prompts)


@dataclass(frozen=True)
class Fitted:
    """The same experiment with drafters that are fitted to the paper's.

    Attributes:
        fit: how the drafters were found; None if none was fitted.
        by_confidence: by confidence of the drafter, the experiment with it; empty if no drafter was found.
        moved: the experiment with the drafter whose agreement differs by a standard error.
        reason: why no drafter was fitted; empty if one was.
    """

    fit: Fit | None = None
    by_confidence: Mapping[float, Experiment] = field(default_factory=dict)
    moved: Experiment | None = None
    reason: str = ""

    @property
    def experiments(self) -> list[Experiment]:
        """All experiments with fitted drafters."""
        return [*self.by_confidence.values(), *([self.moved] if self.moved else [])]


@dataclass(frozen=True)
class Measured:
    """The finished cells of one experiment.

    Attributes:
        experiment: the experiment.
        store: the store of the cells.
        digests: by set, the digests of the prompts.
        repeats: number of turns of each prompt.
        group: which prompts count: those where plain decoding's text ends in a loop ("looping"), the others
            ("not looping"), or "all".
        costs: the source of pass costs, if counts decide a claim on speed.
        clusters: by digest of a prompt, the name of its cluster; prompts without a name are their own cluster.
        fitted: the experiment with drafters that are fitted to the paper's; None if its drafter is the paper's own.
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
        """The prompts of a block whose cells for a metric are finished in all its ways."""
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

    def ties(self, block: Block, name: str) -> list[Difference]:
        """The ties by which texts of a way differ from plain decoding's, which are counted all the same."""
        ties: list[Difference] = []
        for number in range(len(self.digests[block.setting.set])):
            tie: Difference | None = self.store.find(self._task(block, number).tie_key(block.ways[name]), Difference)
            if tie:
                ties.append(tie)
        return ties

    def turns(self, block: Block, name: str, number: int) -> list[TextTimes]:
        """The times of a way in the turns of a prompt."""
        times = []
        for repeat in range(self.repeats):
            turn: WayTimes | None = self.store.find(self._task(block, number, repeat).turn_key, WayTimes)
            if turn:
                times.append(turn[name])
        return times

    def turn_pairs(self, block: Block, name: str, numbers: Iterable[int]) -> Iterator[tuple[TextTimes, TextTimes]]:
        """The times of a way in every turn of some prompts, with those of plain decoding in the same turn."""
        for number in numbers:
            yield from zip(self.turns(block, name, number), self.turns(block, AUTOREGRESSIVE, number), strict=True)

    def pass_costs(self, block: Block, name: str, *, use_draws: bool = False) -> PassCosts | None:
        """The pass costs of a way, by which counts judge speeds; None if unknown.

        Args:
            block: the block of the way.
            name: name of the way.
            use_draws: whether to give the many costs that the paper's rows allow, not its best ones.
        """
        if self.costs.name == MEASURED:  # the mean over all prompts
            turns = list(self.turn_pairs(block, name, self.numbers(block, "tokens_per_second")))
            if not turns:
                return None
            unit = fmean(plain.target_pass for _, plain in turns)
            target = fmean(way_times.target_pass for way_times, _ in turns) / unit
            return PassCosts(fmean(way_times.draft_pass for way_times, _ in turns) / unit, Costs((1,), (target,)))
        method = name.partition("@")[0]
        if self.costs.given and method != AUTOREGRESSIVE:
            return self.costs.given
        return (self.experiment.draws if use_draws else self.experiment.costs).get(method)

    def value(self, block: Block, name: str, metric: Metric, *, by_counts: bool = False) -> Value | None:
        """A metric of a way; None without a finished cell.

        Args:
            block: the block of the way.
            name: name of the way.
            metric: the metric.
            by_counts: whether a speed is counted at given costs; otherwise it is timed.
        """
        numbers = self.numbers(block, metric, by_counts=by_counts)
        if not numbers or (by_counts and self.uncosted_way(metric, [(block, name), (block, AUTOREGRESSIVE)])):
            return None
        base = self._base(name)
        if metric in GAINS and base not in block.ways:
            return None
        jackknife = self.jackknife({block.setting.set: numbers})
        values = partial(self.values, jackknife, block, numbers=numbers, by_counts=by_counts)
        if metric in GAINS:
            replicates = values(name, GAINS[metric]) / values(base, GAINS[metric])
        else:
            replicates = values(name, metric)
        if not bool(replicates[0].isfinite()):
            return None
        value = Value.of(jackknife.estimate(replicates), len(numbers))
        return value.gain if metric in GAINS else value

    def uncosted_way(self, metric: Metric, ways: Iterable[Way]) -> str | None:
        """The first of some ways whose pass costs are unknown; None if all are known, or the metric needs none."""
        if BASES.get(metric, metric) in COUNTED:
            for block, name in ways:
                if not self.pass_costs(block, name):
                    return name
        return None

    def has_gain(self, name: str) -> bool:
        """Whether the table has gains of a way; if it names their base for some ways, those of others have another."""
        over = self.experiment.result.over
        return name != AUTOREGRESSIVE and (not over or name.partition("@")[0] in over)

    def _base(self, name: str) -> str:
        """The method that the gain of a way is measured against."""
        method, separator, value = name.partition("@")
        base = self.experiment.result.over.get(method, AUTOREGRESSIVE)
        return base if base == AUTOREGRESSIVE else f"{base}{separator}{value}"

    @property
    def looping(self) -> float:
        """The share of plain decoding's texts that end in a loop; 0 without texts."""
        texts = looping = 0
        for block in self.experiment.blocks:
            for number in self.numbers(block, "tau"):
                if counts := self.counts(block, AUTOREGRESSIVE, number):
                    texts += 1
                    looping += counts.looping
        return looping / texts if texts else 0.0

    @property
    def near(self) -> "Measured | None":
        """The cells with the calibrated fitted drafter; None without one."""
        experiment = self.fitted.by_confidence.get(1.0) if self.fitted else None
        return replace(self, experiment=experiment, fitted=None) if experiment else None

    def tau(self, name: str) -> tuple[Jackknife, Tensor]:
        """The jackknife over all prompts, and a way's tokens per round as the mean over sets, from `Jackknife.mean`."""
        blocks = {block.setting.set: block for block in self.experiment.blocks}
        prompts_by_set: dict[str, list[int]] = {}
        for set_name, block in blocks.items():
            numbers = self.numbers(block, "tau")
            if len(numbers) > 1:
                prompts_by_set[set_name] = numbers
        jackknife = self.jackknife(prompts_by_set)
        replicates = [
            self.values(jackknife, blocks[set_name], name, "tau", numbers=numbers, by_counts=True)
            for set_name, numbers in prompts_by_set.items()
        ]
        return jackknife, torch.stack(replicates).mean(0)

    def jackknife(self, prompts: Mapping[str, Sequence[int]]) -> Jackknife:
        """The jackknife over some prompts, which are given by set and index."""
        clusters_by_set = {}
        for name, numbers in prompts.items():
            digests = [self.digests[name][number] for number in numbers]
            clusters_by_set[name] = [self.clusters.get(digest, digest) for digest in digests]
        return Jackknife(clusters_by_set)

    def values(
        self,
        jackknife: Jackknife,
        block: Block,
        name: str,
        metric: Metric,
        *,
        numbers: Sequence[int],
        by_counts: bool,
        use_draws: bool = False,
    ) -> Tensor:
        """A metric of a way in a block over all prompts, then without each cluster, as from `Jackknife.mean`.

        Args:
            jackknife: the jackknife over the prompts.
            block: the block of the way.
            name: name of the way.
            metric: the metric.
            numbers: indices of the prompts.
            by_counts: whether a speed is counted at given costs; otherwise it is timed.
            use_draws: whether to count at the many costs that the paper's rows allow.
        """
        if metric == "speedup":
            speed = partial(
                self.values, jackknife, block, metric="tokens_per_second", numbers=numbers, use_draws=use_draws
            )
            return speed(name, by_counts=by_counts) / speed(AUTOREGRESSIVE, by_counts=by_counts)
        costs = self.pass_costs(block, name, use_draws=use_draws) if by_counts and metric in COUNTED else None

        def fraction(number: int) -> Fraction:
            if fractions := self._other(block, number):
                return fractions[name]
            counts = self.counts(block, name, number)
            if costs and counts:
                return costs.fraction(metric, counts)
            if metric in TIMED:
                turns = [turn.fraction(metric) for turn in self.turns(block, name, number)]
                numerators, denominators = zip(*turns, strict=True)
                return fmean(numerators), fmean(denominators)
            return counts.fraction(metric) if counts else (0.0, 0.0)

        return jackknife.mean([(block.setting.set, list(map(fraction, numbers)))], self.experiment.average(metric))

    def _other(self, block: Block, number: int) -> Fractions | None:
        """The fractions of a prompt in a result that is not about decoding; it has one metric."""
        if self.experiment.result.kind == "decoding":
            return None
        return self.store.find(self._task(block, number).other_key, Fractions)

    def key(self, block: Block, name: str, number: int) -> Key:
        """The key of a way's counts on a prompt; in a result that is not about decoding, the key of its figure."""
        task = self._task(block, number)
        is_text = self.experiment.result.kind == "decoding"
        return task.counts_key(block.ways[name]) if is_text else (*task.other_key, name)

    def _task(self, block: Block, number: int, repeat: int = 0) -> Task:
        digests = self.digests[block.setting.set]
        return Task(self.experiment, block, number, digests[number], repeat, digests[:number])
