"""Runs ways of generating over prompts, by turns."""

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Generation
from drafttree.engine.metrics import Metrics
from drafttree.evaluation.text_record import TextRecord
from drafttree.measure.by_turns import by_turns
from drafttree.measure.reference import ReferenceRun
from drafttree.measure.run_store import NothingFinished, RunStore

Outputs = dict[str, Any]
"""The output of every way of generating for one prompt: a `Generation`, or a peer's `ReferenceRun`."""


def way(decoder: Decoder, options: Mapping[str, Any]) -> Callable[[Sequence[int]], Generation]:
    """Generating from token ids by a decoder."""
    return lambda prompt: decoder.generate(list(prompt), **options)


def race(
    ways: Mapping[str, Callable],
    prompts: Sequence[Sequence[int]],
    repeats: int,
    progress: Callable[[str], None],
    store: RunStore,
) -> list[list[Outputs]]:
    """The outputs of all ways for every prompt, run by turns, in every repeat; every way is warmed up.

    The way that goes first is another one for every prompt and repeat, since a machine slows down and recovers.
    After an interruption, those of all prompts in the finished repeats, or of the finished prompts in the first one.
    """
    warm_up = functools.cache(lambda name: ways[name](prompts[0]))
    runs: list[list[Outputs]] = []

    def run(name: str, prompt: Sequence[int]) -> Any:
        warm_up(name)
        return ways[name](prompt)

    with store.interruptible():
        for repeat in range(repeats):
            runs.append([])
            for index, prompt in enumerate(prompts):
                turn: Outputs = {}
                for _, name in by_turns([*ways], 1, repeat + index):
                    work = functools.partial(run, name, prompt)
                    turn[name] = store.run((repeat, index, name), Generation | ReferenceRun, work)
                    progress(name)
                runs[-1].append(turn)
    if not runs[0]:
        raise NothingFinished(store)
    return [run for run in runs if len(run) == len(prompts)] or runs[:1]


def text_records(runs: Sequence[Sequence[Outputs]], groups: Sequence[str]) -> list[TextRecord]:
    """The records of all texts that have metrics.

    Args:
        runs: runs as `race` returns them.
        groups: per prompt, the name of its group.
    """
    numbers = [groups[:place].count(group) for place, group in enumerate(groups)]
    return [
        TextRecord.of(text.metrics, name, number, group=group, repeat=repeat)
        for repeat, run in enumerate(runs)
        for turn, group, number in zip(run, groups, numbers, strict=True)
        for name, text in turn.items()
        if isinstance(text, Generation)
    ]


def totals(name: str, chosen: Sequence[bool], runs: list[list[Outputs]]) -> list[Metrics]:
    """The metrics of a way over the chosen prompts, one for each repeat."""
    return [
        Metrics.total(turn[name].metrics for turn, wanted in zip(run, chosen, strict=True) if wanted) for run in runs
    ]
