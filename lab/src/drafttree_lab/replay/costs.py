"""What passes cost, in passes of the target over one token: by the paper, as timed here, or any other."""

import re
from dataclasses import dataclass

from drafttree.core.cost_curve import Costs
from drafttree.core.errors import ConfigError
from drafttree_lab.replay.intervals import Fraction
from drafttree_lab.replay.paper import Metric
from drafttree_lab.replay.text_cell import TextCounts

PUBLISHED, MEASURED = "published", "measured"
GIVEN = re.compile(r"c=(?P<c>\d*\.?\d+),v=(?P<v>\d*\.?\d+)")
COUNTED: frozenset[Metric] = frozenset({"tokens_per_second", "tpot"})
"""Timed metrics that follow from counts where the costs of passes are known."""


@dataclass(frozen=True)
class PassCosts:
    """What the passes of a method cost, in passes of the target over one token.

    Attributes:
        draft: c, the cost of a draft pass.
        target: v(n), the cost of a target pass by its nodes.
        round: h, the cost of a round beside its passes.
    """

    draft: float
    target: Costs
    round: float = 0.0

    def total(self, counts: TextCounts) -> float:
        """The cost of a text: the denominator of R = tau / (v + c delta + h), times its rounds."""
        rounds = self.round * len(counts.nodes)
        return sum(map(self.target.at, counts.nodes)) + self.draft * sum(counts.passes) + rounds

    def fraction(self, metric: Metric, counts: TextCounts) -> Fraction:
        """Numerator and denominator of a metric of `COUNTED`, in passes instead of seconds."""
        tokens, cost = sum(counts.committed), self.total(counts)
        return (tokens, cost) if metric == "tokens_per_second" else (cost, tokens)


@dataclass(frozen=True)
class CostSource:
    """Where the costs come from by which counts are judged.

    Attributes:
        name: as the option has it.
        given: costs that hold for all methods that draft, where they are given.
    """

    name: str
    given: PassCosts | None = None

    @classmethod
    def parse(cls, text: str) -> "CostSource":
        """From "published", "measured" or "c=0.08,v=1.2".

        Raises:
            ConfigError: it is none of these.
        """
        if text in (PUBLISHED, MEASURED):
            return cls(text)
        if found := GIVEN.fullmatch(text.replace(" ", "")):
            return cls(text, PassCosts(float(found["c"]), Costs((1,), (float(found["v"]),))))
        raise ConfigError(f'--cost is {text!r}; give "published", "measured" or such as "c=0.08,v=1.2"')


BY_PAPER = CostSource(PUBLISHED)
