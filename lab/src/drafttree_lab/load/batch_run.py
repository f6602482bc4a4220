"""Many requests through one engine: their texts, and what the rounds of the steady state amount to."""

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from drafttree.engine.batching.loop import BatchLoop
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation import Ended, Reader
from drafttree.engine.metrics import Round


@dataclass(frozen=True)
class SteadyRounds:
    """Rounds in the steady state, added up: the batch is full, and no prompt is being read.

    Attributes:
        requests: requests of all rounds: the batch, as often as there was a round.
        rounds: how many there were.
        committed: tokens of all requests.
        expected: tokens that the engine expected them to be.
        seconds: wall time.
        drafted: nodes of all requests, their roots left out.
        drafting: rounds in which anything was drafted.
        draft_passes: draft passes of the drafter, each for all requests.
        draft_seconds: seconds in the draft passes.
        target_seconds: seconds in the target passes.
        predictions: rounds with drafts in which the engine predicted the gain of drafting over plain rounds.
        predicted_gains: the sum of what it predicted.
    """

    requests: int = 0
    rounds: int = 0
    committed: int = 0
    expected: float = 0.0
    seconds: float = 0.0
    drafted: int = 0
    drafting: int = 0
    draft_passes: int = 0
    draft_seconds: float = 0.0
    target_seconds: float = 0.0
    predictions: int = 0
    predicted_gains: float = 0.0

    @classmethod
    def of(cls, rounds: Iterable["TimedRound"], batch: int) -> "SteadyRounds":
        """Add up the rounds of the steady state among all rounds of an engine."""
        timed = [each for each in rounds if each.turn.batch == batch and not each.turn.prefill_rows]
        gains = [each.predicted_gain for each in timed if each.turn.drafted and each.predicted_gain is not None]
        steady = [each.turn for each in timed]
        return cls(
            requests=batch * len(steady),
            rounds=len(steady),
            committed=sum(each.committed for each in steady),
            expected=sum(each.batch if each.expected is None else each.expected for each in steady),
            seconds=sum(each.seconds for each in timed),
            drafted=sum(each.drafted for each in steady),
            drafting=sum(each.drafted > 0 for each in steady),
            draft_passes=sum(each.draft_passes for each in steady),
            draft_seconds=sum(each.draft_seconds for each in steady),
            target_seconds=sum(each.target_seconds for each in steady),
            predictions=len(gains),
            predicted_gains=sum(gains),
        )

    @classmethod
    def total(cls, parts: Iterable["SteadyRounds"]) -> "SteadyRounds":
        """The rounds of several runs."""
        found = list(parts)
        return cls(**{each.name: sum(getattr(part, each.name) for part in found) for each in fields(cls)})

    @property
    def tokens_per_second(self) -> float:
        """Of all requests together; 0 where there was no such round."""
        return self.committed / self.seconds if self.seconds else 0.0

    @property
    def predicted_gain(self) -> float | None:
        """The mean of what was predicted, None where nothing was."""
        return self.predicted_gains / self.predictions if self.predictions else None


@dataclass(frozen=True)
class BatchRun:
    """What one way of decoding has made of the prompts of one turn.

    Attributes:
        texts: token ids, without the prompts.
        seconds: seconds from the first prompt that was given to the last token, prompts included.
        steady: its rounds in the steady state.
        drafter_failures: rounds that went on without drafts, since the drafter raised an error.
    """

    texts: list[list[int]]
    seconds: float
    steady: SteadyRounds
    drafter_failures: int = 0

    @property
    def tokens_per_second(self) -> float:
        """End to end, prompts included."""
        return sum(map(len, self.texts)) / self.seconds


class EngineWay:
    """Decoding by the loop of an engine, driven without its thread, so that all prompts are there before it begins.

    There is one for every batch size, and what it learns of costs and acceptance it knows in later turns, as a server
    does.

    Args:
        decoder: the decoder whose target, drafter and policy decode.
        budget: drafted nodes per request and round; None lets the engine choose by costs.
    """

    def __init__(self, decoder: Decoder, budget: int | None = None) -> None:
        self._decoder, self._budget = decoder, budget
        self._loops: dict[int, BatchLoop] = {}

    def run(self, batch: int, prompts: Sequence[Sequence[int]], *, seed: int = 0, **options: Any) -> BatchRun:
        """Decode prompts.

        Args:
            batch: requests that run at a time.
            prompts: token ids.
            seed: the seed of the first prompt's draws; each prompt has a seed of its own.
            **options: as for `Decoder.generate`.
        """
        if batch not in self._loops:
            self._loops[batch] = self._decoder.batch_loop(batch, budget=self._budget)
        loop, texts = self._loops[batch], [_Text() for _ in prompts]
        begun, failures = time.perf_counter(), loop.metrics.drafter_failures
        for place, (prompt, text) in enumerate(zip(prompts, texts, strict=True)):
            request = self._decoder.prepare(list(prompt), seed=seed + place, **options)
            request.reader, request.order = text, place
            loop.add(request)
        steady = SteadyRounds.of(_rounds(loop), batch)
        found, seconds = [text.tokens for text in texts], time.perf_counter() - begun
        return BatchRun(found, seconds, steady, loop.metrics.drafter_failures - failures)


@dataclass(frozen=True)
class TimedRound:
    """A round as the loop that runs it sees it.

    Attributes:
        turn: what it did.
        seconds: wall time until the next one begins.
        predicted_gain: the speed of drafting over plain rounds, as the engine predicts it by then; None before any
            drafts.
    """

    turn: Round
    seconds: float
    predicted_gain: float | None = None


def _rounds(loop: BatchLoop) -> Iterator[TimedRound]:
    """All rounds until every request is done."""
    while loop.busy:
        begun = time.perf_counter()
        loop.step()
        metrics = loop.metrics
        if metrics.latest:
            yield TimedRound(metrics.latest, time.perf_counter() - begun, metrics.predicted_gain)


class _Text(Reader):
    """Keeps the text of a request."""

    def end(self, ended: Ended) -> None:
        self._ended = ended

    @property
    def tokens(self) -> list[int]:
        """The finished text.

        Raises:
            Exception: what the request failed with.
        """
        if isinstance(self._ended, Exception):
            raise self._ended
        return self._ended.tokens
