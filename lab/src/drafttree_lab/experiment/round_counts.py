"""Decoding counted instead of timed: the shapes of the rounds, which any machine's cost curve turns into a speed-up."""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace

from drafttree.core.cost_curve import CostCurve
from drafttree.engine.metrics import Round
from drafttree.measure.law import SpeedupLaw


@dataclass(frozen=True)
class RoundTerms:
    """A mean round by the speed-up law, its costs in rounds of plain decoding.

    Attributes:
        acceptance: tau, tokens committed.
        verification: the target pass.
        drafting: all draft passes.
        overhead: the rest.
    """

    acceptance: float
    verification: float
    drafting: float
    overhead: float

    @classmethod
    def of(cls, law: SpeedupLaw) -> "RoundTerms":
        """The terms of a measured law."""
        plain = 1 + law.h0
        return cls(law.tau, law.v / plain, law.c * law.delta / plain, law.h / plain)

    @property
    def speedup(self) -> float:
        """R: tokens per time, in those of plain decoding."""
        return self.acceptance / (self.verification + self.drafting + self.overhead)

    def shortfall(self, better: "RoundTerms") -> str:
        """The term that explains most of why other rounds are faster: with theirs instead, R would rise most."""
        gains = {term.name: replace(self, **{term.name: getattr(better, term.name)}).speedup for term in fields(self)}
        return max(gains, key=gains.__getitem__)


@dataclass(frozen=True)
class RoundShape:
    """Rounds of one shape; the attributes from `nodes` on are those of `Round`.

    Attributes:
        rounds: how many there were.
        committed: tokens they committed.
    """

    rounds: int
    committed: int
    nodes: int
    levels: int
    draft_passes: int
    widths: tuple[int, ...]
    source: int


@dataclass(frozen=True)
class RoundCounts:
    """All rounds of some texts."""

    shapes: list[RoundShape]

    @classmethod
    def of(cls, rounds: Iterable[Round]) -> "RoundCounts":
        """Sort rounds by their shapes."""
        committed = defaultdict[tuple, list[int]](list)
        for turn in rounds:
            committed[turn.nodes, turn.levels, turn.draft_passes, turn.widths, turn.source].append(turn.committed)
        return cls([RoundShape(len(tokens), sum(tokens), *shape) for shape, tokens in committed.items()])

    @property
    def rounds(self) -> int:
        """How many there were."""
        return sum(shape.rounds for shape in self.shapes)

    @property
    def tau(self) -> float:
        """Tokens committed per round."""
        return sum(shape.committed for shape in self.shapes) / self.rounds

    @property
    def delta(self) -> float:
        """Draft passes per round."""
        return self._mean("draft_passes")

    @property
    def nodes(self) -> float:
        """Nodes scored per round, the root included."""
        return self._mean("nodes")

    @property
    def levels(self) -> float:
        """Levels drafted per round."""
        return self._mean("levels")

    def terms(self, costs: CostCurve) -> RoundTerms:
        """The mean round by the costs of a machine."""
        whole, passes, overhead = 0.0, 0.0, 0.0
        for shape in self.shapes:
            whole += shape.rounds * costs.round(shape.nodes, shape.widths, shape.source)
            passes += shape.rounds * costs.target.at(shape.nodes)
            overhead += shape.rounds * (costs.overhead if shape.widths else costs.plain_overhead)
        unit = costs.plain_round * self.rounds
        return RoundTerms(self.tau, passes / unit, (whole - passes - overhead) / unit, overhead / unit)

    def _mean(self, name: str) -> float:
        return sum(shape.rounds * getattr(shape, name) for shape in self.shapes) / self.rounds
