"""Growing draft trees: the machinery every policy shares, for one text and for many.

Level by level: the drafter's logits of the frontiers become a `Layer` on the host, the policy's masks say which
candidates join the trees and which are expanded, and this module cuts to the budget, compacts both sets and hands the
next frontiers to the drafter. So the number of draft passes is the depth of the deepest tree, whatever its width.

A level is read from the device once: its best candidates, log-softmax and top-k being the device's work. A sampled tree
reads twice: counts are decided on the host, then children are drawn.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from itertools import accumulate, chain
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.machine_memory import is_out_of_memory
from drafttree.core.tree import DraftTree, Layer, PartialTree, Proposal, padded, read_only
from drafttree.core.vocab_ops import argmax
from drafttree.drafters.session import Frontier
from drafttree.engine.child_sampler import MIN_LOGPROB, ChildSampler
from drafttree.engine.growing_tree import GrowingTree
from drafttree.engine.policy_answers import checked_answer
from drafttree.models.native.kernels import native_candidates
from drafttree.policies.base import TreePolicy, best_mask


class DraftRows(Protocol):
    """The drafter's logits for the trees of a batch, as the policy is to see them."""

    def root(self) -> Tensor:
        """Return logits `[batch, vocab]` of the token after each root; the first draft pass of a round."""
        ...

    def expand(self, frontiers: Sequence[Frontier]) -> Tensor:
        """Return logits `[nodes, vocab]` of the token after each node of the new frontiers, one after the other.

        Args:
            frontiers: frontiers of every sequence, empty for one that drafts no further.
        """
        ...

    def chain(self, tokens: Sequence[int], count: int, allowed: int) -> tuple[Array, Array] | None:
        """Return chains behind the trees' only nodes; see `drafttree.drafters.base.SharedDrafter`."""
        return None


class Limits(Protocol):
    """Narrows the trees of all requests beyond what the policy does; who gives them cuts the finished trees, too.

    Attributes:
        chances: of each tree, the log-probabilities that its first nodes are accepted, as far as they are known; None
            where they are not.
    """

    chances: Any

    def expand(self, texts: Sequence[GrowingTree], depth: int) -> Sequence[Sequence[int]]:
        """Which of the nodes that the policy would expand are worth it, per tree, in order.

        Args:
            texts: the trees so far; the `frontier` of each is what the policy would expand.
            depth: the depth of these nodes.
        """
        ...

    def children(self, texts: Sequence[GrowingTree], depth: int) -> Sequence[Sequence[int]] | None:
        """How many children to draw at most for each node of the frontiers; None for as many as the policy keeps.

        Args:
            texts: the trees so far.
            depth: the depth of the children.
        """
        ...


@torch.inference_mode()
def grow(
    policy: TreePolicy,
    draft: DraftRows,
    roots: Sequence[int],
    max_levels: Sequence[int],
    *,
    states: Sequence[Any],
    sampler: ChildSampler | None = None,
    vocab: int | None = None,
    limits: Limits | None = None,
    source: int = 0,
    ends: Callable[[Exception], bool] = lambda error: False,
) -> list[DraftTree]:
    """Draft the trees of one round.

    Where the drafter fails or memory runs out, trees can end at the level that they have. A drawn level stays: whether
    it is dropped would depend on what was drawn, which is not lossless.

    Args:
        policy: decides which candidates join the trees and which are expanded.
        draft: gives the logits of a level, as the policy is to see them.
        roots: the last committed token of each text.
        max_levels: per text, the depth that no node exceeds; at least 1 for each of several texts.
        states: per text, what the policy has learned of it.
        sampler: draws the children at random; None takes the draft's best tokens.
        vocab: the vocab of the target; columns beyond it count among the probabilities and are never drafted. None for
            no such.
        limits: leaves out nodes that the policy would expand, or draw; a policy that re-ranks then cuts nothing itself.
        source: which model of the drafter drafts.
        ends: whether the trees end where the drafter has raised this, or memory ran out; else it is raised.

    Returns:
        The trees to verify, at most `policy.budget` nodes each.

    Raises:
        ConfigError: the policy answers with something else than masks.
    """
    growth = Growth(policy, roots, max_levels, states, sampler, source, limits)
    limit = max(max_levels)
    levels = min(limit, policy.levels() or limit) if policy.budget > 1 else 0
    widths, drafting, is_chain = [1] * len(roots), True, policy.is_chain and not (sampler or limits)
    try:
        for depth in range(1, levels + 1):
            drafting = True
            rows = draft.root() if depth == 1 else draft.expand(growth.frontiers())
            drafting = False
            growth.add_level(rows, widths, depth, vocab)
            if depth == levels or not any(widths := growth.narrow(depth)):
                break
            if depth == 1 and is_chain:
                drafting = True
                if growth.add_chains(draft, min(levels, policy.budget - 1) - 1, vocab):
                    break
    except Exception as error:
        if not ((drafting or is_out_of_memory(error)) and ends(error)):
            raise
    return growth.trees()


