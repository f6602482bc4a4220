"""A tree policy is two masks over a `Layer`: which candidates join the tree, and which of those are expanded next.

A policy sees one text. `drafttree.engine.drafting.tree_growth` cuts trees to their budget and chooses the next frontier
for all policies. So a paper's method is a dozen lines that can be read beside the paper. Masks are numpy arrays: a
policy decides on some hundred numbers, for which the host is cheaper than any device.

A policy is a frozen pydantic model. Its fields are the parameters, checked when it is made, and one object serves any
number of requests. What it learns in a text is kept in a state from `init_state`, which belongs to the request.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from drafttree.core.cost_curve import CostCurve
from drafttree.core.errors import ConfigError, unknown
from drafttree.core.lazy import Array, np
from drafttree.core.tree import DraftTree, Layer, Proposal


@dataclass(frozen=True)
class TextContext:
    """What a policy gets when a text begins.

    Attributes:
        costs: costs of the target and the drafter, None unless the policy `uses_costs`.
        learned: the state at the end of the last text with this drafter, policy and verifier. None for the first text,
            and for a policy whose `remembers` is false. Also None for verifiers whose draws depend on the drafts: a
            seed could not repeat a text that depends on earlier texts.
    """

    costs: CostCurve | None = None
    learned: Any = None


@dataclass(frozen=True)
class RoundOutcome:
    """The outcome of a round of one text.

    Attributes:
        tree: the tree that was verified; a root alone if nothing was drafted.
        path: accepted nodes, the root first.
    """

    tree: DraftTree
    path: Sequence[int]

    @property
    def accepted(self) -> int:
        """Drafted tokens that were accepted."""
        return len(self.path) - 1

    @property
    def levels(self) -> int:
        """Levels that were drafted."""
        return self.tree.levels


class TreePolicy(BaseModel):
    """Base of all tree policies; subclasses override `keep` and, as needed, the other hooks.

    Attributes:
        source: the paper and the equation or algorithm number.
        branches: whether a node can have more than one child. A class attribute or a property.
        reranks: whether trees grow past the budget, and finished trees are cut to their best `budget` nodes.
        presets: named sets of parameters, such as those of a paper: `dynatree:paper,budget=64`.
        uses_costs: whether measured costs limit its trees, even in texts that are written alone; the policy gets them
            in a `TextContext`.
        budget: maximum number of nodes of a tree, the root included.

    Raises:
        ConfigError: a parameter does not exist or its value is out of range.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)
    source: ClassVar[str]
    reranks: ClassVar[bool] = False
    uses_costs: ClassVar[bool] = False
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}

    budget: int = Field(default=60, ge=1, le=4096, description="maximum number of nodes, root included")

    def __init__(self, *values: object, **parameters: object) -> None:
        if values:
            names = ", ".join(f"{name}=" for name in type(self).model_fields)
            raise ConfigError(f"{type(self).__name__}: {values[0]!r} has no name; give it one of {names}")
        try:
            super().__init__(**parameters)
        except ValidationError as error:
            raise _explain(type(self), error) from None

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """The parameters that differ from their defaults: all that `repr` shows."""
        fields = type(self).model_fields
        return [(name, value) for name, value in super().__repr_args__() if value != fields[name or ""].default]

    @property
    def branches(self) -> bool:
        """Whether a node can have more than one child."""
        return True

    @property
    def is_chain(self) -> bool:
        """Whether it drafts only the best token of every level, so that one call may draft the whole chain."""
        return False

    @property
    def learns(self) -> bool:
        """Whether its state depends on earlier rounds."""
        return type(self).observe is not TreePolicy.observe

    @property
    def remembers(self) -> bool:
        """Whether a text begins with the last state of the text before it; by default, if the policy uses costs."""
        return self.uses_costs

    def form_for(self, proposal: Proposal, *, chain: bool) -> "TreePolicy | None":
        """The variant of the policy that grows trees for a kind of verifier; None if there is none.

        A tree must keep every child that was drawn. So a policy that drops nodes at the end has no variant for drawn
        trees, unless one of its variants fixes all limits before the draws.

        Args:
            proposal: how the children of the trees are chosen.
            chain: whether the trees may have no branches.
        """
        dropping = self.reranks and proposal is not Proposal.TOP_K
        return None if dropping or (chain and self.branches) else self

    def candidates(self, depth: int) -> int:
        """How many of a frontier node's best candidates `keep` needs to see on a level."""
        return max(self.budget - 1, 1)

    def levels(self) -> int | None:
        """The deepest level the policy drafts, None for no limit of its own."""
        return None

    def init_state(self, context: TextContext) -> Any:
        """The state of a text before its first round; None for a policy that learns nothing."""

    def wants_draft(self, state: Any, session: object) -> bool:
        """Whether to draft in a text's next round; if not, one token is decoded without the drafter.

        Args:
            state: the text's state.
            session: the drafter's session. If it can estimate the accepted tokens without a draft pass, it has an
                attribute `expected_accepted`, None in rounds in which it cannot.
        """
        return True

    def keep(self, layer: Layer) -> Array:
        """Bool, broadcast to `[frontier, candidates]`: which candidates join the tree."""
        raise NotImplementedError

    def expand(self, layer: Layer) -> Array | None:
        """Bool of the same shape as `keep` returns: which kept candidates are expanded; None for all."""

    def score(self, layer: Layer) -> Array:
        """`[frontier, candidates]` scores by which budget cuts and re-ranking choose; never above the parent's."""
        return layer.path_logprobs

    def label(self, layer: Layer) -> Array | None:
        """Int64 `[frontier, candidates]` labels, or None. On the next level, `Layer.labels` has the parents'."""

    def stop(self, tree: DraftTree, frontier: Array) -> bool | None:
        """Whether the tree ends here; None for no.

        Args:
            tree: the tree so far; it cannot be changed.
            frontier: `[width]` path log-probabilities of the nodes to expand next.
        """

    def observe(self, state: Any, outcome: RoundOutcome) -> Any:
        """The state of a text after a round, given the one before it."""
        return state


