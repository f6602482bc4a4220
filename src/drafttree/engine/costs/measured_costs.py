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

FEWEST = 16
"""Rounds that have to be seen before they change anything."""
logger = logging.getLogger("drafttree")


class MeasuredCosts:
    """The costs of greedy rounds, or of sampled ones.

    Args:
        target: as for `measure_costs`, which runs where no costs are kept on disk that still hold.
        drafter: as for `measure_costs`.
        rounds: as for `measure_costs`.
        greedy: whether the rounds are; costs of the others are kept apart.

    Attributes:
        curve: the curve as measured, and as the rounds of texts have mended it since.
    """

    def __init__(self, target: Model, drafter: Drafter, rounds: Rounds, *, greedy: bool) -> None:
        self._file = CostFile(target, drafter, greedy=greedy)
        kept = self._file.read()
        if kept is None or not is_current(kept, target):
            kept = self._file.write(measure_costs(target, drafter, rounds))
        self._kept, self.curve = kept, kept.costs
        self._rounds, self._seen = RoundCosts(kept.costs), 0

    def watch(self, rounds: Sequence[Round]) -> None:
        """Mend the curve by the rounds of a text that has ended; the file, where they show it to be quite wrong."""
        watched = rounds[1:]  # the first one also reads what the prompt has left
        for each in watched:
            self._rounds.observe(_times(each))
        self._seen += len(watched)
        if self._seen < FEWEST:
            return
        self.curve = self._rounds.curve()
        if _differ(self._kept.costs, self.curve, watched):
            logger.info("the measured costs were wrong by more than %.0f %%; they are corrected", 100 * WRONG_BY)
            self._kept = self._file.write(replace(self._kept, costs=self.curve))


def _times(each: Round) -> RoundTimes:
    growth = each.growth_seconds if each.widths else 0.0
    drafted = [(each.source, each.widths)] if each.widths else []
    other = each.outside_seconds - growth
    return RoundTimes(1, each.nodes, each.target_seconds, each.drafting_seconds, other, drafted)


def _differ(curve: CostCurve, found: CostCurve, rounds: Sequence[Round]) -> bool:
    """Whether two curves compare any of these rounds with plain decoding by numbers that are quite different.

    A machine that has become slower or faster as a whole makes no curve wrong: only ratios of costs decide.
    """
    return any(
        abs(found.round(*shape) / found.plain_round / (curve.round(*shape) / curve.plain_round) - 1) > WRONG_BY
        for shape in {(each.nodes, each.widths, each.source) for each in rounds}
    )