class Growth:
    """The trees of one round while they grow.

    A level is flat arrays, the candidates that joined of all texts behind each other. Only what a policy looks at has a
    batch axis, padded to the widest frontier. Arguments are those of `grow`.
    """

    def __init__(
        self,
        policy: TreePolicy,
        roots: Sequence[int],
        max_levels: Sequence[int],
        states: Sequence[Any],
        sampler: ChildSampler | None,
        source: int,
        limits: Limits | None = None,
    ) -> None:
        self._policy, self._states, self._sampler, self._source = policy, tuple(states), sampler, source
        self._limits, self._may_exceed = limits, policy.reranks and sampler is None
        self._texts = [GrowingTree(*each) for each in zip(roots, max_levels, strict=True)]
        self._paths = self._scores = _zeros(len(roots))
        self._labels: Array | None = None
        self._levels = [_root_level(len(roots))]
        self._stops = type(policy).stop is not TreePolicy.stop

    def frontiers(self) -> list[Frontier]:
        """The nodes to expand."""
        return [text.expanding() for text in self._texts]

    def add_level(self, logits: Tensor, widths: Sequence[int], depth: int, vocab: int | None) -> None:
        """Add a level to the trees.

        Args:
            logits: `[nodes, vocab]` of the draft for the frontiers.
            widths: nodes of each frontier.
            depth: the depth of the level.
            vocab: columns of tokens that may be drafted; None for all.
        """
        for text, width in zip(self._texts, widths, strict=True):
            if width:
                text.widths.append(width)
        layer, tokens, keep = self._choose(logits, widths, depth, vocab)
        policy, shape = self._policy, keep.shape
        if (expand := policy.expand(layer)) is not None:
            expand = checked_answer(policy, "expand", expand, "b", shape)
        if (labels := policy.label(layer)) is not None:
            labels = checked_answer(policy, "label", labels, "i", shape)
        at = keep.reshape(-1).nonzero()[0]
        above, paths = at // keep.shape[2], read_only(layer.path_logprobs.reshape(-1)[at])
        scores = paths if layer.scores is layer.path_logprobs else read_only(layer.scores.reshape(-1)[at])
        self._new = _Level(
            tokens=tokens.reshape(-1)[at],
            above=above,
            paths=paths,
            scores=scores,
            labels=None if labels is None else labels.reshape(-1)[at],
            expand=None if expand is None else expand.reshape(-1)[at],
            counts=_counts(at, keep),
            width=keep.shape[1],
        )
        self._join()

    def _join(self) -> None:
        """Append the newest level's nodes to their trees."""
        new, begin = self._new, 0
        columns = new.tokens.tolist(), new.above.tolist(), new.paths.tolist()
        scores = columns[2] if new.scores is new.paths else new.scores.tolist()
        for place, (text, count) in enumerate(zip(self._texts, new.counts, strict=True)):
            part, offset = slice(begin, begin := begin + count), place * new.width
            above = [place - offset for place in columns[1][part]] if offset else columns[1][part]
            text.add(columns[0][part], above, columns[2][part], scores[part])

    def _choose(
        self, logits: Tensor, widths: Sequence[int], depth: int, vocab: int | None
    ) -> tuple[Layer, Array, Array]:
        """The candidates of a level, their tokens, and which of them join the trees, within the budget."""
        policy = self._policy
        logprobs, tokens = best_candidates(logits, policy.candidates(depth), vocab)
        layer = Layer(
            logprobs=read_only(padded(logprobs, widths, -math.inf)),
            parent_logprobs=read_only(self._paths),
            parent_scores=read_only(self._scores),
            depth=depth,
            tree=PartialTree(tuple(self._levels)),
            score=self._score,
            labels=self._labels,
            states=self._states,
            source=self._source,
        )
        keep = policy.keep(layer)
        if keep is not layer.possible:
            keep = checked_answer(policy, "keep", keep, "b", layer.logprobs.shape) & layer.possible
        room = [policy.budget - text.size for text in self._texts]
        if self._sampler:
            return self._draw(self._sampler, layer, keep, logits.log_softmax(-1)[..., :vocab], widths, room)
        overfull = not self._may_exceed and keep.size > min(room) * len(room)
        if overfull and any(np.count_nonzero(own) > left for own, left in zip(keep, room, strict=True)):
            keep = best_mask(layer.scores, keep, room)
        return layer, padded(tokens, widths, 0), keep

    def _score(self, layer: Layer) -> Array:
        scores = self._policy.score(layer)
        if scores is layer.path_logprobs:
            return scores
        return checked_answer(self._policy, "score", scores, "f", layer.logprobs.shape)

    def _draw(
        self, sampler: ChildSampler, layer: Layer, keep: Array, rows: Tensor, widths: Sequence[int], room: Sequence[int]
    ) -> tuple[Layer, Array, Array]:
        """As many drawn children as the policy keeps candidates and the budget has room for."""
        wanted = (keep & (layer.logprobs >= MIN_LOGPROB)).sum(2)
        if self._limits and (most := self._limits.children(self._texts, layer.depth)) is not None:
            wanted = np.minimum(wanted, padded(np.array([*chain.from_iterable(most)]), widths, 0))
        counts = np.minimum(wanted, (np.array(room)[:, None] - (wanted.cumsum(1) - wanted)).clip(0))
        own = [row[:width] for row, width in zip(counts.tolist(), widths, strict=True)]
        tokens, logprobs, probs = sampler.draw(rows, own, layer.depth)
        shape = *counts.shape, max(int(counts.max()), 1)
        ids, seen = np.zeros(shape, dtype=np.int64), np.full(shape, -math.inf, dtype=layer.logprobs.dtype)
        for place, (nodes, values) in enumerate(zip(tokens, logprobs, strict=True)):
            if nodes and nodes[0]:
                ids[place, : len(nodes), : len(nodes[0])] = nodes
                seen[place, : len(nodes), : len(nodes[0])] = values
        begin = 0
        for text, width in zip(self._texts, widths, strict=True):
            text.probs.update(zip(text.frontier[:width], probs[begin : begin + width], strict=True))
            begin += width
        return replace(layer, logprobs=read_only(seen)), ids, np.arange(shape[2]) < counts[..., None]

    def add_chains(self, draft: DraftRows, count: int, vocab: int | None) -> bool:
        """Add all further levels of trees that are chains, where the drafter drafts them in one call."""
        if any(len(text.frontier) != 1 for text in self._texts):
            return False
        found = draft.chain([text.tokens[-1] for text in self._texts], count, sys.maxsize if vocab is None else vocab)
        if found is None:
            return False
        paths = np.cumsum([self._paths[:, 0], *found[1]], axis=0, dtype=np.float32)[1:]
        for text, tokens, own in zip(self._texts, found[0].T.tolist(), paths.T.tolist(), strict=True):
            for token, path in zip(tokens[: text.limit - 1], own, strict=False):
                text.add([token], [0], [path], [path])
                text.frontier = [text.first]
                text.widths.append(1)
        return True

    def narrow(self, depth: int) -> list[int]:
        """Choose the nodes to expand next; how many there are of each text."""
        new, policy = self._new, self._policy
        self._levels.append((new.paths, new.scores, new.counts))
        expand = new.expand.tolist() if new.expand is not None else [True] * len(new.tokens)
        stopped, begin = self._stopped(expand), 0
        for text, count, stops in zip(self._texts, new.counts, stopped, strict=True):
            part, begin = expand[begin : begin + count], begin + count
            ends = stops or text.limit <= depth or (not self._may_exceed and text.size >= policy.budget)
            text.frontier = [] if ends else [text.first + place for place, wanted in enumerate(part) if wanted]
        if self._limits:
            for text, frontier in zip(self._texts, self._limits.expand(self._texts, depth), strict=True):
                text.frontier = [*frontier]
        widths = [len(text.frontier) for text in self._texts]
        if any(widths):
            self._descend(widths)
        return widths

    def _stopped(self, expand: Sequence[bool]) -> Sequence[bool]:
        """Which trees the policy ends here."""
        if not self._stops:
            return [False] * len(self._texts)
        paths = np.where(np.array(expand, dtype=bool), self._new.paths, -math.inf)
        stopped = self._policy.stop(PartialTree(tuple(self._levels)), padded(paths, self._new.counts, -math.inf))
        if stopped is None:
            return [False] * len(self._texts)
        return checked_answer(self._policy, "stop", stopped, "b", (len(self._texts),)).tolist()

    def _descend(self, widths: Sequence[int]) -> None:
        """Go to the new frontiers."""
        new = self._new
        columns = [new.paths, new.scores, *([] if new.labels is None else [new.labels])]
        if sum(widths) < len(new.tokens):
            begins = [0, *accumulate(new.counts)]
            chosen = [
                begin + node - text.first
                for text, begin in zip(self._texts, begins, strict=False)
                for node in text.frontier
            ]
            columns = [column[chosen] for column in columns]
        if len(widths) == 1:
            columns = [column[None] for column in columns]
        else:
            fills = -math.inf, -math.inf, 0
            columns = [padded(column, widths, fill) for column, fill in zip(columns, fills, strict=False)]
        self._paths, self._scores, *labels = columns
        self._labels = read_only(labels[0]) if labels else None

    def trees(self) -> list[DraftTree]:
        """The trees: cut to the best nodes of a policy that re-ranks, unless they were drawn, when every node stays."""
        proposal = self._sampler.proposal if self._sampler else Proposal.TOP_K
        trees = [text.finish(proposal, self._source) for text in self._texts]
        return [tree.best(self._policy.budget) for tree in trees] if self._may_exceed and not self._limits else trees


