"""What is known about a target with a drafter: their costs, and what earlier texts have taught.

If a text is written alone and its draws depend on its drafts, it must not learn from earlier texts. Otherwise prompt,
seed and costs would not repeat it. Worse, a later text with the same seed has the same random numbers. So the shapes of
its trees would depend on draws that it has not made yet, which would bias its distribution.
"""

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from drafttree.core.cost_curve import CostCurve
from drafttree.core.randomness import derived_seed
from drafttree.drafters.base import Drafter
from drafttree.engine.compatibility import is_text_of_seed
from drafttree.engine.drafting.acceptance_watch import HeadWatch
from drafttree.engine.drafting.controller import Controller
from drafttree.engine.drafting.measure import MeasuredCosts, Rounds
from drafttree.engine.drafting.text_drafting import DraftedRequest
from drafttree.models import Model
from drafttree.policies.base import TreePolicy
from drafttree.verifiers.base import Verifier


class LearnedState:
    """What the decoders of one target and one drafter share.

    Args:
        costs: a fixed cost curve for all texts. None measures one for greedy and one for sampled texts when needed, and
            corrects it between texts if it proves wrong.
        tests_heads: whether texts test that a head is read correctly.

    Attributes:
        given: the argument `costs`.
        tests_heads: as given.
        measured: the costs measured so far; the key is True for greedy texts and False for sampled ones.
        head_watch: tests whether a head that drafts is read correctly.
    """

    def __init__(self, costs: CostCurve | None = None, *, tests_heads: bool = True) -> None:
        self.given = costs
        self.measured: dict[bool, MeasuredCosts] = {}
        self.head_watch = HeadWatch()
        self.tests_heads = tests_heads
        self._states: dict[Any, Any] = {}
        self._of_texts: dict[Any, Controller] = {}
        self._of_batches: dict[Any, Controller] = {}
        self._texts = itertools.count()

    def with_costs(self, costs: CostCurve) -> "LearnedState":
        """A new state with these costs; it shares the test of heads and the counter of `unshared_seed`."""
        state = LearnedState(costs)
        state.head_watch = self.head_watch
        state._texts = self._texts
        return state

    def costs(self, target: Model, drafter: Drafter, rounds: Rounds, *, greedy: bool) -> CostCurve:
        """The costs of greedy or sampled texts, measured if they are not known; arguments as for `MeasuredCosts`."""
        if self.given:
            return self.given
        if greedy not in self.measured:
            self.measured[greedy] = MeasuredCosts(target, drafter, rounds, greedy=greedy)
        return self.measured[greedy].curve

    def costs_of(self, verifier: Verifier, mended: CostCurve) -> CostCurve:
        """The costs for a new text: `mended`, or those first measured if earlier texts must not influence the text.

        Args:
            verifier: the text's verifier.
            mended: the costs after corrections by earlier texts.
        """
        measured_costs = self.measured.get(verifier.sampling.greedy)
        return mended if measured_costs is None or is_text_of_seed(type(verifier)) else measured_costs.first

    def policy_state(self, policy: TreePolicy, verifier: Verifier) -> Any:
        """The policy's state at the end of the last text with this policy and the same kind of verifier.

        None if there is none, or if earlier texts must not influence this one.
        """
        return self._states.get(_key(policy, verifier)) if is_text_of_seed(type(verifier)) else None

    def controller_of(self, request: DraftedRequest) -> Controller | None:
        """The controller of the last text like this one that was written alone; None as for `policy_state`."""
        policy = request.task.policy
        verifier = request.task.verifier
        return self._of_texts.get(_key(policy, verifier)) if is_text_of_seed(type(verifier)) else None

    def head_watch_of(self, request: DraftedRequest) -> HeadWatch | None:
        """The test of heads that shortens pauses of a text that is written alone; None as for `policy_state`."""
        return request.drafting.head_watch if is_text_of_seed(type(request.task.verifier)) else None

    def controller(self, key: object, make: Callable[[], Controller]) -> Controller:
        """The controller of batches with this key; the first call makes it."""
        if key not in self._of_batches:
            self._of_batches[key] = make()
        return self._of_batches[key]

    @contextmanager
    def learning(self, request: DraftedRequest) -> Iterator[None]:
        """Context manager: on exit, even after an error, store what a text that is written alone has taught."""
        try:
            yield
        finally:
            if request.drafting.session and request.metrics.rounds:
                self.remember(request)
                if request.drafting.costs and is_text_of_seed(type(request.task.verifier)):
                    self._of_texts[_key(request.task.policy, request.task.verifier)] = request.drafting.controller
                    if measured_costs := self.measured.get(request.task.verifier.sampling.greedy):
                        measured_costs.watch(request.metrics.rounds)

    def unshared_seed(self, seed: int) -> int:
        """A new seed for one text of a batch, so that no other text uses its random numbers, even with the same seed.

        In a batch, the shape of a drawn tree depends on what other texts have accepted. If those used the same random
        numbers, the shape would depend on draws that the text has not made yet, which would bias its distribution. The
        counter is here since this object is shared as widely as what batches learn. Any thread may call this.
        """
        return derived_seed(seed, f"text {next(self._texts)}")

    def remember(self, request: DraftedRequest) -> None:
        """Store what a text's policy has learned, for later texts."""
        if request.drafting.session and request.task.policy.remembers:
            self._states[_key(request.task.policy, request.task.verifier)] = request.drafting.state


def _key(policy: TreePolicy, verifier: Verifier) -> Any:
    return policy, type(verifier), verifier.sampling.greedy
