"""What is known of a target and a drafter together: their costs, and what policies have learned of earlier texts."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from drafttree.core.cost_curve import CostCurve
from drafttree.drafters.base import Drafter
from drafttree.engine.compatibility import is_text_of_seed
from drafttree.engine.cost_correction import corrected
from drafttree.engine.cost_file import CostFile
from drafttree.engine.cost_measurement import WRONG_BY, Rounds, is_current, measure_costs
from drafttree.engine.metrics import Round
from drafttree.engine.request import Request
from drafttree.models import Model
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier

WATCHED = 64
"""Rounds after which the costs are compared with those that were spent."""
logger = logging.getLogger("drafttree")


class Adaptation:
    """Shared by the decoders of one target and one drafter.

    Args:
        costs: the cost curve, which then stays as it is; None to measure it when it is needed, and to mend it between
            texts when it is found wrong.

    Attributes:
        costs: as given, or as measured and mended; None as long as nobody has needed it.
    """

    def __init__(self, costs: CostCurve | None = None) -> None:
        self.costs = costs
        self._given = costs is not None
        self._rounds: list[Round] = []
        self._learned: dict[Any, Any] = {}

    def measured(self, target: Model, drafter: Drafter, rounds: Rounds) -> CostCurve:
        """The costs, which are measured if they are not known; arguments as for `measure_costs`."""
        if self.costs is None:
            self._file = CostFile(target, drafter)
            kept = self._file.read()
            if kept is None or not is_current(kept, target):
                kept = self._file.write(measure_costs(target, drafter, rounds))
            self._kept, self.costs = kept, kept.costs
        return self.costs

    def learned(self, policy: TreePolicy, verifier: Verifier) -> Any:
        """The state of the last text of this policy and kind of verifier, greedy or not; None if there is none.

        None too where earlier texts must not decide this one: where its draws depend on the drafts.
        """
        return self._learned.get(_key(policy, verifier)) if is_text_of_seed(type(verifier)) else None

    @contextmanager
    def learning(self, request: Request) -> Iterator[None]:
        """Remember what a text's policy has learned when the block ends, by an error too."""
        try:
            yield
        finally:
            if request.costs and request.metrics.rounds:
                self._learned[_key(request.policy, request.verifier)] = request.state
                self._watch(request)

    def _watch(self, request: Request) -> None:
        """Mend measured costs that a text's rounds have shown to be wrong; texts that are under way keep theirs."""
        if self._given or self.costs is None:
            return
        self._rounds += request.metrics.rounds[1:]
        if len(self._rounds) < WATCHED:
            return
        if found := corrected(self.costs, self._rounds):
            logger.info("the measured costs were wrong by more than %.0f %%; they are mended", 100 * WRONG_BY)
            self._kept = self._file.write(replace(self._kept, costs=found))
            self.costs = found
        self._rounds = []


def _key(policy: TreePolicy, verifier: Verifier) -> Any:
    return policy, type(verifier), verifier.sampling.greedy
