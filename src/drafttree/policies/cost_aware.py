from typing import ClassVar

from pydantic import Field

from drafttree.policies.auto_state import AutoState
from drafttree.policies.base import RoundOutcome, TextContext, TreePolicy


class CostAware(TreePolicy):
    """Base of the two forms of `auto`: what they know of a text, and when they draft at all."""

    uses_costs: ClassVar[bool] = True

    depth: int = Field(default=24, ge=1, le=256, description="levels drafted at most")
    children: int = Field(default=10, ge=1, le=4096, description="children of a node at most")
    budget: int = Field(default=64, ge=1, le=4096, description="nodes of the tree at most, root included")

    def candidates(self, depth: int) -> int:
        return min(self.children, max(self.budget - 1, 1))

    def levels(self) -> int:
        return self.depth

    def init_state(self, context: TextContext) -> AutoState:
        return AutoState.begin(context)

    def observe(self, state: AutoState, outcome: RoundOutcome) -> AutoState:
        return state.observe(outcome)

    def wants_draft(self, state: AutoState, session: object) -> bool:
        expected = getattr(session, "expected_accepted", None)
        return not state.waiting if expected is None else state.is_worth(expected)