def creation_scores(layer: Layer) -> Array:
    """Equal scores, by which a budget cut keeps the first candidates of a level.

    Candidates are in the order in which a loop over the frontier would make them, siblings by rank.
    """
    return np.zeros_like(layer.path_logprobs)


def best_mask(scores: Array, among: Array, count: int) -> Array:
    """A mask of the `count` highest scores where `among` is true, ties to the lower index.

    It partitions the scores, which takes an eighth of the time of sorting them.

    Args:
        scores: an array of any shape.
        among: bool of the same shape: which scores may be chosen.
        count: most scores to choose; if `among` has fewer, all of those.
    """
    if not 0 < count < scores.size:
        return among & (count > 0)
    ranked_scores = np.where(among, scores, -math.inf).reshape(-1)
    threshold = np.partition(ranked_scores, ranked_scores.size - count)[ranked_scores.size - count]
    mask = ranked_scores >= threshold
    if np.count_nonzero(mask) > count:  # of those that tie for the last places, the first ones stay
        winners = ranked_scores > threshold
        ties = np.flatnonzero(mask & ~winners)
        mask[ties[count - np.count_nonzero(winners) :]] = False
    return mask.reshape(scores.shape) & among


def _explain(policy: type[TreePolicy], error: ValidationError) -> ConfigError:
    """An error of one line for the first problem that pydantic found."""
    problem = error.errors()[0]
    reason = problem["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if not problem["loc"]:
        return ConfigError(f"{policy.__name__}: {reason}")
    name = str(problem["loc"][0])
    if problem["type"] == "extra_forbidden":
        return unknown(f"parameter of {policy.__name__}", name, policy.model_fields)
    if problem["type"].startswith(("less_than", "greater_than")):
        limits = policy.model_fields[name].metadata
        bounds = [getattr(limit, side) for limit in limits for side in ("ge", "le") if hasattr(limit, side)]
        reason = f"between {' and '.join(map(str, bounds))}"
    return ConfigError(f"{policy.__name__}: {name} is {problem['input']!r}; it should be {reason}")
