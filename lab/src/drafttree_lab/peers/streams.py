"""Many texts at once: all are asked for together, and a program reads and writes as many as there are streams."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice

from drafttree.core.counts import MAX_TOKEN_GAP
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Chunk, Ended, Reader
from drafttree.measure.by_turns import by_turns
from drafttree.measure.run_store import RunStore
from drafttree_lab.load.http_load import LoadRun, ServedText
from drafttree_lab.load.serve import ServedWay

Streams = Callable[[Sequence[Sequence[int]], int], LoadRun]
"""Writes a text of so many tokens behind every prompt, all at once."""


@dataclass(frozen=True)
class StreamRow:
    """One program under so many streams.

    Attributes:
        name: dtype and program or method.
        streams: texts at once.
        served: speed of all together, and the waits for first and later tokens.
    """

    name: str
    streams: int
    served: ServedWay


def time_streams(
    programs: Mapping[str, Streams],
    prompts: Sequence[Sequence[int]],
    sizes: Sequence[int],
    *,
    max_new_tokens: int,
    repeats: int,
    progress: Callable[[str], None],
    store: RunStore,
) -> list[StreamRow]:
    """Every program with every number of streams, by turns; every turn takes the next prompts.

    Args:
        programs: by name.
        prompts: token ids, which begin anew where they end.
        sizes: texts at once.
        max_new_tokens: tokens of every text; none ends before.
        repeats: turns, after one that is not counted.
        progress: called after every run with its name.
        store: keeps finished runs.
    """
    rows: list[StreamRow] = []
    source = cycle(prompts)
    with store.interruptible():
        for size in () if store.interrupted else sizes:
            turns = [[*islice(source, size)] for _ in range(1 + repeats)]
            runs: dict[str, list[LoadRun]] = {name: [] for name in programs}
            for turn, name in by_turns([*programs], len(turns)):
                work = partial(programs[name], turns[turn], max_new_tokens)
                runs[name].append(store.run(("streams", size, turn, name), LoadRun, work))
                progress(f"{name}, {size} streams")
            rows += [StreamRow(name, size, ServedWay.of(own[1:])) for name, own in runs.items()]
    return rows


def own_streams(decoder: Decoder) -> Streams:
    """The streams of an engine's loop, driven without its thread, so that all texts are there before it begins."""

    def run(prompts: Sequence[Sequence[int]], max_new_tokens: int) -> LoadRun:
        loop = decoder.batch_loop(len(prompts), max_token_gap=MAX_TOKEN_GAP)
        begun = time.perf_counter()
        readers = [_Stamps(begun) for _ in prompts]
        for place, (prompt, reader) in enumerate(zip(prompts, readers, strict=True)):
            request = decoder.prepare(list(prompt), max_new_tokens=max_new_tokens, temperature=0.0, ignore_eos=True)
            request.reader, request.order = reader, place
            loop.add(request)
        while loop.busy:
            loop.step()
        return LoadRun([reader.text for reader in readers], time.perf_counter() - begun)

    return run


class _Stamps(Reader):
    """Notes when the tokens of a text come."""

    def __init__(self, begun: float) -> None:
        self._text, self._last, self._ended = ServedText(), begun, None

    def chunk(self, chunk: Chunk) -> None:
        if chunk.tokens:
            now = time.perf_counter()
            self._text.add("", self._text.tokens + len(chunk.tokens), now - self._last)
            self._last = now

    def end(self, ended: Ended) -> None:
        self._ended = ended

    @property
    def text(self) -> ServedText:
        """What was noted of the finished text.

        Raises:
            Exception: what the text failed with.
        """
        if isinstance(self._ended, Exception):
            raise self._ended
        return self._text
