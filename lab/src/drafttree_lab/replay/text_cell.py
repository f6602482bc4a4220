"""Stored measurements of one text: counts, which weights, prompt and seed determine, and times."""

from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Any

from drafttree.engine.metrics import Metrics
from drafttree.measure.record import loops
from drafttree_lab.replay.intervals import Fraction
from drafttree_lab.replay.paper import Metric

if TYPE_CHECKING:
    from drafttree.engine.generation import Generation
    from drafttree_lab.replay.assisted import AssistedText

LIKELIEST = 2
"""The highest rank among siblings that the metrics of first ranks count."""


@dataclass(frozen=True)
class TextCounts:
    """The counts of one text; every list but `tokens` has an element per round.

    Attributes:
        committed: tokens committed.
        accepted: drafted tokens accepted.
        nodes: nodes that the target scored, the root included.
        levels: levels drafted.
        passes: passes of the drafter.
        ranks: rank of every accepted node among its siblings; the drafter's likeliest token has rank 1.
        looping: whether the text ends in a loop.
    """

    tokens: list[int]
    committed: list[int]
    accepted: list[int]
    nodes: list[int]
    levels: list[int]
    passes: list[int]
    ranks: list[list[int]]
    looping: bool

    @classmethod
    def of(cls, generation: "Generation | AssistedText") -> "TextCounts":
        """The counts of a text."""

        def column(name: str) -> list[Any]:
            return list(map(attrgetter(name), generation.metrics.rounds))

        return cls(
            tokens=list(generation.tokens),
            committed=column("committed"),
            accepted=column("accepted"),
            nodes=column("nodes"),
            levels=column("levels"),
            passes=column("draft_passes"),
            ranks=list(map(list, column("ranks"))),
            looping=loops(generation.tokens),
        )

    def fraction(self, metric: Metric) -> Fraction:
        """Numerator and denominator of a metric that needs no clock."""
        rounds = len(self.committed)
        match metric:
            case "tau":
                return sum(self.committed), rounds
            case "delta":
                return sum(self.passes), rounds
            case "path":
                return sum(self.accepted), rounds
            case "accept":
                return sum(self.accepted), sum(self.levels)
            case "drafted_share":
                return sum(self.accepted), sum(self.committed)
            case "oracle_gap":
                return sum(map(abs, map(int.__sub__, self.committed, self.passes))), rounds
            case "first_ranks_at_level_1":
                return _first(ranks[0] for ranks in self.ranks if ranks)
            case "first_ranks_below":
                return _first(rank for ranks in self.ranks for rank in ranks[1:])
            case "node_acceptance":
                return sum(self.accepted), sum(self.nodes) - rounds
            case _:  # "rounds"
                return rounds, 1


def _first(ranks: Iterable[int]) -> Fraction:
    """The number of ranks up to `LIKELIEST`, and the number of all ranks."""
    accepted_ranks = list(ranks)
    return sum(rank <= LIKELIEST for rank in accepted_ranks), len(accepted_ranks)


@dataclass(frozen=True)
class TextTimes:
    """The seconds of one text, with its tokens and rounds.

    Attributes:
        seconds: seconds of the whole text, the prompt included.
        prefill: seconds of reading the prompt.
        first: seconds to the first token.
        target_pass: mean seconds of a target pass.
        draft_pass: mean seconds of a draft pass.
        overhead: mean seconds of a round outside the passes.
    """

    tokens: int
    rounds: int
    seconds: float
    prefill: float
    first: float
    target_pass: float
    draft_pass: float
    overhead: float

    @classmethod
    def of(cls, metrics: Metrics) -> "TextTimes":
        """The times of a text."""
        return cls(
            tokens=metrics.tokens,
            rounds=len(metrics.rounds),
            seconds=metrics.seconds,
            prefill=metrics.prefill_seconds,
            first=metrics.time_to_first_token,
            target_pass=metrics.target_pass,
            draft_pass=metrics.draft_pass,
            overhead=metrics.overhead,
        )

    @property
    def decoding(self) -> float:
        """Seconds of decoding, the prompt left out."""
        return self.seconds - self.prefill

    def fraction(self, metric: Metric) -> Fraction:
        """Numerator and denominator of a metric of `TIMED`."""
        match metric:
            case "tokens_per_second":
                return self.tokens, self.decoding
            case "rounds_per_second":
                return self.rounds, self.decoding
            case "overhead_share":
                return self.overhead * self.rounds, self.decoding
            case "ttft":
                return 1e3 * self.first, 1
            case _:  # "tpot"
                return 1e3 * (self.seconds - self.first), max(self.tokens - 1, 1)


WayTimes = dict[str, TextTimes]
"""By way, its times on one prompt."""
Fractions = dict[str, Fraction]
"""By way, its figure on one prompt as a fraction, in a result that is not about decoding."""
