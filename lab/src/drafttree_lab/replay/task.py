"""What is run at once: a prompt in all ways of a block; and the keys of its cells."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from drafttree_lab.replay.experiment import Block, Experiment, Setting
from drafttree_lab.replay.jackknife import Fraction
from drafttree_lab.replay.replay_method import ReplayMethod
from drafttree_lab.replay.text_cell import TextTimes

Key = tuple[str | int | float, ...]
Digests = Mapping[tuple[str, str], Sequence[str]]
"""Digests of prompts by the name of the paper and of the set."""
WayTimes = dict[str, TextTimes]
"""The times of every way of a block, by name, on one prompt."""
Fractions = dict[str, Fraction]
"""What every way of a block measured on one prompt, by name, in a result of another kind than decoding."""


@dataclass(frozen=True)
class Task:
    """One prompt of a block of an experiment, in one repeat.

    Attributes:
        experiment: it belongs to.
        block: it belongs to.
        prompt: number of the prompt in its set.
        digest: the digest of its token ids.
        repeat: number of the repeat.
        earlier: digests of the prompts before it in its set, which policies that learn between texts have seen.
    """

    experiment: Experiment
    block: Block
    prompt: int
    digest: str
    repeat: int
    earlier: Sequence[str] = ()

    @property
    def turn_key(self) -> Key:
        """Of its times, for exactly these ways: each ran beside all others."""
        ways = short_digest(sorted((name, way.spec) for name, way in self.block.ways.items()))
        return ("turn", self.experiment.id, ways, *setting_key(self.block.setting), self.digest, self.repeat)

    @property
    def other_key(self) -> Key:
        """Of its cell, in a result of another kind than decoding."""
        ways = short_digest(sorted((name, way.spec) for name, way in self.block.ways.items()))
        return (self.experiment.result.kind, ways, str(self.block.value), *setting_key(self.block.setting), self.digest)

    def counts_key(self, way: ReplayMethod) -> Key:
        """Of the counts of one of its ways, which every result with the same setting shares."""
        learned = [short_digest(list(self.earlier))] if way.learns else []
        return ("counts", way.spec, *setting_key(self.block.setting), self.digest, *learned)


def short_digest(value: object) -> str:
    """A digest of plain data."""
    return hashlib.sha256(repr(value).encode()).hexdigest()[:16]


def setting_key(setting: Setting) -> Key:
    """A setting as a part of a key."""
    return (setting.temperature, setting.max_new_tokens, setting.prompt_tokens or 0, int(setting.ignore_eos))


def tasks(experiments: Sequence[Experiment], digests: Digests, repeats: int) -> Iterator[Task]:
    """All tasks: first those of results with a main claim, and of these the first prompt of all sets and results.

    The others come one after the other, those with the fewest runs first, as a result says nothing until it has
    prompts enough.

    Args:
        experiments: experiments to run.
        digests: digests of the prompts.
        repeats: repeats of every prompt.
    """
    others = sorted((each for each in experiments if not each.main), key=lambda each: each.runs)
    for chosen in ([each for each in experiments if each.main], *([each] for each in others)):
        most = max((len(digests[each.paper, block.setting.set]) for each in chosen for block in each.blocks), default=0)
        for repeat, number, each in product(range(repeats), range(most), chosen):
            for block in each.blocks:
                own = digests[each.paper, block.setting.set][: each.most_prompts]
                if number < len(own):
                    yield Task(each, block, number, own[number], repeat, own[:number])
