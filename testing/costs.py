"""Costs for the policies that weigh them: tests measure no time."""

from typing import Any

from drafttree import Decoder
from drafttree.evaluation.toy_models import TOY_COSTS
from drafttree.policies import TreePolicy
from drafttree.policies.base import TextContext


def new_states(policy: TreePolicy, texts: int = 1) -> tuple[Any, ...]:
    """The state of a new text each, where the toy models' costs are known."""
    return tuple(policy.init_state(TextContext(TOY_COSTS)) for _ in range(texts))


def toy_decoder(*parts, **named) -> Decoder:
    """A decoder that knows the toy models' costs; arguments as for `Decoder`."""
    return Decoder(*parts, **named).with_costs(TOY_COSTS)
