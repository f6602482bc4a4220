"""Drafts the trees of a round for many requests: one draft pass per level, one budget for all of them."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from drafttree.core.tree import DraftTree, Proposal
from drafttree.engine.batching.batch_state import BatchState
from drafttree.engine.batching.expansion_gate import ExpansionGate, NodeCosts
from drafttree.engine.batching.shared_budget import best_count, cut, falling, survival
from drafttree.engine.metrics import Round
from drafttree.engine.request import Request
from drafttree.engine.round_loop import DraftGroup, RoundLoop
from drafttree.policies.calibration import SurvivalCalibration


@dataclass
class Drafts:
    """The trees of a round.

    Attributes:
        trees: one for each request; a root alone where nothing was drafted for it.
        grown: the trees before the budget cut them.
        groups: source and widths, over all requests, of what was drafted.
        expected: tokens that the round is expected to commit.
        failure: the message of what the drafter raised, or of memory that ran out; None if there was none.
        not_allowed: why nothing may be drafted, None where it may.
    """

    trees: list[DraftTree]
    grown: list[DraftTree] = field(init=False)
    groups: list[tuple[int, list[int]]] = field(default_factory=list)
    expected: float = 0.0
    failure: str | None = None
    not_allowed: str | None = None

    def __post_init__(self) -> None:
        self.grown = self.trees  # one list, until the cut makes another

    @property
    def reason(self) -> str | None:
        """Why nothing was drafted, or not all; None where all was."""
        if self.failure is not None:
            return f"the drafter failed: {self.failure}"
        return self.not_allowed or (None if self.groups else "no request wants drafts")

    @property
    def passes(self) -> int:
        """Packed draft passes."""
        return sum(len(widths) for _, widths in self.groups)

    @property
    def drafted(self) -> int:
        """Nodes beside the roots."""
        return sum(tree.size - 1 for tree in self.trees)


class BatchDrafting:
    """Drafts for requests of one decoder, and learns what is accepted.

    Args:
        loop: the loop of the decoder.
        state: the state of its batches.
        budget: drafted nodes of a request and round, as a mean over the batch; None for the number that pays.
    """

    def __init__(self, loop: RoundLoop, state: BatchState, budget: int | None = None) -> None:
        self._loop, self._state, self._budget = loop, state, budget
        self._costs = state.costs

    def plain(self, requests: Sequence[Request], reason: str | None = None) -> Drafts:
        """Roots alone, for a reason."""
        roots = [self._loop.root_tree(request) for request in requests]
        return Drafts(roots, expected=float(len(requests)), not_allowed=reason)

    def draft(self, requests: Sequence[Request], rows: int, rate: float) -> Drafts:
        """Draft a round.

        Args:
            requests: requests that a token is chosen for.
            rows: rows of the target pass without drafted nodes.
            rate: tokens by time that the batch reaches.
        """
        drafts = self.plain(requests)
        for group in self._loop.groups(requests):
            target, level = partial(self._costs.target, len(requests)), partial(self._costs.level, group.source)
            self._draft_group(group, NodeCosts(target, level, rows, rate), drafts)
        return self._within_budget(requests, drafts, rows)

    def _draft_group(self, group: DraftGroup, costs: NodeCosts, drafts: Drafts) -> None:
        """Draft for requests whose trees grow together."""
        selected = group.requests[0].verifier.proposal is Proposal.TOP_K
        calibrations = [self._calibration(request, group.source) for request in group.requests]
        gate = ExpansionGate(calibrations, costs) if selected and self._budget is None else None

        def failed(error: Exception) -> None:
            drafts.failure = str(error) or type(error).__name__  # its traceback would hold the round's tensors

        grown = self._loop.grow(group, self._levels(group.requests, costs, selected=selected), gate, failed)
        for place, tree in zip(group.places, grown, strict=True):
            drafts.trees[place] = tree
        levels = max(len(tree.widths) for tree in grown)
        if levels:
            widths = [sum(_width(tree, level) for tree in grown) for level in range(levels)]
            drafts.groups.append((group.source, widths))

    def _levels(self, own: Sequence[Request], costs: NodeCosts, *, selected: bool) -> list[int]:
        """The levels that each request may be drafted for."""
        allowed = [self._loop.max_levels(request) for request in own]
        if selected or self._budget is not None:
            return allowed
        limit = self._state.limits.choose(len(own), costs.rows, costs.target, costs.level)
        return allowed if limit is None else [min(each, limit) for each in allowed]

    def _within_budget(self, requests: Sequence[Request], drafts: Drafts, rows: int) -> Drafts:
        """The drafts cut to the budget where their trees may be cut."""
        chances = [
            survival(tree, self._calibration(request, tree.source))
            for request, tree in zip(requests, drafts.trees, strict=True)
        ]
        likely = falling(chances)
        drafts.expected = len(requests) + sum(likely)
        if any(tree.proposal is not Proposal.TOP_K for tree in drafts.trees):
            return drafts
        spent = sum(self._costs.drafting(*group) for group in drafts.groups)
        count = self._count(likely, len(requests), rows, spent)
        drafts.trees = cut(drafts.trees, chances, count)
        drafts.expected = len(requests) + sum(likely[:count])
        return drafts

    def _count(self, likely: Sequence[float], batch: int, rows: int, spent: float) -> int:
        if self._budget is not None:
            return self._budget * batch
        count = best_count(likely, rows, batch, partial(self._costs.target, batch), spent)
        # A wrong cost of further rows would never be found out by always adding as many.
        return count if self._costs.knows_rows(batch) else count + max(count, batch)

    def observe(self, request: Request, tree: DraftTree, turn: Round) -> None:
        """Learn what a round has accepted of a tree, of a text that goes on."""
        if tree.size == 1:
            return
        path, children = [0], tree.children
        for rank in turn.ranks:
            path.append(children[path[-1]][rank - 1])
        kind = request.verifier.sampling.greedy, tree.source
        self._state.calibrations[kind] = self._state.calibration(kind).observe(tree, path)
        if tree.proposal is not Proposal.TOP_K:
            self._state.limits.observe(tree, len(path) - 1)

    def _calibration(self, request: Request, source: int) -> SurvivalCalibration:
        return self._state.calibration((request.verifier.sampling.greedy, source))


def _width(tree: DraftTree, level: int) -> int:
    return tree.widths[level] if level < len(tree.widths) else 0
