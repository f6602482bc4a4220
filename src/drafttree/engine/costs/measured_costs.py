"""The cost curve of a target and a drafter: measured when it is needed, and mended when rounds show it to be wrong."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from drafttree.core.cost_curve import CostCurve
from drafttree.drafters.base import Drafter
from drafttree.engine.costs.cost_file import CostFile
from drafttree.engine.costs.cost_measurement import WRONG_BY, Rounds, is_current, measure_costs
from drafttree.engine.costs.round_costs import RoundCosts, RoundTimes
from drafttree.engine.metrics import Round
from drafttree.models import Model

WATCHED = 64
"""Rounds after which the costs are compared with those that were spent."""
logger = logging.getLogger("drafttree")


class MeasuredCosts:
    """The costs of greedy rounds, or of sampled ones.

    Args:
        target: as for `measure_costs`, which runs where no costs are kept on disk that still hold.
        drafter: as for `measure_costs`.
        rounds: as for `measure_costs`.
        greedy: whether the rounds are; costs of the others are kept apart.

    Attributes:
        curve: the curve as measured, or mended since.
    """

    def __init__(self, target: Model, drafter: Drafter, rounds: Rounds, *, greedy: bool) -> None:
        self._file = CostFile(target, drafter, greedy=greedy)
        kept = self._file.read()
        if kept is None or not is_current(kept, target):
            kept = self._file.write(measure_costs(target, drafter, rounds))
        self._kept = kept
        self._watched: list[Round] = []

    @property
    def curve(self) -> CostCurve:
        return self._kept.costs

    def watch(self, rounds: Sequence[Round]) -> None:
        """Compare the costs with those of a text's rounds, and mend them where enough rounds show them to be wrong."""
        self._watched += rounds[1:]  # the first one also reads what the prompt has left
        if len(self._watched) < WATCHED:
            return
        if found := mended(self.curve, self._watched):
            logger.info("the measured costs were wrong by more than %.0f %%; they are mended", 100 * WRONG_BY)
            self._kept = self._file.write(replace(self._kept, costs=found))
        self._watched = []


def mended(curve: CostCurve, rounds: Sequence[Round]) -> CostCurve | None:
    """The curve that rounds of lone texts show, None where this one gives their costs well enough.

    A machine that has become slower or faster as a whole makes no curve wrong: only ratios of costs decide.
    """
    costs = RoundCosts(curve)
    for each in rounds:
        growth = each.growth_seconds if each.widths else 0.0
        drafted = [(each.source, each.widths)] if each.widths else []
        other = each.outside_seconds - growth
        costs.observe(RoundTimes(1, each.nodes, each.target_seconds, each.drafting_seconds, other, drafted))
    found = costs.curve()
    for nodes, widths, source in {(each.nodes, each.widths, each.source) for each in rounds}:
        before = curve.round(nodes, widths, source) / curve.plain_round
        if abs(found.round(nodes, widths, source) / found.plain_round / before - 1) > WRONG_BY:
            return found
    return None
