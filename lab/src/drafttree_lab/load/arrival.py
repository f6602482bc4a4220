"""A long prompt that arrives beside texts that are being written: what reading it does to their time per token."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch

from drafttree.core.errors import ContextError
from drafttree.engine.batching.engine_metrics import EngineRound
from drafttree.engine.batching.served_request import ServedRequest
from drafttree.engine.decoder import Decoder
from drafttree.evaluation.estimate import RatioEstimate
from drafttree.evaluation.run_store import RunStore
from drafttree_lab.experiment.cells import Key, check_given, run_cells

PROMPT_TOKENS, RUNNING = 1500, 4
WARM_UP, BEFORE = 12, 24
"""Rounds before those that are timed, and those that are timed before the prompt arrives."""
MOST = 2.0
"""Times as long per token as without it, which reading a prompt is meant to stretch the others to at most."""


@dataclass(frozen=True)
class Arrival:
    """One prompt that arrived.

    Attributes:
        before: seconds per token of one of the running texts, before it came.
        beside: the same while it was read.
        rounds: rounds in which it was read.
        longest: seconds of the longest of them: the longest wait of the others.
        reading: seconds until it was read.
    """

    before: float
    beside: float
    rounds: int
    longest: float
    reading: float


@dataclass(frozen=True)
class ArrivalBench:
    """The measurements of one target and drafter.

    Attributes:
        arrivals: one after the other.
        prompt_tokens: tokens of the prompt that arrives.
        running: texts beside it.
        target: what ran.
        drafter: the drafter of it, None for plain decoding.
        threads: threads of the CPU.
    """

    arrivals: list[Arrival]
    prompt_tokens: int
    running: int
    target: str
    drafter: str | None
    threads: int

    @property
    def stretch(self) -> RatioEstimate:
        """Time per token beside the prompt over that before it."""
        return RatioEstimate.of([each.beside for each in self.arrivals], [each.before for each in self.arrivals])

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "stretch": asdict(self.stretch)}


def bench_arrival(
    decoder: Decoder,
    prompts: Sequence[Sequence[int]],
    *,
    prompt_tokens: int = PROMPT_TOKENS,
    running: int = RUNNING,
    repeats: int = 3,
    progress: Callable[[str], None] = lambda _: None,
    store: RunStore | None = None,
    **options: Any,
) -> ArrivalBench:
    """Measure arrivals, each beside other texts.

    Args:
        decoder: the decoder with a drafter, or without one.
        prompts: token ids, of the texts that are written; the one that arrives is made of them.
        prompt_tokens: prompt tokens of that one.
        running: texts beside it.
        repeats: arrivals.
        progress: called after every one.
        store: keeps finished ones; by default none.
        **options: the options of all texts, as for `Decoder.generate`.

    Raises:
        ConfigError: there is no prompt.
        ContextError: the prompt does not fit into the model's context.
        NothingFinished: there was no time for one.
    """
    check_given(prompt=prompts)
    context = decoder.target.context
    if context is not None and prompt_tokens >= context:
        raise ContextError(f"a prompt of {prompt_tokens} tokens does not fit into the model's context of {context}")
    stage = _Stage(decoder, prompts, prompt_tokens, running, options)
    cells: dict[Key, Callable[[], Arrival]] = {(number,): partial(stage.run, number) for number in range(repeats)}
    found = run_cells(cells, Arrival, progress=progress, store=store)
    who = repr(decoder.target), repr(decoder.drafter) if decoder.drafter else None
    return ArrivalBench([*found.values()], prompt_tokens, running, *who, torch.get_num_threads())


class _Stage:
    """Runs arrivals on one engine's loop, which goes on learning what passes cost, as in a server."""

    def __init__(
        self,
        decoder: Decoder,
        prompts: Sequence[Sequence[int]],
        prompt_tokens: int,
        running: int,
        options: dict[str, Any],
    ) -> None:
        self._decoder, self._prompts, self._running = decoder, prompts, running
        self._options = {"seed": 0, "ignore_eos": True} | options
        joined = [token for prompt in prompts for token in prompt]
        self._long = (joined * -(-prompt_tokens // len(joined)))[:prompt_tokens]
        self._loop = decoder.batch_loop(running + 1)

    def run(self, number: int) -> Arrival:
        """Let the prompt arrive beside the next texts."""
        for place in range(number * self._running, (number + 1) * self._running):
            prompt = list(self._prompts[place % len(self._prompts)])
            self._add(prompt, self._room(len(prompt)))
        while self._step().prefill_rows:
            pass
        for _ in range(WARM_UP):
            self._step()
        before = [self._step() for _ in range(BEFORE)]
        self._add(self._long, 1)
        begun = time.perf_counter()
        beside = [*self._reading()]
        reading = time.perf_counter() - begun
        self._loop.stop("cancelled")
        return Arrival(
            before=_seconds_per_token(before),
            beside=_seconds_per_token(beside),
            rounds=len(beside),
            longest=max(each.seconds for each in beside),
            reading=reading,
        )

    def _add(self, prompt: list[int], length: int) -> None:
        options: dict[str, Any] = {**self._options, "max_new_tokens": length}
        request = self._decoder.prepare(prompt, **options)
        self._loop.add(ServedRequest(request))

    def _room(self, prompt: int) -> int:
        """Tokens of a text that is not to end before it is stopped."""
        context = self._decoder.target.context
        return 4 * PROMPT_TOKENS if context is None else context - prompt

    def _step(self) -> EngineRound:
        self._loop.step()
        latest = self._loop.metrics.latest
        assert latest is not None
        return latest

    def _reading(self) -> Iterator[EngineRound]:
        """The rounds in which the prompt is read."""
        while (turn := self._step()).prefill_rows:
            yield turn


def _seconds_per_token(rounds: Sequence[EngineRound]) -> float:
    """Of each of the texts that were written in some rounds."""
    return sum(each.seconds * each.batch for each in rounds) / max(sum(each.committed for each in rounds), 1)
