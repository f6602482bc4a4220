"""The growth of one recorded tree: which candidates joined it, which were cut, and by which rule.

Growth is followed again on the host from what the policy answered. A policy that re-ranks keeps all that it let in
until the tree is finished; with any other, what joined is what the finished tree has.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy import ndarray as Array
from torch import Tensor

from drafttree.core.sampling import Sampling
from drafttree.core.tree import Proposal
from drafttree.engine.tree_growth import MIN_LOGPROB, best_candidates
from drafttree.evaluation.trace.recording import RecordedLevel, RecordedRound
from drafttree.evaluation.trace.trace import Rule

MOST_CUT = 24
"""Candidates that were cut of which a round keeps the most probable; the others are only counted."""


@dataclass(eq=False)
class Candidate:
    """A candidate of a level, whether it joined the tree or not.

    Attributes:
        token: the token id.
        parent: a node that joined the tree, None for the root.
        depth: the depth of the level.
        rank: its place among its siblings, by the drafter's probability or in order of drawing; -1 for the root.
        draft: its probability given its parent by the drafter, None for the root.
        seen: this probability as the policy saw it.
        path: log-probability of its path as the policy saw it.
        place: the place in the finished tree, None if it is not there.
        row: the number of the level of its children and its place in the frontier, None if it was not expanded.
        rule: what cut it, or ended the path there.
    """

    token: int
    parent: "Candidate | None" = None
    depth: int = 0
    rank: int = -1
    draft: float | None = None
    seen: float | None = None
    path: float = 0.0
    place: int | None = 0
    row: tuple[int, int] | None = None
    rule: Rule = Rule.NONE


@dataclass
class LevelTable:
    """A recorded level on the host.

    Attributes:
        possible: whether a candidate can be a node, bool `[frontier, candidates]`.
        keep: whether the policy keeps a candidate, bool `[frontier, candidates]`.
        logprobs: log-probabilities of the candidates as the policy saw them, `[frontier, candidates]`.
        paths: log-probabilities of their paths as the policy saw them, `[frontier, candidates]`.
        tokens: token ids of the candidates.
        draft: probabilities of the drafter, `[frontier, vocab]`.
        seen: log-probabilities as the policy saw them, `[frontier, vocab]`.
        expand: what the policy expands, bool `[frontier, candidates or drawn children]`, None for all.
        stopped: whether the policy ended the tree behind this level.
        drafted_from: as for `RecordedLevel`.
    """

    possible: Array
    keep: Array
    logprobs: Array
    paths: Array
    tokens: list[list[int]]
    draft: Tensor
    seen: Tensor
    expand: list[list[bool]] | None
    stopped: bool
    drafted_from: set[int] | None

    @classmethod
    def of(cls, level: RecordedLevel, sampling: Sampling, vocab: int) -> "LevelTable":
        """The table of a level that a policy has decided on."""
        layer, keep = level.decided
        seen = level.guided.log_softmax(-1)[..., :vocab]
        _, tokens = best_candidates(level.guided, layer.logprobs.shape[1], vocab)
        draft = sampling.process(level.logits).softmax(-1)[..., :vocab]
        draft, seen = draft.cpu(), seen.cpu()
        columns = layer.possible, keep & layer.possible, layer.logprobs, layer.path_logprobs
        answers = level.expanded, bool(level.stopped), level.drafted_from
        return cls(*columns, tokens.tolist(), draft, seen, *answers)

    def candidate(self, parent: Candidate, row: int, rank: int, token: int) -> Candidate:
        """A candidate behind the node at a place of the frontier."""
        seen = float(self.seen[row, token])
        return Candidate(
            token=token,
            parent=parent,
            depth=parent.depth + 1,
            rank=rank,
            draft=float(self.draft[row, token]),
            seen=math.exp(seen),
            path=parent.path + seen,
        )


class Growth:
    """A tree's growth.

    Args:
        record: the record of the round.
        sampling: the sampling of the text.
        reranks: whether the policy drops nodes in the end.
        budget: the budget of the policy.

    Attributes:
        joined: every candidate that joined the tree while it grew, the root first.
        cut: the most probable candidates that did not join, or that were dropped in the end.
        counts: how many candidates each rule has cut.
        tables: the recorded levels.
        drawn: whether children were drawn, so that candidates are places, not tokens.
    """

    def __init__(self, record: RecordedRound, sampling: Sampling, *, reranks: bool, budget: int) -> None:
        tree, logits, _ = record.judged
        self._tree, self._reranks = tree, reranks and tree.proposal is Proposal.TOP_K
        self.drawn, self._full = tree.proposal is not Proposal.TOP_K, tree.size >= budget
        self.tables = [LevelTable.of(level, sampling, logits.shape[-1]) for level in record.levels]
        self.cut, self.counts = list[Candidate](), Counter[Rule]()
        frontier = [Candidate(self._tree.tokens[0])]
        self.joined = list(frontier)
        for number, table in enumerate(self.tables):
            frontier = frontier[: len(table.tokens)]
            for row, parent in enumerate(frontier):
                parent.row = number, row
            frontier = self._grow(frontier, table)
        self._finish()

    def _grow(self, frontier: list[Candidate], table: LevelTable) -> list[Candidate]:
        """Follow the growth of one level; the frontier of the next one."""
        after, joined = list[Candidate](), np.zeros_like(table.keep)
        for number, (row, rank, token, place) in enumerate(self._members(frontier, table)):
            node = table.candidate(frontier[row], row, rank, token)
            node.place = place
            self.joined.append(node)
            wanted = table.expand is None or table.expand[row][rank]
            if wanted if table.drafted_from is None else number in table.drafted_from:
                after.append(node)
            else:
                node.rule = Rule.EXPAND
            if not self.drawn:
                joined[row, rank] = True
        self._cut(frontier, table, joined)
        return after

    def _members(self, frontier: list[Candidate], table: LevelTable) -> Iterator[tuple[int, int, int, int | None]]:
        """The candidates of a level that joined: row of the frontier, rank, token, and place in the finished tree."""
        for row, parent in enumerate(frontier):
            below = [] if parent.place is None else self._tree.children[parent.place]
            tokens = [self._tree.tokens[child] for child in below]
            if self.drawn:
                yield from ((row, order, *pair) for order, pair in enumerate(zip(tokens, below, strict=True)))
                continue
            places = dict(zip(tokens, below, strict=True))
            if self._reranks:
                tokens = [table.tokens[row][rank] for rank in table.keep[row].nonzero()[0].tolist()]
            yield from ((row, table.tokens[row].index(token), token, places.get(token)) for token in tokens)

    def _cut(self, frontier: list[Candidate], table: LevelTable, joined: Array) -> None:
        """Note what the policy left out of a level, and what found no room."""
        if self.drawn:
            drawn = sum(len(self._tree.children[parent.place or 0]) for parent in frontier)
            self.counts[Rule.BUDGET] += int((table.keep & (table.logprobs >= MIN_LOGPROB)).sum()) - drawn
            return
        for rule, mask in ((Rule.KEEP, table.possible & ~table.keep), (Rule.BUDGET, table.keep & ~joined)):
            count = int(mask.sum())
            self.counts[rule] += count
            best = np.where(mask, -table.paths, math.inf).argsort(axis=None, kind="stable")[: min(MOST_CUT, count)]
            for row, rank in (divmod(index, mask.shape[1]) for index in best.tolist()):
                found = table.candidate(frontier[row], row, rank, table.tokens[row][rank])
                found.place, found.rule = None, rule
                self.cut.append(found)

    def _finish(self) -> None:
        """Note what was dropped in the end and what ended each path; only the most probable cut candidates stay."""
        dropped = [node for node in self.joined if node.place is None]
        for node in dropped:
            node.rule = Rule.RERANK
        for node in self.joined:
            if node.place is not None:
                leaf = not self._tree.children[node.place]
                node.rule = (node.rule or self._ending(node)) if leaf else Rule.NONE
        self.counts[Rule.RERANK] = len(dropped)
        self.counts = +self.counts
        self.cut = sorted([*self.cut, *dropped], key=lambda node: (-node.path, node.depth))[:MOST_CUT]

    def _ending(self, leaf: Candidate) -> Rule:
        """What ended the path at a leaf of the finished tree that the policy did expand, or would have."""
        if leaf.row is not None:
            level, row = leaf.row
            kept = bool(self.tables[level].keep[row].any())
            return (Rule.RERANK if self._reranks else Rule.BUDGET) if kept else Rule.KEEP
        if leaf.depth and self.tables[leaf.depth - 1].stopped:
            return Rule.STOP
        return Rule.BUDGET if self._full and not self._reranks else Rule.DEPTH
