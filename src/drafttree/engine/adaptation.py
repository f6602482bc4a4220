"""What is known of a target and a drafter together: their costs, and what policies have learned of earlier texts."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drafttree.core.cost_curve import CostCurve
from drafttree.engine.compatibility import is_text_of_seed
from drafttree.engine.request import Request
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier


class Adaptation:
    """Shared by the decoders of one target and one drafter.

    Args:
        costs: the cost curve; None until it is measured.

    Attributes:
        costs: as given, or as measured.
    """

    def __init__(self, costs: CostCurve | None = None) -> None:
        self.costs = costs
        self._learned: dict[Any, Any] = {}

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


def _key(policy: TreePolicy, verifier: Verifier) -> Any:
    return policy, type(verifier), verifier.sampling.greedy
