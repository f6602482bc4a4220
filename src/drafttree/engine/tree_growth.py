"""Growing a draft tree: the machinery every policy shares.

Level by level: the drafter's logits of the frontier become a `Layer`, the policy's masks say which candidates join the
tree and which are expanded, and this module cuts to the budget, compacts both sets and hands the next frontier to the
drafter. So the number of draft passes is the depth of the tree, whatever its width.

Every level has a width that the host knows beforehand, and padding has a path log-probability of -inf, so no number
has to be read from the device to grow a tree of fixed shape. A tree whose depth depends on the draft's probabilities
costs one read per level, which trims its padding too.
"""

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from drafttree.core.errors import ConfigError
from drafttree.core.tree import DraftTree, Layer, PartialTree, TreeBuilder
from drafttree.drafters.base import DraftLogits
from drafttree.engine.child_sampler import FEW, Children, ChildSampler
from drafttree.policies.base import TextContext, TreePolicy, best_mask


@dataclass(frozen=True)
class Frontier:
    """The nodes to expand next, `[batch, width]` each.

    Attributes:
        nodes: index in the tree.
        tokens: token ids.
        origins: index of the parent in the frontier before.
        path_logprobs: -inf marks padding.
        scores: what the policy ranks them by; the same tensor where that is the path's log-probability.
        labels: what the policy handed down, or None.
    """

    nodes: Tensor
    tokens: Tensor
    origins: Tensor
    path_logprobs: Tensor
    scores: Tensor
    labels: Tensor | None = None

    @classmethod
    def at_root(cls, root: Tensor) -> "Frontier":
        """The roots, `[batch, 1]` token ids, as the first frontier."""
        zero = torch.zeros_like(root)
        certain = zero.float()
        return cls(zero, root, zero, certain, certain)

    def take(self, index: Tensor, padding: Tensor | None) -> "Frontier":
        """The members at `index` `[batch, width]`, of which some may be padding."""
        paths = _pick(self.path_logprobs, index, padding)
        return Frontier(
            nodes=self.nodes.gather(1, index),
            tokens=self.tokens.gather(1, index),
            origins=self.origins.gather(1, index),
            path_logprobs=paths,
            scores=paths if self.scores is self.path_logprobs else _pick(self.scores, index, padding),
            labels=None if self.labels is None else self.labels.gather(1, index),
        )

    def trim(self, width: int) -> "Frontier":
        """The first `width` columns."""
        return Frontier(
            nodes=self.nodes[:, :width],
            tokens=self.tokens[:, :width],
            origins=self.origins[:, :width],
            path_logprobs=self.path_logprobs[:, :width],
            scores=self.scores[:, :width],
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
        states: per sequence, what the policy has learned of its text; None for a new text each, of unknown costs.
        sampler: draws the children at random; None takes the draft's best tokens.
        vocab: of the target; columns beyond it count among the probabilities and are never drafted. None for no such.
        trim: drop padding wherever there is some, which needs numbers from the device; by default on a CPU, where
            reading is free and padding is computed like anything else.

    Returns:
        The trees to verify, at most `policy.budget` nodes each.
    """
    growth = Growth(policy, root, states, sampler, trim)
    levels = growth.levels(max_levels)
    logits, widths = (draft.root(), [1]) if levels > 0 else (root, [])
    source = getattr(draft, "source", 0)
    for depth in range(1, levels + 1):
        frontier = growth.trimmed(growth.add_level(logits, depth, vocab, source))
        if depth == levels or growth.ends(frontier):
            break
        logits = draft.expand(frontier.tokens, frontier.origins)
        widths.append(frontier.tokens.shape[1])
    return replace(growth.finish(), widths=tuple(widths), source=source)


class Growth:
    """The trees of one round while they grow.

    Args:
        policy: as for `grow`.
        root: likewise.
        states: likewise.
        sampler: likewise.
        trim: likewise.
    """

    def __init__(
        self,
        policy: TreePolicy,
        root: Tensor,
        states: tuple[Any, ...] | None,
        sampler: ChildSampler | None,
        trim: bool | None,
    ) -> None:
        self._policy, self._sampler = policy, sampler
        self._states = states or tuple(policy.init_state(TextContext()) for _ in root)
        self._trim = root.device.type == "cpu" if trim is None else trim
        self._tree, self._frontier = TreeBuilder(root), Frontier.at_root(root)
        self._room: int | None = None
        self._stops = type(policy).stop is not TreePolicy.stop

    def levels(self, limit: int) -> int:
        """The levels that may be drafted where no node may be deeper than a limit."""
        return min(limit, self._policy.levels() or limit) if self._policy.budget > 1 else 0

    def add_level(self, logits: Tensor, depth: int, vocab: int | None, source: int) -> Frontier:
        """Add a level to the trees; the frontier the policy expands next.

        Args:
            logits: `[batch, frontier, vocab]` of the draft.
            depth: of the level.
            vocab: as for `grow`.
            source: which model of the drafter gave them.
        """
        rows = logits.log_softmax(-1)
        rows = rows if vocab == rows.shape[-1] else rows[..., :vocab]
        layer, tokens, keep, most, room = self._choose(rows, depth, source)
        policy, tree = self._policy, self._tree
        index, padding = self._compact(keep, policy.most_kept(depth) if most is None else most)
        origins = index // keep.shape[2] if keep.shape[2] > 1 else index.clone()  # it is handed to the drafter
        # Copied before the policy looks again: one that wrote into the layer could drop nodes that were drawn.
        path_logprobs = _pick(layer.path_logprobs, index, padding)
        scores, labels, expand = layer.scores, policy.label(layer), policy.expand(layer)
        if labels is not None:
            labels = _checked(policy, "label", labels, torch.int64, layer)
        if expand is not None:
            expand = _checked(policy, "expand", expand, torch.bool, layer)
        kept = Frontier(
            nodes=_numbers(tree.size, tree.size + index.shape[1], index.device).expand_as(index),
            tokens=_pick(tokens, index),
            origins=origins,
            path_logprobs=path_logprobs,
            scores=path_logprobs if scores is layer.path_logprobs else _pick(scores, index, padding),
            labels=None if labels is None else _pick(labels, index),
        )
        parents = self._frontier.nodes.gather(1, origins)
        tree.add(kept.tokens, parents, kept.path_logprobs, kept.scores, padded=padding is not None)
        self._room = room if expand is None else None
        if expand is None:
            return kept
        wanted = _pick(expand, index)
        wanted = wanted if padding is None else wanted & ~padding
        return kept.take(*self._compact(wanted, policy.most_expanded(depth)))

    def _choose(self, rows: Tensor, depth: int, source: int) -> Children:
        """The candidates of a level and which of them join the tree, within the budget."""
        policy, tree, frontier = self._policy, self._tree, self._frontier
        width = min(policy.candidates(depth), rows.shape[-1])
        logprobs, tokens = best_candidates(rows, width)
        layer = Layer(
            logprobs=logprobs,
            parent_logprobs=frontier.path_logprobs,
            parent_scores=frontier.scores,
            depth=depth,
            tree=PartialTree(tree),
            score=policy.score,
            labels=frontier.labels,
            states=self._states,
            source=source,
        )
        keep = _checked(policy, "keep", policy.keep(layer), torch.bool, layer)
        keep = keep if keep is layer.possible else keep & layer.possible
        if self._sampler:
            trim = self._trim or (keep.shape[2] > FEW and not policy.fixed_shape)
            return self._sampler.children(layer, keep, rows, frontier.nodes, policy.budget - tree.nodes, trim)
        if not policy.reranks and tree.size + keep.shape[1] * keep.shape[2] > policy.budget:
            keep = best_mask(layer.scores, keep, policy.budget - (tree.nodes if tree.padded else tree.size))
        return Children(layer, tokens, keep)

    def trimmed(self, frontier: Frontier) -> Frontier:
        """The frontier without the sequences that stop here, and without padding as far as its width is known.

        A top-k tree whose depth depends on the draft's probabilities asks the device here and nowhere else; a sampled
        tree may have asked when its children were drawn, and then does not ask again.
        """
        policy, tree = self._policy, self._tree
        if not frontier.nodes.shape[1]:
            return frontier
        if not (policy.reranks or tree.padded) and tree.size >= policy.budget:
            return frontier.trim(0)
        stopped = policy.stop(PartialTree(tree), frontier.path_logprobs.clone()) if self._stops else None
        if stopped is not None:
            frontier = frontier.without(stopped)
        elif self._room is not None:
            return frontier
        if not policy.reranks and tree.size >= policy.budget:
            frontier = frontier.without(tree.nodes[:, 0] >= policy.budget)
        elif self._trim and stopped is None:
            return frontier
        if self._trim or not policy.fixed_shape:
            valid = tree.levels[-1][2].isfinite().sum(1), frontier.path_logprobs.isfinite().sum(1)
            kept, expanded = torch.stack(valid).amax(1).tolist()
            tree.trim(kept)
            frontier = frontier.trim(expanded)
        return frontier

    def ends(self, frontier: Frontier) -> bool:
        """Whether nothing is left to expand; otherwise this is the frontier of the next level."""
        self._frontier = frontier
        filled = self._policy.fixed_shape and not self._policy.reranks and self._tree.size >= self._policy.budget
        return not frontier.nodes.shape[1] or self._room == 0 or (filled and not self._trim)

    def finish(self) -> DraftTree:
        """The trees, cut to the budget: the best nodes of a policy that re-ranks, else all but padding."""
        tree, policy = self._tree.tree(), self._policy
        if self._sampler:
            return self._sampler.attach(tree).best(policy.budget)
        sizes = policy.sizes(tree.scores, self._states) if policy.reranks and tree.levels else None
        return tree.cut(sizes) if sizes else tree.best(policy.budget)

    def _compact(self, mask: Tensor, most: int) -> tuple[Tensor, Tensor | None]:
        """Indices `[batch, width]` of the True entries of each sequence, in order, and which of them are padding.

        The width is that of the longest row if padding is trimmed, else `most` or the number of entries; there are no
        more True entries than that. Padding is None if there is none.
        """
        mask = mask.flatten(1)
        if self._trim and len(mask) == 1:
            return mask.nonzero()[:, 1][None], None
        counts = mask.sum(1).tolist() if self._trim else [0, most]
        if min(counts) == mask.shape[1]:
            return _numbers(0, mask.shape[1], mask.device).expand_as(mask), None
        return compacted(mask, min(counts), max(counts))


def compacted(mask: Tensor, least: int, most: int) -> tuple[Tensor, Tensor | None]:
    """Indices `[batch, most]` of the True entries of each row, in order, and which of them are padding.

    Rows have at least `least` True entries and at most `most`; padding is None if these are the same.
    """
    index = mask.logical_not().argsort(dim=1, stable=True)[:, :most]
    return index, None if least == most else ~mask.gather(1, index)


def best_candidates(rows: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The log-probabilities and token ids `[..., width]` of the best tokens of rows `[..., vocab]`, best first."""
    return rows.topk(width) if width > 1 else rows.max(-1, keepdim=True)


@lru_cache(maxsize=256)
def _numbers(start: int, end: int, device: torch.device) -> Tensor:
    """Consecutive numbers, not to be written to; made once, since a round needs the same ones as the last."""
    return torch.arange(start, end, device=device)


def _checked(policy: TreePolicy, hook: str, given: Any, dtype: torch.dtype, layer: Layer) -> Tensor:
    """What a hook of a policy returns, if it is a tensor of the layer's shape and the right type."""
    wanted = layer.logprobs.shape
    if isinstance(given, Tensor) and given.dtype is dtype and given.shape == wanted:
        return given
    found = f"{given.dtype} {list(given.shape)}" if isinstance(given, Tensor) else type(given).__name__
    kind = str(dtype).removeprefix("torch.")
    raise ConfigError(f"{type(policy).__name__}.{hook} returns {found}; it must return a {kind} tensor {list(wanted)}")


def _pick(values: Tensor, index: Tensor, padding: Tensor | None = None) -> Tensor:
    """Entries `[batch, width]` of `[batch, ...]` values, -inf for padding."""
    picked = values.flatten(1).gather(1, index)
    return picked if padding is None else picked.masked_fill(padding, -torch.inf)
