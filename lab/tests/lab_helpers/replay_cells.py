"""Cells of a replay that are given, not run."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from drafttree.measure.run_store import RunStore
from drafttree_lab.replay.measured import Measured
from drafttree_lab.replay.plan import Experiment, Task
from drafttree_lab.replay.text_cell import TextCounts, TextTimes, WayTimes


def counted(accepted: Sequence[int], *, looping: bool = False, ranks: Sequence[list[int]] | None = None) -> TextCounts:
    """The counts of a text whose rounds accepted so many of three drafted tokens."""
    rounds = len(accepted)
    return TextCounts(
        tokens=list(range(sum(accepted) + rounds)),
        committed=[1 + each for each in accepted],
        accepted=list(accepted),
        nodes=[4] * rounds,
        levels=[3] * rounds,
        passes=[3] * rounds,
        ranks=[list(each) for each in ranks or [[1] * count for count in accepted]],
        looping=looping,
    )


def plain(rounds: int, *, looping: bool = False) -> TextCounts:
    """The counts of a text of plain decoding."""
    found = counted([0] * rounds, looping=looping)
    return replace(found, nodes=[1] * rounds, levels=[0] * rounds, passes=[0] * rounds)


def timed(seconds: float) -> TextTimes:
    """The times of ten tokens after a prompt that takes no time."""
    return TextTimes(
        tokens=10, rounds=5, seconds=seconds, prefill=0.0, first=0.1, target_pass=0.01, draft_pass=0.001, overhead=0.002
    )


def measured(experiment: Experiment, texts: Mapping[str, Sequence[Mapping[str, TextCounts]]], **options) -> Measured:
    """What the counts amount to: by set (or set@value of the axis), for each prompt the text of every way."""
    store = RunStore()
    names = {place.partition("@")[0]: len(each) for place, each in texts.items()}
    digests = {name: [f"{name}{number}" for number in range(count)] for name, count in names.items()}
    for block in experiment.blocks:
        place = block.setting.set if block.value is None else f"{block.setting.set}@{block.value}"
        for number, text in enumerate(texts[place]):
            task = Task(experiment, block, number, digests[block.setting.set][number], 0)
            for name, counts in text.items():
                store.run(task.counts_key(block.ways[name]), TextCounts, lambda own=counts: own)
    return Measured(experiment, store, digests, **options)


def keep_times(measured: Measured, seconds: Mapping[str, float | Sequence[float]]) -> None:
    """Keep one turn of these seconds for every prompt, or of those of each prompt."""
    for block in measured.experiment.blocks:
        for number, digest in enumerate(measured.digests[block.setting.set]):
            task = Task(measured.experiment, block, number, digest, 0)
            turn = {name: timed(each if isinstance(each, float) else each[number]) for name, each in seconds.items()}
            measured.store.run(task.turn_key, WayTimes, lambda own=turn: own)
