"""Growing a draft tree: the machinery every policy shares.

Level by level: the drafter's logits of the frontier become a `Layer`, the policy's masks say which candidates join the
tree and which are expanded, and this module cuts to the budget, compacts both sets and hands the next frontier to the
drafter. So the number of draft passes is the depth of the tree, whatever its width.

Every level has a width that the host knows beforehand, and padding has a path log-probability of -inf, so no number
has to be read from the device to grow a tree of fixed shape. A tree whose depth depends on the draft's probabilities
costs one read per level, which trims its padding too.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from drafttree.core.tree import DraftTree, Layer, TreeBuilder
from drafttree.drafters.base import DraftLogits
from drafttree.engine.child_sampler import Children, ChildSampler
from drafttree.policies.base import TreePolicy, best_mask


@dataclass(frozen=True)
class Frontier:
    """The nodes to expand next, `[batch, width]` each.

    Attributes:
        nodes: index in the tree.
        tokens: token ids.
        origins: index of the parent in the frontier before.
        path_logprobs: -inf marks padding.
        labels: what the policy handed down, or None.
    """

    nodes: Tensor
    tokens: Tensor
    origins: Tensor
    path_logprobs: Tensor
    labels: Tensor | None = None

    @classmethod
    def at_root(cls, root: Tensor) -> "Frontier":
        """The roots, `[batch, 1]` token ids, as the first frontier."""
        zero = torch.zeros_like(root)
        return cls(zero, root, zero, zero.float())

    def take(self, index: Tensor, padding: Tensor) -> "Frontier":
        """The members at `index` `[batch, width]`, of which some are padding."""
        return Frontier(
            nodes=self.nodes.gather(1, index),
            tokens=self.tokens.gather(1, index),
            origins=self.origins.gather(1, index),
            path_logprobs=_pick(self.path_logprobs, index, padding),
            labels=None if self.labels is None else self.labels.gather(1, index),
        )

    def trim(self, width: int) -> "Frontier":
        """The first `width` columns."""
        return Frontier(
            nodes=self.nodes[:, :width],
            tokens=self.tokens[:, :width],
            origins=self.origins[:, :width],
            path_logprobs=self.path_logprobs[:, :width],
            labels=None if self.labels is None else self.labels[:, :width],
        )

    def without(self, stopped: Tensor) -> "Frontier":
        """The frontier with the sequences in `stopped` `[batch]` turned into padding."""
        return replace(self, path_logprobs=self.path_logprobs.masked_fill(stopped[:, None], -torch.inf))


def grow(
    policy: TreePolicy,
    draft: DraftLogits,
    root: Tensor,
    max_levels: int,
    *,
    states: tuple[Any, ...] | None = None,
    sampler: ChildSampler | None = None,
    vocab: int | None = None,
    trim: bool | None = None,
) -> DraftTree:
    """Draft the trees of one round.

    Args:
        policy: decides which candidates join the tree and which are expanded.
        draft: gives the logits `[batch, frontier, vocab]` of a level, as the policy is to see them.
        root: `[batch, 1]` the last committed tokens.
        max_levels: no node is deeper; 0 or less drafts nothing.
        states: per sequence, what the policy has learned of its text; None for a new text each.
        sampler: draws the children at random; None takes the draft's best tokens.
        vocab: of the target; columns beyond it count among the probabilities and are never drafted. None for no such.
        trim: drop padding wherever there is some, which needs numbers from the device; by default on a CPU, where
            reading is free and padding is computed like anything else.

    Returns:
        The trees to verify, at most `policy.budget` nodes each.
    """
    tree, frontier = TreeBuilder(root), Frontier.at_root(root)
    trim = root.device.type == "cpu" if trim is None else trim
    states = states or tuple(policy.init_state() for _ in root)
    levels = min(max_levels, policy.levels() or max_levels) if policy.budget > 1 else 0
    logits = draft.root() if levels > 0 else torch.empty(0)
    for depth in range(1, levels + 1):
        rows = logits.log_softmax(-1)[..., :vocab]
        children = _choose(policy, rows, frontier, depth, tree, states, sampler, trim)
        frontier = _extend(policy, tree, frontier, children)
        frontier = _stop(policy, tree, frontier, last=depth == levels)
        if trim or not policy.fixed_shape:
            frontier = _trim(tree, frontier)
            finished = not frontier.nodes.shape[1]
        else:
            finished = not policy.reranks and tree.size >= policy.budget
        if finished or depth == levels:
            break
        logits = draft.expand(frontier.tokens, frontier.origins)
    grown = sampler.attach(tree.tree()) if sampler else tree.tree()
    return grown.best(policy.budget)


def _choose(
    policy: TreePolicy,
    rows: Tensor,
    frontier: Frontier,
    depth: int,
    tree: TreeBuilder,
    states: tuple[Any, ...],
    sampler: ChildSampler | None,
    trim: bool,
) -> Children:
    """The candidates of a level and which of them join the tree, within the budget."""
    width = min(policy.candidates(depth), rows.shape[-1])
    logprobs, tokens = rows.topk(width) if width > 1 else rows.max(-1, keepdim=True)
    layer = Layer(logprobs, frontier.path_logprobs, depth, tree.nodes, frontier.labels, states)
    keep = policy.keep(layer) & layer.everything()
    if sampler:
        return sampler.children(layer, keep, rows, frontier.nodes, policy.budget - tree.nodes, trim)
    if not policy.reranks and tree.size + keep[0].numel() > policy.budget:
        keep = best_mask(policy.score(layer), keep, policy.budget - tree.nodes)
    return Children(layer, tokens, keep)


def _extend(policy: TreePolicy, tree: TreeBuilder, frontier: Frontier, children: Children) -> Frontier:
    """Add what is kept of a level to the tree; the frontier the policy expands next."""
    layer, keep = children.layer, children.keep
    scores, labels, expand = policy.score(layer), policy.label(layer), policy.expand(layer)
    index, padding = _compact(keep, policy.most_kept(layer.depth))
    origins = index // keep.shape[2]
    kept = Frontier(
        nodes=torch.arange(tree.size, tree.size + index.shape[1], device=index.device).expand_as(index),
        tokens=_pick(children.tokens, index),
        origins=origins,
        path_logprobs=_pick(layer.path_logprobs, index, padding),
        labels=None if labels is None else _pick(labels, index),
    )
    tree.add(kept.tokens, frontier.nodes.gather(1, origins), kept.path_logprobs, _pick(scores, index, padding))
    if expand is None:
        return kept
    return kept.take(*_compact(_pick(expand, index) & ~padding, policy.most_expanded(layer.depth)))


def _stop(policy: TreePolicy, tree: TreeBuilder, frontier: Frontier, last: bool) -> Frontier:
    """The frontier without the sequences that stop here: the policy says so, or their budget is spent."""
    if last:
        return frontier
    stopped = policy.stop(tree, frontier.path_logprobs)
    if stopped is not None:
        frontier = frontier.without(stopped)
    return frontier if policy.reranks else frontier.without(tree.nodes[:, 0] >= policy.budget)


def _trim(tree: TreeBuilder, frontier: Frontier) -> Frontier:
    """Drop the padding of the last level and of the frontier: the one place that asks the device for a number."""
    valid = (tree.path_logprobs[-1].isfinite().sum(1), frontier.path_logprobs.isfinite().sum(1))
    kept, expanded = torch.stack(valid).amax(1).tolist()
    tree.trim(kept)
    return frontier.trim(expanded)


def _compact(mask: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Indices `[batch, width]` of the True entries of each sequence, in order, and which of them are padding.

    The width is `most`, or the number of entries if that is smaller; there are no more True entries than that.
    """
    mask = mask.flatten(1)
    index = mask.logical_not().argsort(dim=1, stable=True)[:, :most]
    return index, ~mask.gather(1, index)


def _pick(values: Tensor, index: Tensor, padding: Tensor | None = None) -> Tensor:
    """Entries `[batch, width]` of `[batch, ...]` values, -inf for padding."""
    picked = values.flatten(1).gather(1, index)
    return picked if padding is None else picked.masked_fill(padding, -torch.inf)
