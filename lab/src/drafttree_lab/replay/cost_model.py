"""The cost ratios at which R is told beside what was timed: the paper's, ours, or any other."""

import re
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from drafttree.core.errors import ConfigError

if TYPE_CHECKING:
    from drafttree_lab.replay.experiment import Block
    from drafttree_lab.replay.measured import Measured

PUBLISHED, MEASURED = "published", "measured"
GIVEN = re.compile(r"c=(?P<c>\d*\.?\d+),v=(?P<v>\d*\.?\d+)")
FREE_TREES = 1.0
"""v in the papers' law: a pass over a tree costs what one over a token does."""


@dataclass(frozen=True)
class CostModel:
    """Where c and v come from.

    Attributes:
        source: "published", "measured", or "given".
        c: the cost of a draft pass in target passes, where it is given.
        v: the cost of a target pass over a tree in plain passes, where it is given.
    """

    source: str
    c: float = 0.0
    v: float = FREE_TREES

    @classmethod
    def parse(cls, text: str) -> "CostModel":
        """A cost model from "published", "measured" or "c=0.08,v=1.2".

        Raises:
            ConfigError: it is none of these.
        """
        if text in (PUBLISHED, MEASURED):
            return cls(text)
        if found := GIVEN.fullmatch(text.replace(" ", "")):
            return cls("given", float(found["c"]), float(found["v"]))
        raise ConfigError(f'--cost is {text!r}; give "published", "measured" or such as "c=0.08,v=1.2"')

    def terms(self, measured: "Measured", block: "Block", name: str) -> tuple[float, float] | None:
        """c and v of a method in a block; None where they are not known."""
        if self.source == MEASURED:
            return _measured(measured, block, name)
        if self.source == PUBLISHED:
            cost = measured.experiment.costs.get(name.partition("@")[0])
            return None if cost is None else (cost, FREE_TREES)
        return self.c, self.v


def _measured(measured: "Measured", block: "Block", name: str) -> tuple[float, float] | None:
    """c and v as they were timed here, over all prompts."""
    pairs = [pair for number in measured.numbers(block, "speedup") for pair in measured.times(block, name, number)]
    if not pairs:
        return None
    unit = fmean(plain.target_pass for _, plain in pairs)
    return fmean(own.draft_pass for own, _ in pairs) / unit, fmean(own.target_pass for own, _ in pairs) / unit
