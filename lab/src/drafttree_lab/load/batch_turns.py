"""The turns of the benchmark of many requests: which prompts, in which order, and whether the texts are the same."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import cycle, islice
from typing import Any

from drafttree.engine.decoder import Decoder
from drafttree.engine.round_loop import LONGEST_PART
from drafttree.measure.driver import by_turns
from drafttree.measure.method import PLAIN
from drafttree.measure.reference import find_difference
from drafttree.measure.run_store import NothingFinished, RunStore
from drafttree_lab.load.batch_run import BatchRun
from drafttree_lab.load.batch_ways import ONE_BY_ONE, BatchDecoding

WARM_UP_TOKENS = 16
"""Of the prompts and of the texts of the turn by which a way is warmed up at a size."""
TIE = 1e-5
"""The distance of the two best logits up to which either may be taken."""


@dataclass(frozen=True)
class BatchTurn:
    """Every way of decoding on the same prompts.

    Attributes:
        number: the number of the turn, from 0.
        prompts: token ids, as many as are served at a time.
        runs: the runs, by way.
    """

    number: int
    prompts: Sequence[Sequence[int]]
    runs: Mapping[str, BatchRun]


@dataclass(frozen=True)
class TextDifference:
    """A text that is not plain decoding's.

    Attributes:
        size: the size of the batch.
        turn: its number.
        way: the way of decoding that wrote it.
        prompt: its place in the turn.
        position: the position of the first token that differs.
        gap: the gap between the two best logits there.
        tie: whether they are within `TIE`, or within the dtype's rounding.
    """

    size: int
    turn: int
    way: str
    prompt: int
    position: int
    gap: float
    tie: bool


@dataclass(frozen=True)
class BatchTurns:
    """Runs turns.

    Attributes:
        ways: ways of decoding, by name.
        prompts: token ids; a turn takes the next ones, and begins anew where they end. So much is cut off at their
            beginning that one pass can read all of a turn: texts begin together then, and the batch is full from their
            first tokens to the end of one.
        options: as for `EngineWay.run`, of all texts.
        alone: the size at which prompts are decoded one by one too.
        progress: called after every run with what it was.
        store: keeps finished runs.
    """

    ways: Mapping[str, BatchDecoding]
    prompts: Sequence[Sequence[int]]
    options: Mapping[str, Any]
    alone: int
    progress: Callable[[str], None]
    store: RunStore

    def run(self, sizes: Sequence[int], repeats: int) -> dict[int, list[BatchTurn]]:
        """So many turns of every size; after an interruption, those that are finished.

        Raises:
            NothingFinished: none is.
        """
        found: dict[int, list[BatchTurn]] = {}
        with self.store.interruptible():
            for number in range(repeats):
                for place, size in enumerate(sizes):
                    turn = self._turn(number, size, number + place)
                    found.setdefault(size, []).append(turn)
        if not found:
            raise NothingFinished(self.store)
        return found

    def names(self, size: int) -> list[str]:
        """The ways that are run at a size."""
        return [name for name in self.ways if name != ONE_BY_ONE or size == self.alone]

    def _turn(self, number: int, size: int, first: int) -> BatchTurn:
        """One turn, beginning with the first-th way."""
        prompts = self._next_prompts(number, size)
        names, runs = self.names(size), {}
        for _, name in by_turns(names, 1, first):
            runs[name] = self.store.run((number, size, name), BatchRun, partial(self._run, name, size, prompts))
            self.progress(f"{size}: {name}")
        return BatchTurn(number, prompts, {name: runs[name] for name in names})

    def _next_prompts(self, number: int, size: int) -> list[Sequence[int]]:
        """The prompts of a turn."""
        longest = LONGEST_PART // size + 1  # the last token of a prompt is not read with the others
        return [prompt[-longest:] for prompt in islice(cycle(self.prompts), number * size, (number + 1) * size)]

    def _run(self, name: str, size: int, prompts: Sequence[Sequence[int]]) -> BatchRun:
        if (name, size) not in self._warm:
            short = [prompt[-WARM_UP_TOKENS:] for prompt in self._next_prompts(0, size)]
            self.ways[name](size, short, **{**self.options, "max_new_tokens": WARM_UP_TOKENS})
            self._warm.add((name, size))
        return self.ways[name](size, prompts, **self.options)

    @cached_property
    def _warm(self) -> set[tuple[str, int]]:
        """The ways that have been warmed up, at which size."""
        return set()


def find_differences(
    decoder: Decoder, turns: Mapping[int, Sequence[BatchTurn]], *, seed: int = 0, **options: Any
) -> Iterator[TextDifference]:
    """The texts that are not plain decoding's of the same turn.

    Args:
        decoder: the decoder whose target judges how close the choice was.
        turns: the turns, by size.
        seed: the seed of the first prompt's draws in every turn, as for `EngineWay.run`.
        **options: the options the texts were written with.
    """
    for size, own in turns.items():
        for turn in own:
            for way, run in turn.runs.items():
                for place, text in enumerate(run.texts):
                    wanted, given = turn.runs[PLAIN].texts[place], {**options, "seed": seed + place}
                    if found := find_difference(decoder, turn.prompts[place], wanted, text, **given):
                        tie = found.explained or found.gap <= TIE
                        yield TextDifference(size, turn.number, way, place, found.position, found.gap, tie)
