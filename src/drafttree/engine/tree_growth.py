"""Growing a draft tree: the machinery every policy shares.

A level at a time: the drafter's logits of the frontier become a `Layer`, the policy's masks say what joins the tree
and what is expanded, and this module cuts to the budget, compacts both sets and hands the next frontier to the
drafter. So the number of draft passes is the depth of the tree, whatever its width.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from drafttree.core.devices import near
from drafttree.core.tree import DraftTree, Layer, TreeBuilder
from drafttree.drafters.base import DraftLogits
from drafttree.engine.child_sampler import ChildSampler
from drafttree.policies.base import TreePolicy, best_mask

Shape = Callable[[Tensor, int], Tensor]


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

    def take(self, index: Tensor, padding: Tensor | None) -> "Frontier":
        """The members at `index` `[batch, width]`."""
        return Frontier(
            nodes=self.nodes.gather(1, index),
            tokens=self.tokens.gather(1, index),
            origins=self.origins.gather(1, index),
            path_logprobs=_pick(self.path_logprobs, index, padding),
            labels=None if self.labels is None else self.labels.gather(1, index),
        )

    def without(self, stopped: Tensor) -> "Frontier":
        """The frontier with the sequences where `stopped` `[batch]` turned into padding."""
        return replace(self, path_logprobs=self.path_logprobs.masked_fill(stopped[:, None], -torch.inf))


def grow(
    policy: TreePolicy,
    draft: DraftLogits,
    root: Tensor,
    max_levels: int,
    shape: Shape,
    sampler: ChildSampler | None = None,
    vocab: int | None = None,
) -> DraftTree:
    """Draft the tree of one round.

    Args:
        policy: decides what joins and what is expanded.
        draft: the drafter's view of this sequence, for this round.
        root: `[batch, 1]` the last committed tokens.
        max_levels: no node is deeper; 0 or less drafts nothing.
        shape: turns the drafter's logits `[batch, frontier, vocab]` for a level into those the policy is shown.
        drawing: draws the children at random; None selects them.
        vocab: of the target; columns beyond it count among the probabilities and are never drafted. None for no such.

    Returns:
        The tree to verify, at most `policy.budget` nodes.
    """
    grown = TreeBuilder(root)
    levels = min(max_levels, policy.levels() or max_levels)
    if levels < 1 or policy.budget < 2:
        return sampler.sign(grown.tree()) if sampler else grown.tree()
    origin = torch.zeros_like(root)
    frontier = Frontier(origin, root, origin, origin.float())
    logits = draft.root()
    while True:
        room = sys.maxsize if policy.reranks else policy.budget - grown.smallest
        rows = shape(logits, grown.levels + 1).log_softmax(-1)[..., :vocab]
        layer, tokens = _layer(policy, rows, frontier, grown.levels + 1, room)
        keep = policy.keep(layer) & (layer.path_logprobs > -torch.inf)
        if sampler:
            left = policy.budget - grown.sizes()
            layer, tokens, keep = sampler.children(layer, keep, rows, frontier.nodes, left)
        frontier = _extend(policy, grown, frontier, layer, tokens, keep)
        full = not policy.reranks and grown.smallest >= policy.budget
        if grown.levels == levels or full or not frontier.nodes.shape[1]:
            break
        stopped = policy.stop(grown, frontier.path_logprobs)
        if stopped is not None:
            if stopped.all():
                break
            frontier = frontier.without(stopped)
        logits = draft.expand(frontier.tokens, frontier.origins)
    return sampler.sign(grown.tree()) if sampler else policy.finish(grown.tree())


def _layer(policy: TreePolicy, rows: Tensor, frontier: Frontier, depth: int, budget_left: int) -> tuple[Layer, Tensor]:
    """The layer of the frontier's best candidates, and their token ids `[batch, frontier, candidates]`."""
    width = min(policy.candidates(budget_left), rows.shape[-1])
    logprobs, tokens = rows.topk(width) if width > 1 else rows.max(-1, keepdim=True)
    return Layer(logprobs, frontier.path_logprobs, depth, budget_left, frontier.labels), tokens


def _extend(
    policy: TreePolicy, grown: TreeBuilder, frontier: Frontier, layer: Layer, tokens: Tensor, keep: Tensor
) -> Frontier:
    """Add what is kept of a layer to the tree; the frontier the policy expands next."""
    paths, scores = layer.path_logprobs, policy.score(layer)
    expand, labels = policy.expand(layer), policy.label(layer)
    kept_width, wanted_width = _widths(keep, expand)
    index, padding = _compact(keep, kept_width)
    full = not policy.reranks and grown.size + index.shape[1] > policy.budget
    if full:
        width = policy.budget - grown.size if len(keep) == 1 else None
        index, padding = _compact(best_mask(scores, keep, policy.budget - grown.sizes()), width)
    origins = index // paths.shape[-1]
    kept = Frontier(
        nodes=torch.arange(grown.size, grown.size + index.shape[1], device=index.device).expand_as(index),
        tokens=_pick(tokens, index),
        origins=origins,
        path_logprobs=_pick(paths, index, padding),
        labels=None if labels is None else _pick(labels, index),
    )
    ranked = kept.path_logprobs if scores is paths else _pick(scores, index, padding)
    parents = frontier.nodes.gather(1, origins)
    grown.add(kept.tokens, parents, _pick(layer.logprobs, index), kept.path_logprobs, ranked)
    if expand is None or (full and padding is None):
        return kept
    wanted = _pick(expand, index)
    return kept.take(*_compact(wanted if padding is None else wanted & ~padding, None if full else wanted_width))


def _widths(keep: Tensor, expand: Tensor | None) -> tuple[int | None, int | None]:
    """How many candidates of a sequence are kept at most, and how many of those expanded; None for `_compact` to see.

    It is what the host must know of a level, so a far device is asked for both at once.
    """
    if expand is None or near(keep):
        return None, None
    kept, wanted = torch.stack((keep, keep & expand)).flatten(2).sum(2).amax(1).tolist()
    return kept, wanted


def _compact(mask: Tensor, width: int | None = None) -> tuple[Tensor, Tensor | None]:
    """Indices `[batch, width]` of the True entries of each sequence, in order, and which of them are padding.

    A lone sequence has no padding. Where the width is not given, the host waits for it.
    """
    mask, lone = mask.flatten(1), len(mask) == 1
    if lone and width is None:
        return mask.nonzero()[:, 1][None], None
    width = int(mask.sum(1).amax()) if width is None else width
    index = mask.logical_not().argsort(dim=1, stable=True)[:, :width]
    return index, None if lone else ~mask.gather(1, index)


def _pick(values: Tensor, index: Tensor, padding: Tensor | None = None) -> Tensor:
    """Entries `[batch, width]` of `[batch, ...]` values, -inf where padding."""
    picked = values.flatten(1).gather(1, index)
    return picked if padding is None else picked.masked_fill(padding, -torch.inf)