class _Level(NamedTuple):
    """The nodes of a level, those of all texts behind each other.

    Attributes:
        tokens: token ids.
        above: place of the parent among the places of all frontiers, padding counted.
        paths: path log-probabilities.
        scores: what the policy ranks them by; the same array where that is the path's log-probability.
        labels: what the policy hands down, or None.
        expand: which of them the policy expands, None for all.
        counts: how many there are of each text.
        width: the width of a padded frontier.
    """

    tokens: Array
    above: Array
    paths: Array
    scores: Array
    labels: Array | None
    expand: Array | None
    counts: tuple[int, ...]
    width: int


def best_candidates(logits: Tensor, width: int, vocab: int | None = None) -> tuple[Array, Array]:
    """The log-probabilities and token ids of the best tokens of rows of logits, on the host.

    Args:
        logits: `[nodes, columns]`.
        width: how many are wanted of a row.
        vocab: columns of tokens that may be drafted, None for all; the others count among the probabilities.

    Returns:
        Log-probabilities and ids `[nodes, width]`, or as many columns as there are; the best first.
    """
    allowed = min(logits.shape[-1], vocab or sys.maxsize)
    width = min(width, allowed)
    if (found := native_candidates(logits, width, allowed)) is not None:
        return found
    rows = logits.log_softmax(-1)[..., :allowed]
    if width > 1:
        logprobs, tokens = rows.topk(width)
    else:
        tokens = argmax(rows)[..., None]
        logprobs = rows.gather(-1, tokens)
    logprobs = logprobs if logprobs.dtype.itemsize >= 4 else logprobs.float()  # numpy knows no narrower numbers
    if rows.is_cpu:
        return logprobs.numpy(), tokens.numpy()
    # in one copy; float64 holds every token id
    both = torch.stack((logprobs.double(), tokens.double())).cpu().numpy()
    return both[0].astype(np.float64 if logprobs.dtype is torch.float64 else np.float32), both[1].astype(np.int64)


@lru_cache(maxsize=64)
def _zeros(batch: int) -> Array:
    """What is known of roots when a round begins, `[batch, 1]`."""
    return read_only(np.zeros((batch, 1), dtype=np.float32))


@lru_cache(maxsize=64)
def _root_level(batch: int) -> tuple[Array, Array, Sequence[int]]:
    """Path log-probabilities and scores of roots, and how many there are of each text; see `PartialTree.levels`."""
    return _zeros(batch)[:, 0], read_only(np.full(batch, np.inf, dtype=np.float32)), (1,) * batch


def _counts(at: Array, keep: Array) -> tuple[int, ...]:
    """How many entries of a mask `[batch, ...]` at these flat places each text has."""
    if len(keep) == 1:
        return (len(at),)
    return tuple(np.bincount(at // keep[0].size, minlength=len(keep)).tolist())
