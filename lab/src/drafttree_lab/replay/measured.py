"""What the cells of an experiment amount to: measured values, and the verdicts on its claims."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from torch import Tensor

from drafttree.evaluation.run_store import RunStore
from drafttree_lab.replay.bootstrap import Bootstrap, Fraction, interval
from drafttree_lab.replay.experiment import Block, Experiment
from drafttree_lab.replay.paper import AUTOREGRESSIVE, GAINS, Claim, Metric, NotComparable, Trend
from drafttree_lab.replay.task import Fractions, Task, WayTimes
from drafttree_lab.replay.text_cell import TIMED, TextCounts, TextTimes
from drafttree_lab.replay.verdict import LEAST_PROMPTS, Verdict, judge, without

GROUPS = ("all", "looping", "not looping")


@dataclass(frozen=True)
class Value:
    """A measured number with its 95 % interval over prompts.

    Attributes:
        mean: over the prompts of the set.
        low: lower end.
        high: upper end.
        prompts: it rests on.
    """

    mean: float
    low: float
    high: float
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
    """

    experiment: Experiment
    store: RunStore
    digests: Mapping[str, Sequence[str]]
    repeats: int = 1
    group: str = "all"

    def numbers(self, block: Block, metric: Metric) -> list[int]:
        """The prompts of a block for which all its ways have what a metric needs."""
        every = range(len(self.digests[block.setting.set]))
        return [number for number in every if self._is_whole(block, number, metric)]

    def counts(self, block: Block, name: str, number: int) -> TextCounts | None:
        """The counts of a way on a prompt."""
        return self.store.find(self._task(block, number).counts_key(block.ways[name]), TextCounts)

    def times(self, block: Block, name: str, number: int) -> list[tuple[TextTimes, TextTimes]]:
        """The times of a way and of plain decoding in the turns of a prompt."""
        tasks = (self._task(block, number, repeat) for repeat in range(self.repeats))
        turns = (self.store.find(task.turn_key, WayTimes) for task in tasks)
        return [(turn[name], turn[AUTOREGRESSIVE]) for turn in turns if turn]

    def value(self, block: Block, name: str, metric: Metric) -> Value | None:
        """A metric of a way, None without a cell of it."""
        own, numbers = GAINS.get(metric, metric), self.numbers(block, GAINS.get(metric, metric))
        fractions = self._fractions(block, name, own, numbers)
        if not sum(below for _, below in fractions):
            return None
        bootstrap = Bootstrap({"": len(fractions)})
        means = bootstrap.mean([("", fractions)])
        if metric in GAINS:
            base = self._fractions(block, self._base(name), own, numbers)
            means = 100 * (means / bootstrap.mean([("", base)]) - 1)
        return Value(means[0].item(), *interval(means), len(fractions))

    @property
    def looping(self) -> float:
        """The share of plain decoding's texts that end in a loop; 0 where there are none."""
        places = ((block, number) for block in self.experiment.blocks for number in self.numbers(block, "tau"))
        found = [counts.looping for block, number in places if (counts := self.counts(block, AUTOREGRESSIVE, number))]
        return sum(found) / len(found) if found else 0.0

    def verdicts(self) -> list[Verdict]:
        """The verdict on every claim."""
        return [self._verdict(claim) for claim in self.experiment.result.claims]

    def _is_whole(self, block: Block, number: int, metric: Metric) -> bool:
        if self.experiment.result.kind != "decoding":
            return self._other(block, number) is not None
        plain = self.counts(block, AUTOREGRESSIVE, number)
        if plain is None or (self.group != "all" and plain.looping != (self.group == "looping")):
            return False
        if metric in TIMED and not self.times(block, AUTOREGRESSIVE, number):
            return False
        return all(self.counts(block, name, number) for name in block.ways)

    def _base(self, name: str) -> str:
        """The method that the gains of another are over."""
        method, at, value = name.partition("@")
        base = self.experiment.result.over.get(method, AUTOREGRESSIVE)
        return base if base == AUTOREGRESSIVE else f"{base}{at}{value}"

    def _fractions(self, block: Block, name: str, metric: Metric, numbers: Sequence[int]) -> list[Fraction]:
        return [self._fraction(block, name, metric, number) for number in numbers]

    def _fraction(self, block: Block, name: str, metric: Metric, number: int) -> Fraction:
        if found := self._other(block, number):
            return found[name]
        if metric in TIMED:
            turns = [own.fraction(metric, plain) for own, plain in self.times(block, name, number)]
            return fmean(above for above, _ in turns), fmean(below for _, below in turns)
        counts = self.counts(block, name, number)
        return counts.fraction(metric) if counts else (0.0, 0.0)

    def _other(self, block: Block, number: int) -> Fractions | None:
        """The fractions of a result of another kind, which has one metric."""
        if self.experiment.result.kind == "decoding":
            return None
        return self.store.find(self._task(block, number).other_key, Fractions)

    def _task(self, block: Block, number: int, repeat: int = 0) -> Task:
        return Task(self.experiment, block, number, self.digests[block.setting.set][number], repeat)

    def _verdict(self, claim: Claim) -> Verdict:
        if isinstance(claim, NotComparable):
            return without(claim, "not comparable", claim.reason)
        if self.experiment.result.unavailable:
            return without(claim, "not run", self.experiment.result.unavailable)
        absent = {name.partition("@")[0]: name for name in claim.names}.keys() & self.experiment.missing.keys()
        if absent:
            return without(claim, "not run", self.experiment.missing[min(absent)])
        blocks = [each for each in self.experiment.blocks if claim.temperature in (None, each.setting.temperature)]
        shared = self._shared(blocks, claim.metric)
        if not shared:
            return without(claim, "not run", "no prompt was run in all its methods yet")
        blocks = [block for block in blocks if block.setting.set in shared]
        axis = self._axis(blocks)
        ends = [f"@{axis[0]}", f"@{axis[-1]}"] if isinstance(claim, Trend) and axis else [""]
        names = [name + end for name in claim.names for end in ends]
        if lacking := next((name for name in names if not _places(name, blocks)), None):
            return without(claim, "not run", f"{lacking} is not among what was run")
        bootstrap = Bootstrap({name: len(numbers) for name, numbers in shared.items()})

        def means(name: str) -> Tensor:
            return bootstrap.mean(
                (block.setting.set, self._fractions(block, way, claim.metric, shared[block.setting.set]))
                for block, way in _places(name, blocks)
            )

        enough = min(map(len, shared.values())) >= LEAST_PROMPTS
        return judge(claim, means, axis, sum(map(len, shared.values())), enough=enough)

    def _shared(self, blocks: Sequence[Block], metric: Metric) -> dict[str, list[int]]:
        """By set, the prompts that all blocks of it have finished; sets without any are left out."""
        found: dict[str, set[int]] = {}
        for block in blocks:
            own = set(self.numbers(block, metric))
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
