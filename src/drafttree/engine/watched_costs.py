"""The cost curve of a target and a drafter: measured when it is needed, and mended when rounds show it to be wrong."""

import logging
from collections.abc import Sequence
from dataclasses import replace

from drafttree.core.cost_curve import CostCurve
from drafttree.drafters.base import Drafter
from drafttree.engine.cost_correction import corrected
from drafttree.engine.cost_file import CostFile
from drafttree.engine.cost_measurement import WRONG_BY, Rounds, is_current, measure_costs
from drafttree.engine.metrics import Round
from drafttree.models import Model

WATCHED = 64
"""Rounds after which the costs are compared with those that were spent."""
logger = logging.getLogger("drafttree")


class WatchedCosts:
    """The costs of greedy rounds, or of sampled ones.

    Args:
        target: as for `measure_costs`, which runs where no costs are kept on disk that still hold.
        drafter: as for `measure_costs`.
        rounds: as for `measure_costs`.
        greedy: whether the rounds are; costs of the others are kept apart.

    Attributes:
        curve: as measured, or mended since.
    """

    def __init__(self, target: Model, drafter: Drafter, rounds: Rounds, *, greedy: bool) -> None:
        self._file = CostFile(target, drafter, greedy=greedy)
        kept = self._file.read()
        if kept is None or not is_current(kept, target):
            kept = self._file.write(measure_costs(target, drafter, rounds))
        self._kept = kept
        self._rounds: list[Round] = []

    @property
    def curve(self) -> CostCurve:
        return self._kept.costs

    def watch(self, rounds: Sequence[Round]) -> None:
        """Compare the costs with those of a text's rounds, and mend them where enough rounds show them to be wrong."""
        self._rounds += rounds[1:]
        if len(self._rounds) < WATCHED:
            return
        if found := corrected(self.curve, self._rounds):
            logger.info("the measured costs were wrong by more than %.0f %%; they are mended", 100 * WRONG_BY)
            self._kept = self._file.write(replace(self._kept, costs=found))
        self._rounds = []
