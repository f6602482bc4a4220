"""Growing the draft trees of several requests together, one draft pass per level for all of them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from drafttree.core.tree import DraftTree, PartialTree, TreeBuilder
from drafttree.core.tree_batch import split
from drafttree.drafters.base import PackedDraft
from drafttree.engine.child_sampler import ChildSampler
from drafttree.engine.tree_growth import Frontier, Growth, compacted
from drafttree.policies.base import TreePolicy


class Gate(Protocol):
    """Narrows the frontiers of all requests beyond what the policy does."""

    def expand(self, tree: TreeBuilder, frontier: Frontier, depth: int) -> Tensor | None:
        """Bool `[batch, width]`: which nodes of the new frontiers are expanded; None for all of them.

        Args:
            tree: the trees so far, with the level that the frontiers' nodes have just joined.
            frontier: the nodes to expand next.
            depth: of these nodes.
        """
        ...


@torch.inference_mode()
def grow_packed(
    policy: TreePolicy,
    draft: PackedDraft,
    roots: Tensor,
    max_levels: Sequence[int],
    *,
    states: tuple[Any, ...],
    sampler: ChildSampler | None = None,
    vocab: int | None = None,
    gate: Gate | None = None,
    source: int = 0,
    trim: bool | None = None,
) -> list[DraftTree]:
    """Draft one tree for each of several requests, the same that `grow` drafts for it alone.

    The device is read once per level, for the widths of the frontiers, and once in the end.

    Args:
        policy: of all requests, as for `grow`.
        draft: gives the logits of a level, as the policy is to see them.
        roots: `[batch, 1]` the requests' last committed tokens.
        max_levels: per request, the depth that no node exceeds, at least 1.
        states: per request, what the policy has learned of its text.
        sampler: as for `grow`, with the randomness of each request.
        vocab: as for `grow`.
        gate: leaves out nodes that the policy would expand.
        source: which model of the drafter drafts.
        trim: as for `grow`.

    Returns:
        The trees, each a batch of one without padding.
    """
    growth = PackedGrowth(policy, roots, states, sampler, max_levels, gate, trim)
    levels = growth.levels(max(max_levels))
    logits, widths = (draft.root(), [[1] * len(roots)]) if levels > 0 else (roots, [])
    for depth in range(1, levels + 1):
        frontier = growth.add_level(logits, depth, vocab, source)
        if depth == levels:
            break
        frontier, next_widths = growth.narrowed(frontier, depth)
        if not any(next_widths):
            break
        logits = draft.expand(frontier.tokens, frontier.origins, next_widths)
        widths.append(next_widths)
    return growth.split(widths, source)


class PackedGrowth(Growth):
    """The trees of several requests while they grow.

    Args:
        policy: as for `grow_packed`.
        roots: likewise.
        states: likewise.
        sampler: likewise.
        max_levels: likewise.
        gate: likewise.
        trim: likewise.
    """

    def __init__(
        self,
        policy: TreePolicy,
        roots: Tensor,
        states: tuple[Any, ...],
        sampler: ChildSampler | None,
        max_levels: Sequence[int],
        gate: Gate | None,
        trim: bool | None,
    ) -> None:
        super().__init__(policy, roots, states, sampler, trim)
        self._max_levels, self._gate = torch.tensor(max_levels, device=roots.device), gate

    def narrowed(self, frontier: Frontier, depth: int) -> tuple[Frontier, list[int]]:
        """The nodes to expand next, each request's before its padding, and how many there are of each request."""
        tree = self._tree
        if not frontier.nodes.shape[1]:
            return frontier, []
        expanded = frontier.path_logprobs.isfinite() & ~self._stopped(frontier, depth)[:, None]
        wanted = self._gate.expand(tree, frontier, depth) if self._gate else None
        expanded = expanded if wanted is None else expanded & wanted
        kept = tree.levels[-1][2].isfinite().sum(1).amax(0, keepdim=True)
        most, *widths = torch.cat((kept, expanded.sum(1))).tolist()
        tree.trim(most)
        self._frontier = frontier.take(*compacted(expanded, min(widths), max(widths)))
        return self._frontier, widths

    def _stopped(self, frontier: Frontier, depth: int) -> Tensor:
        """`[batch]` which trees grow no further: for their limit of levels, their budget or by their policy."""
        policy, tree = self._policy, self._tree
        stopped = self._max_levels <= depth
        if not policy.reranks:
            stopped = stopped | (tree.nodes[:, 0] >= policy.budget)
        own = policy.stop(PartialTree(tree), frontier.path_logprobs.clone()) if self._stops else None
        return stopped if own is None else stopped | own

    def split(self, widths: Sequence[Sequence[int]], source: int) -> list[DraftTree]:
        """The finished trees, one by one.

        Args:
            widths: of the frontiers that the drafter was asked about, per level and request.
            source: as for `grow_packed`.
        """
        levels = [paths.isfinite().any(1) for _, _, paths, _ in self._tree.levels]
        own = [tuple(filter(None, column)) for column in zip(*widths, strict=True)]
        trees = split(self.finish(), torch.stack(levels).sum(0) - 1, own or [()] * len(self._states))
        return [replace(tree, source=source) for tree in trees]
