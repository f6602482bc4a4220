"""What is known of a target and a drafter together: their costs, and what was learned of earlier texts.

Nothing that a text has taught reaches a later one that is written alone and whose draws depend on its drafts: prompt,
seed and costs would not repeat it. Worse, a later text of the same seed has the same numbers, so the shapes of its
trees would follow from draws that it has yet to make, and its law would be biased.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from drafttree.core.cost_curve import CostCurve
from drafttree.core.randomness import derived_seed
from drafttree.drafters.base import Drafter
from drafttree.engine.acceptance_watch import HeadWatch
from drafttree.engine.compatibility import is_text_of_seed
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.drafting.measure import MeasuredCosts, Rounds
from drafttree.engine.request import Request
from drafttree.models import Model
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier


class LearnedState:
    """Shared by the decoders of one target and one drafter.

    Args:
        costs: the cost curve of all texts, which stays as it is; None to measure one of greedy texts and one of others,
            each when it is needed, and to mend it between texts when it is found wrong.

    Attributes:
        given: as given.
        measured: what was needed of the others, by whether it is of greedy texts.
        head_watch: tests whether the drafter, if it is a head, is read as it should be.
    """

    def __init__(self, costs: CostCurve | None = None) -> None:
        self.given = costs
        self.measured: dict[bool, MeasuredCosts] = {}
        self.head_watch = HeadWatch()
        self._states: dict[Any, Any] = {}
        self._of_texts: dict[Any, Controller] = {}
        self._of_batches: dict[Any, Controller] = {}
        self._texts = itertools.count()

    def with_costs(self, costs: CostCurve) -> "LearnedState":
        """What is known at other costs: how the head is read, and which numbers texts of batches have used."""
        state = LearnedState(costs)
        state.head_watch = self.head_watch
        state._texts = self._texts
        return state

    def costs(self, target: Model, drafter: Drafter, rounds: Rounds, *, greedy: bool) -> CostCurve:
        """The costs of greedy texts or of others, measured if they are not known; arguments as for `MeasuredCosts`."""
        if self.given:
            return self.given
        if greedy not in self.measured:
            self.measured[greedy] = MeasuredCosts(target, drafter, rounds, greedy=greedy)
        return self.measured[greedy].curve

    def costs_of(self, verifier: Verifier, mended: CostCurve) -> CostCurve:
        """The costs of a text: as earlier ones have mended them, or as measured if these must not decide it."""
        measured_costs = self.measured.get(verifier.sampling.greedy)
        return mended if measured_costs is None or is_text_of_seed(type(verifier)) else measured_costs.first

    def policy_state(self, policy: TreePolicy, verifier: Verifier) -> Any:
        """The state of the last text of this policy and kind of verifier, greedy or not; None if there is none.

        None too where earlier texts must not decide this one.
        """
        return self._states.get(_key(policy, verifier)) if is_text_of_seed(type(verifier)) else None

    def controller_of(self, request: Request) -> Controller | None:
        """That of the last text that was written alone like this one; None as for `policy_state`."""
        policy = request.policy
        verifier = request.verifier
        return self._of_texts.get(_key(policy, verifier)) if is_text_of_seed(type(verifier)) else None

    def head_watch_of(self, request: Request) -> HeadWatch | None:
        """What decides how long drafts of a text that is written alone pause; None as for `policy_state`."""
        return request.drafting.head_watch if is_text_of_seed(type(request.verifier)) else None

    def controller(self, key: object, make: Callable[[], Controller]) -> Controller:
        """The controller of batches of a kind, made where there was none."""
        if key not in self._of_batches:
            self._of_batches[key] = make()
        return self._of_batches[key]

    @contextmanager
    def learning(self, request: Request) -> Iterator[None]:
        """Remember what a text that is written alone has shown when the block ends, by an error too."""
        try:
            yield
        finally:
            if request.drafting.session and request.metrics.rounds:
                self.remember(request)
                if request.drafting.costs and is_text_of_seed(type(request.verifier)):
                    self._of_texts[_key(request.policy, request.verifier)] = request.drafting.controller
                    if measured_costs := self.measured.get(request.verifier.sampling.greedy):
                        measured_costs.watch(request.metrics.rounds)

    def unshared_seed(self, seed: int) -> int:
        """A seed for one text of a batch, whose numbers no other text uses, whatever the texts' own seeds are.

        In a batch the shape of a drawn tree follows from what other texts have accepted. Had they used the same
        numbers, the shape would depend on draws the text has yet to make, and its law would be biased. The counter
        lies here since this object is as widely shared as what batches learn. Any thread may call it.
        """
        return derived_seed(seed, f"text {next(self._texts)}")

    def remember(self, request: Request) -> None:
        """Remember what a text's policy has learned, for texts that begin later."""
        if request.drafting.session and request.policy.remembers:
            self._states[_key(request.policy, request.verifier)] = request.drafting.state


def _key(policy: TreePolicy, verifier: Verifier) -> Any:
    return policy, type(verifier), verifier.sampling.greedy
