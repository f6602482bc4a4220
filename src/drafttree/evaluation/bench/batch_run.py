"""Many requests through one engine: their texts, and what the rounds of the steady state amount to."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any

from drafttree.engine.batching import Engine, EngineRound
from drafttree.engine.decoder import Decoder


@dataclass(frozen=True)
class SteadyRounds:
    """Rounds in the steady state, added up: the batch is full, and no prompt is being read.

    Attributes:
        requests: of all rounds: the batch, as often as there was a round.
        rounds: how many there were.
        committed: tokens of all requests.
        expected: tokens that the engine expected them to be.
        seconds: wall time.
        drafted: nodes of all requests, their roots left out.
        drafting: rounds in which anything was drafted.
        draft_passes: of the drafter, each for all requests.
        draft_seconds: in them.
        target_seconds: in the target passes.
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

    @classmethod
    def of(cls, rounds: Iterable[EngineRound], batch: int) -> "SteadyRounds":
        """Add up the rounds of the steady state among all rounds of an engine."""
        steady = [each for each in rounds if each.batch == batch and not each.prefill_rows]
        return cls(
            requests=batch * len(steady),
            rounds=len(steady),
            committed=sum(each.committed for each in steady),
            expected=sum(each.batch if each.expected is None else each.expected for each in steady),
            seconds=sum(each.seconds for each in steady),
            drafted=sum(each.drafted for each in steady),
            drafting=sum(each.drafted > 0 for each in steady),
            draft_passes=sum(each.draft_passes for each in steady),
            draft_seconds=sum(each.draft_seconds for each in steady),
            target_seconds=sum(each.target_seconds for each in steady),
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


@dataclass(frozen=True)
class BatchRun:
    """What one way of decoding has made of the prompts of one turn.

    Attributes:
        texts: token ids, without the prompts.
        seconds: from the first prompt that was given to the last token, prompts included.
        steady: its rounds in the steady state.
        predicted_gain: of drafting over plain rounds, as the engine predicted it when the first prompt's text was
            finished; None where it drafts nothing.
    """

    texts: list[list[int]]
    seconds: float
    steady: SteadyRounds
    predicted_gain: float | None = None

    @property
    def tokens_per_second(self) -> float:
        """End to end, prompts included."""
        return sum(map(len, self.texts)) / self.seconds


def run_engine(
    decoder: Decoder,
    batch: int,
    prompts: Sequence[Sequence[int]],
    *,
    budget: int | None = None,
    seed: int = 0,
    **options: Any,
) -> BatchRun:
    """Give an engine all prompts at once, and wait for their texts.

    Args:
        decoder: the engine's.
        batch: requests that it serves at a time.
        prompts: token ids.
        budget: drafted nodes per request and round; None lets the engine choose by costs.
        seed: of the first prompt's draws; each prompt has a seed of its own.
        **options: as for `Decoder.generate`.
    """
    with Engine(decoder, max_batch=batch, budget=budget) as engine:
        started = time.perf_counter()
        handles = [engine.submit(list(ids), seed=seed + place, **options) for place, ids in enumerate(prompts)]
        first = handles[0].result().tokens
        predicted = engine.metrics.predicted_gain
        texts = [first, *(handle.result().tokens for handle in handles[1:])]
        seconds = time.perf_counter() - started
        return BatchRun(texts, seconds, SteadyRounds.of(engine.metrics.rounds, batch), predicted)
