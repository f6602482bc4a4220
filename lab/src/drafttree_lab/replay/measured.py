"""What the cells of an experiment amount to: measured values, and the verdicts on its claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import torch
from torch import Tensor

from drafttree.core.cost_curve import Costs
from drafttree.measure.run_store import RunStore
from drafttree_lab.replay.experiment import Block, Experiment
from drafttree_lab.replay.jackknife import Fraction, Jackknife
from drafttree_lab.replay.paper import AUTOREGRESSIVE, GAINS, Claim, Metric, NotComparable, Trend
from drafttree_lab.replay.pass_costs import BY_PAPER, COUNTED, MEASURED, CostSource, PassCosts
from drafttree_lab.replay.reasons import find_reason
from drafttree_lab.replay.task import Fractions, Task, WayTimes
from drafttree_lab.replay.text_cell import TIMED, TextCounts, TextTimes
from drafttree_lab.replay.verdict import Judgement, Verdict, judge

GROUPS = ("all", "looping", "not looping")
BASES: Mapping[Metric, Metric] = {**GAINS, "speedup": "tokens_per_second"}
"""The metric of texts of which a ratio of two methods is made."""


@dataclass(frozen=True)
class Value:
    """A measured number with its 95 % interval over prompts.

    Attributes:
        mean: over the prompts of the set.
        low: lower end; None where one prompt was run.
        high: upper end.
        prompts: it rests on.
    """

    mean: float
    low: float | None
    high: float | None
    prompts: int


@dataclass(frozen=True)
class Measured:
    """The finished cells of one experiment.

    Attributes:
        experiment: the experiment whose they are.
        store: the store that keeps them.
        digests: digests of the prompts that are looked for, by set.
        repeats: turns that are looked for.
        group: one of `GROUPS`, which texts count: those where plain decoding's ends in a loop, the others, or
            all.
        costs: what passes cost where counts decide a claim on speed.
    """

    experiment: Experiment
    store: RunStore
    digests: Mapping[str, Sequence[str]]
    repeats: int = 1
    group: str = "all"
    costs: CostSource = BY_PAPER

    def numbers(self, block: Block, metric: Metric, *, by_counts: bool = False) -> list[int]:
        """The prompts of a block for which all its ways have what a metric needs."""
        every = range(len(self.digests[block.setting.set]))
        timed = BASES.get(metric, metric) in TIMED and not by_counts
        return [number for number in every if self._is_whole(block, number, timed=timed)]

    def counts(self, block: Block, name: str, number: int) -> TextCounts | None:
        """The counts of a way on a prompt."""
        return self.store.find(self._task(block, number).counts_key(block.ways[name]), TextCounts)

    def turns(self, block: Block, name: str, number: int) -> list[TextTimes]:
        """The times of a way in the turns of a prompt."""
        tasks = (self._task(block, number, repeat) for repeat in range(self.repeats))
        turns = (self.store.find(task.turn_key, WayTimes) for task in tasks)
        return [turn[name] for turn in turns if turn]

    def pass_costs(self, block: Block, name: str) -> PassCosts | None:
        """What the passes of a way cost, by which counts judge speeds; None where it is not known."""
        if self.costs.name == MEASURED:
            return self._measured_costs(block, name)
        if self.costs.given and name.partition("@")[0] != AUTOREGRESSIVE:
            return self.costs.given
        return self.experiment.costs.get(name.partition("@")[0])

    def value(self, block: Block, name: str, metric: Metric, *, by_counts: bool = False) -> Value | None:
        """A metric of a way, None without a cell of it.

        Args:
            block: the block of the way.
            name: its name.
            metric: what is asked for.
            by_counts: whether a speed is counted at given costs, instead of timed.
        """
        numbers = self.numbers(block, metric, by_counts=by_counts)
        if not numbers or (by_counts and not all(self.pass_costs(block, each) for each in (name, AUTOREGRESSIVE))):
            return None
        jackknife = Jackknife({block.setting.set: len(numbers)})
        values = partial(self._values, jackknife, block, numbers=numbers, by_counts=by_counts)
        if metric in GAINS:
            found = values(name, GAINS[metric]) / values(self._base(name), GAINS[metric])
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
        return [self._verdict(claim) for claim in self.experiment.result.claims]

    def _measured_costs(self, block: Block, name: str) -> PassCosts | None:
        """Mean costs as they were timed here, over all prompts."""
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

    def _is_whole(self, block: Block, number: int, *, timed: bool) -> bool:
        if self.experiment.result.kind != "decoding":
            return self._other(block, number) is not None
        plain = self.counts(block, AUTOREGRESSIVE, number)
        if plain is None or (self.group != "all" and plain.looping != (self.group == "looping")):
            return False
        if timed and not self.turns(block, AUTOREGRESSIVE, number):
            return False
        return all(self.counts(block, name, number) for name in block.ways)

    def _base(self, name: str) -> str:
        """The method that the gains of another are over."""
        method, at, value = name.partition("@")
        base = self.experiment.result.over.get(method, AUTOREGRESSIVE)
        return base if base == AUTOREGRESSIVE else f"{base}{at}{value}"

    def _values(
        self,
        jackknife: Jackknife,
        block: Block,
        name: str,
        metric: Metric,
        *,
        numbers: Sequence[int],
        by_counts: bool,
    ) -> Tensor:
        """A metric of a way in a block, of all prompts and without each of them, as `Jackknife.mean` gives it."""
        if metric == "speedup":
            speed = partial(self._values, jackknife, block, metric="tokens_per_second", numbers=numbers)
            return speed(name, by_counts=by_counts) / speed(AUTOREGRESSIVE, by_counts=by_counts)
        costs = self.pass_costs(block, name) if by_counts and metric in COUNTED else None
        fractions = [self._fraction(block, name, metric, number, costs) for number in numbers]
        return jackknife.mean([(block.setting.set, fractions)], self.experiment.average(metric))

    def _fraction(self, block: Block, name: str, metric: Metric, number: int, costs: PassCosts | None) -> Fraction:
        """What a prompt adds to a metric; a speed is counted where costs are given, and timed where not."""
        if found := self._other(block, number):
            return found[name]
        counts = self.counts(block, name, number)
        if costs and counts:
            return costs.fraction(metric, counts)
        if metric in TIMED:
            turns = [each.fraction(metric) for each in self.turns(block, name, number)]
            return fmean(above for above, _ in turns), fmean(below for _, below in turns)
        return counts.fraction(metric) if counts else (0.0, 0.0)

    def _other(self, block: Block, number: int) -> Fractions | None:
        """The fractions of a result of another kind, which has one metric."""
        if self.experiment.result.kind == "decoding":
            return None
        return self.store.find(self._task(block, number).other_key, Fractions)

    def _task(self, block: Block, number: int, repeat: int = 0) -> Task:
        digests = self.digests[block.setting.set]
        return Task(self.experiment, block, number, digests[number], repeat, digests[:number])

    def _verdict(self, claim: Claim) -> Verdict:
        if isinstance(claim, NotComparable):
            return Verdict.of(claim, Judgement("not comparable", claim.reason))
        if self.experiment.result.unavailable:
            return Verdict.of(claim, Judgement("not run", self.experiment.result.unavailable))
        absent = {name.partition("@")[0]: name for name in claim.names}.keys() & self.experiment.missing.keys()
        if absent:
            return Verdict.of(claim, Judgement("not run", self.experiment.missing[min(absent)]))
        kind, base = self.experiment.result.kind, BASES.get(claim.metric, claim.metric)
        timed = kind in ("memory", "expansion") or (kind == "decoding" and base in TIMED)
        by_time = self._judge(claim, by_counts=False) if timed else None
        by_counts = (
            self._judge(claim, by_counts=True) if not timed or (kind == "decoding" and base in COUNTED) else None
        )
        return Verdict.of(claim, by_counts, by_time)

    def _judge(self, claim: Claim, *, by_counts: bool) -> Judgement:
        assert not isinstance(claim, NotComparable)
        own_setting = filter(self.experiment.is_of_its_setting, self.experiment.blocks)
        blocks = [each for each in own_setting if claim.temperature in (None, each.setting.temperature)]
        shared = self._shared(blocks, claim.metric, by_counts=by_counts)
        if not shared:
            what = "run" if by_counts else "timed"
            return Judgement("not run", f"no prompt was {what} in all its methods yet")
        blocks = [block for block in blocks if block.setting.set in shared]
        axis = self._axis(blocks)
        if isinstance(claim, Trend) and len(axis) < 2:
            return Judgement("not run", "a trend takes two values of what is varied")
        ends = [f"@{axis[0]}", f"@{axis[-1]}"] if isinstance(claim, Trend) and axis else [""]
        names = [name + end for name in claim.names for end in ends]
        if lacking := next((name for name in names if not _places(name, blocks)), None):
            return Judgement("not run", f"{lacking} is not among what was run")
        places = {name: _places(name, blocks) for name in names}
        every = [place for own in places.values() for place in own]
        sets = {block.setting.set for block, _ in every}
        shared = {name: numbers for name, numbers in shared.items() if name in sets}
        needs_costs = by_counts and BASES.get(claim.metric, claim.metric) in COUNTED
        if needs_costs and (unknown := next((way for block, way in every if not self.pass_costs(block, way)), None)):
            reason = "nothing was timed yet" if self.costs.name == MEASURED else "the paper does not tell it"
            return Judgement("not run", f"the cost of the draft passes of {unknown} is not known: {reason}")
        jackknife = Jackknife({name: len(numbers) for name, numbers in shared.items()})

        def means(name: str, metric: Metric) -> Tensor:
            values = partial(self._values, jackknife, metric=metric, by_counts=by_counts)
            found = (values(block, way, numbers=shared[block.setting.set]) for block, way in places[name])
            return torch.stack(list(found)).mean(0)

        found = judge(claim, means, jackknife, axis, sum(map(len, shared.values())))
        if found.outcome in ("contradicted", "left open") and self.experiment.result.kind == "decoding":
            judged = {name: places[name] for name in names if name not in getattr(claim, "others", {}).values()}
            ratio = found.estimate
            if ratio and isinstance(claim, Trend):  # of the last value over the first, which stands before it
                ratio = 1 / ratio
            reason = find_reason(self, claim.metric, judged, shared, by_counts=by_counts, ratio=ratio)
            return replace(found, reason=reason)
        return found

    def _shared(self, blocks: Sequence[Block], metric: Metric, *, by_counts: bool) -> dict[str, list[int]]:
        """By set, the prompts that all blocks of it have finished; sets without any are left out."""
        found: dict[str, set[int]] = {}
        for block in blocks:
            own = set(self.numbers(block, metric, by_counts=by_counts))
            found[block.setting.set] = found.get(block.setting.set, own) & own
        return {name: sorted(numbers) for name, numbers in found.items() if numbers}

    def _axis(self, blocks: Sequence[Block]) -> list[str]:
        """The values of the axis that were run, as they stand behind the @ of a name."""
        values = [str(block.value) for block in blocks if block.value is not None]
        values += [name.partition("@")[2] for name in blocks[0].ways if "@" in name]
        return list(dict.fromkeys(values))


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
