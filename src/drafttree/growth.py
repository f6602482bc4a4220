"""Growing a draft tree: the machinery every policy shares.

A level at a time: the drafter's logits of the frontier become a `Layer`, the policy's masks say what joins the tree
and what is expanded, and this module cuts to the budget, compacts both sets and hands the next frontier to the
drafter. So the number of draft passes is the depth of the tree, whatever its width.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from drafttree.drafters.base import Draft
from drafttree.policies.base import TreePolicy, best_mask
from drafttree.tree import DraftTree, Layer

Shape = Callable[[Tensor, int], Tensor]


@dataclass
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

    def take(self, index: Tensor, valid: Tensor) -> "Frontier":
        """The members at `index` `[batch, width]`, padding where not `valid`."""
        return Frontier(
            nodes=self.nodes.gather(1, index),
            tokens=self.tokens.gather(1, index),
            origins=self.origins.gather(1, index),
            path_logprobs=self.path_logprobs.gather(1, index).masked_fill(~valid, -torch.inf),
            labels=None if self.labels is None else self.labels.gather(1, index),
        )


def grow(policy: TreePolicy, draft: Draft, root: Tensor, max_levels: int, shape: Shape) -> DraftTree:
    """Draft the tree of one round.

    Args:
        policy: decides what joins and what is expanded.
        draft: the drafter's view of these sequences.
        root: `[batch, 1]` the last committed tokens.
        max_levels: no node is deeper; 0 or less drafts nothing.
        shape: turns the drafter's logits `[batch, frontier, vocab]` for a level into those the policy is shown.

    Returns:
        The tree to verify, at most `policy.budget` nodes.
    """
    tree = DraftTree.rooted(root)
    levels = min(max_levels, policy.levels() or max_levels)
    if levels < 1 or policy.budget < 2:
        return tree
    frontier = Frontier(torch.zeros_like(root), root, torch.zeros_like(root), tree.path_logprobs)
    logits = draft.root()
    while True:
        depth = tree.levels + 1
        budget_left = sys.maxsize if policy.reranks else policy.budget - tree.size
        layer, tokens = _layer(policy, shape(logits, depth), frontier, depth, budget_left)
        tree, frontier = _extend(policy, tree, frontier, layer, tokens)
        if depth == levels or not frontier.nodes.shape[1] or (tree.size >= policy.budget and not policy.reranks):
            break
        if policy.stop(tree, frontier.path_logprobs):
            break
        logits = draft.expand(frontier.tokens, frontier.origins)
    return policy.finish(tree)


def _layer(
    policy: TreePolicy, logits: Tensor, frontier: Frontier, depth: int, budget_left: int
) -> tuple[Layer, Tensor]:
    """The layer of the frontier's best candidates, and their token ids `[batch, frontier, candidates]`."""
    width = min(policy.candidates(budget_left), logits.shape[-1])
    values, tokens = logits.topk(width) if width > 1 else logits.max(-1, keepdim=True)
    logprobs = values - logits.logsumexp(-1, keepdim=True)
    return Layer(logprobs, frontier.path_logprobs, depth, budget_left, frontier.labels), tokens


def _extend(
    policy: TreePolicy, tree: DraftTree, frontier: Frontier, layer: Layer, tokens: Tensor
) -> tuple[DraftTree, Frontier]:
    """Add what the policy keeps of a layer; the larger tree and the frontier it expands next."""
    score = policy.score(layer)
    keep = policy.keep(layer) & layer.path_logprobs.isfinite()
    expand, labels = policy.expand(layer), policy.label(layer)
    count = int(keep.sum((1, 2)).amax())
    if count > layer.budget_left:
        keep, count = best_mask(score, keep, layer.budget_left), layer.budget_left
    index, valid = _compact(keep.flatten(1), count)
    origins = index // layer.logprobs.shape[-1]
    kept = Frontier(
        nodes=torch.arange(tree.size, tree.size + count, device=index.device).expand_as(index),
        tokens=tokens.flatten(1).gather(1, index),
        origins=origins,
        path_logprobs=layer.path_logprobs.flatten(1).gather(1, index).masked_fill(~valid, -torch.inf),
        labels=None if labels is None else labels.flatten(1).gather(1, index),
    )
    tree = DraftTree(
        tokens=torch.cat((tree.tokens, kept.tokens), 1),
        parents=torch.cat((tree.parents, frontier.nodes.gather(1, origins)), 1),
        logprobs=torch.cat((tree.logprobs, layer.logprobs.flatten(1).gather(1, index)), 1),
        path_logprobs=torch.cat((tree.path_logprobs, kept.path_logprobs), 1),
        scores=torch.cat((tree.scores, score.flatten(1).gather(1, index).masked_fill(~valid, -torch.inf)), 1),
        levels=layer.depth,
    )
    if expand is None:
        return tree, kept
    expand = expand.flatten(1).gather(1, index) & valid
    return tree, kept.take(*_compact(expand, int(expand.sum(1).amax())))


def _compact(mask: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Indices of the True entries of each row `[batch, entries]`, in order, padded to `width`; and which are real."""
    index = mask.logical_not().argsort(dim=1, stable=True)[:, :width]
    return index, mask.gather(1, index)
