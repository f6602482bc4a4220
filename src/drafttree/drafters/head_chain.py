"""Drafts with several heads in a chain: the MTP layers of a checkpoint that has more than one.

Each head reads a state at the token before: the first head the target's state, each later head the previous head's
output (DeepSeek-V3, arXiv 2412.19437, section 2.2). So the rows of each head begin one token later than those of the
previous head. Each head drafts one level, and the last head also all deeper levels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drafttree.drafters.base import HiddenStates, Session, rows_of
from drafttree.drafters.head import (
    NO_ROWS,
    Head,
    HeadDrafter,
    HeadSession,
    Rows,
    inherited_states,
    split_by_segment,
)
from drafttree.drafters.ranked_logits import RANKED, DraftLogits
from drafttree.drafters.session import Frontier, count_pass, level_segments
from drafttree.models import Segment
from drafttree.models.inference import in_inference_mode
from drafttree.models.segment import join


class HeadChainDrafter(HeadDrafter):
    """Drafts with a chain of heads, one draft pass per level of the tree; arguments as of `HeadDrafter`."""

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request. The first head's first row reads the second token and the hidden state of the first."""
        return HeadChainSession(self, self.refreshed_heads(), prompt, capacity)

    @in_inference_mode
    def draft_level(self, sessions: Sequence[Any], frontiers: Sequence[Frontier]) -> DraftLogits:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.base.SharedDrafter`.

        On its first level, a head also computes the rows of all earlier nodes.
        """
        heads = sessions[0].heads
        level = sessions[0].level + 1
        with count_pass(sessions):
            if level < len(heads):
                head = heads[level]
                segments, states = _whole_trees(sessions, frontiers)
            else:
                head = heads[-1]
                states = inherited_states(sessions, frontiers)
                segments = level_segments(sessions, frontiers)
            logits, outputs = head(segments, states)
            outputs_by_text = split_by_segment(outputs, segments)
            for session, frontier, text_outputs in zip(sessions, frontiers, outputs_by_text, strict=True):
                session.end_level(frontier, text_outputs)
        return logits

    def draft_chain(self, sessions: Sequence[Any], tokens: Sequence[int], count: int, allowed: int) -> None:
        """Return None: one call can draft a chain with a single head only."""

    def read(self, sessions: Sequence[Any], rows: Sequence[Rows], wanted_rows: slice) -> DraftLogits:
        """Run all heads over committed tokens, and commit their rows; arguments as of `HeadDrafter.read`.

        Returns:
            The wanted logits `[rows, vocab]` of the first head.
        """
        logits = super().read(sessions, rows, wanted_rows)
        for index, head in enumerate(sessions[0].heads[1:], start=1):
            readers = [session for session in sessions if session.handed_on.tokens]
            if not readers:
                break
            segments = [session.handed_segment(index) for session in readers]
            _, outputs = head(segments, join([session.handed_on.states for session in readers]))
            outputs_by_text = split_by_segment(outputs, segments)
            for session, text_outputs in zip(readers, outputs_by_text, strict=True):
                session.commit_head(index, session.handed_on.tokens, text_outputs)
        return logits


def _whole_trees(sessions: "Sequence[HeadChainSession]", frontiers: Sequence[Frontier]) -> tuple[list[Segment], Tensor]:
    """`HeadChainSession.whole_tree` of each session, with all states joined."""
    segments = list[Segment]()
    states = list[Tensor]()
    for session, frontier in zip(sessions, frontiers, strict=True):
        segment, tree_states = session.whole_tree(frontier)
        segments.append(segment)
        states.append(tree_states)
    return segments, join(states)


class HandedRows(NamedTuple):
    """Input of a chain's next head.

    Attributes:
        tokens: ids of the tokens that the next head reads.
        states: `[1, tokens, hidden]` the states that they read: the previous head's outputs at the tokens before.
    """

    tokens: list[int]
    states: Tensor


class DraftedNodes:
    """The drafted nodes of a tree, level by level.

    Attributes:
        tokens: token ids.
        parents: index of each node's parent; the root is 0 and the first drafted node is 1.
        levels: level of each node; 0 for the root's children.
    """

    def __init__(self) -> None:
        self.tokens = list[int]()
        self.parents = list[int]()
        self.levels = list[int]()
        self._first_parent = 0  # index of the first node of the newest frontier

    def add(self, frontier: Frontier) -> None:
        """Add the next level."""
        level = self.levels[-1] + 1 if self.levels else 0
        self.parents += [self._first_parent + origin for origin in frontier.origins]
        self._first_parent = 1 + len(self.tokens)
        self.tokens += frontier.tokens
        self.levels += [level] * len(frontier.tokens)

    def visible(self) -> np.ndarray:
        """Bool `[nodes, nodes]`: row i is True at node i and at its ancestors below the root."""
        visible = np.eye(1 + len(self.parents), dtype=bool)
        for node, parent in enumerate(self.parents, start=1):
            visible[node] |= visible[parent]
        return visible[1:, 1:]


class HeadChainSession(HeadSession):
    """One request's KV caches, one for each head.

    Row i of head k, counted from 0, belongs to the text's token i + k + 1.

    Args:
        drafter: the drafter.
        heads: its heads.
        prompt: token ids of the prompt.
        capacity: tokens that each KV cache should have room for.

    Attributes:
        heads: as given; `head` is the first.
        caches: the KV cache of each head; `cache` is that of the last, which drafts all deeper levels.
        level: level of the nodes that were expanded last; the root's is 0.
        handed_on: input for the next head, from the head that has read committed tokens last.
    """

    handed_on: HandedRows

    def __init__(self, drafter: HeadChainDrafter, heads: tuple[Head, ...], prompt: list[int], capacity: int) -> None:
        super().__init__(drafter, heads[0], prompt, capacity, shared=heads)
        self.heads = heads
        self.caches = [self.cache]
        for head in heads[1:]:
            self.caches.append(head.new_cache(capacity))
        self.cache = self.caches[-1]
        self.level = 0
        self._newest_outputs = [drafter.zeros[0]] * len(heads)  # per head, its output at the last committed token

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        for cache in self.caches[:-1]:
            cache.commit([])
        super().commit(tokens, hidden_states)

    def read_rest(self) -> None:
        """Read nothing, since nothing is kept."""

    def snapshot(self, tokens: int) -> object:
        """Keep nothing.

        To continue, a later head would need the previous head's output at the last kept token. Only the output at the
        last committed token is stored.
        """

    def text_segment(self, tokens: list[int], wanted_rows: slice) -> Segment:
        """The segment of the text's next tokens, for the first head."""
        return Segment.of_text(self.caches[0], tokens)._replace(wanted=wanted_rows, ranked=RANKED)

    def handed_segment(self, index: int) -> Segment:
        """The segment of the tokens handed on to a head; it needs no logits."""
        return Segment.of_text(self.caches[index], self.handed_on.tokens)._replace(wanted=NO_ROWS)

    def commit_rows(self, rows: Rows, outputs: Tensor) -> None:
        """Commit rows of the first head, given its outputs `[1, rows, hidden]`, and hand them on to the second."""
        self.outputs = outputs[:, -1:]
        if rows.kept:
            self.commit_head(0, rows.tokens, outputs)
        else:
            self.caches[0].commit([])
            self.handed_on = HandedRows([], outputs[:, :0])

    def commit_head(self, index: int, tokens: list[int], outputs: Tensor) -> None:
        """Commit rows of one head, and hand its outputs on to the next one, if there is one.

        Args:
            index: the index of the head.
            tokens: token ids of its rows.
            outputs: `[1, rows, hidden]` its outputs at them.
        """
        cache = self.caches[index]
        begins = cache.length == 0
        cache.commit(range(len(tokens)))
        if index + 1 == len(self.caches):
            return
        previous_output = self._newest_outputs[index]
        self._newest_outputs[index] = outputs[:, -1:]
        if begins:
            self.handed_on = HandedRows(tokens[1:], outputs[:, :-1])
        else:
            self.handed_on = HandedRows(tokens, torch.cat((previous_output, outputs[:, :-1]), 1))

    def begin_tree(self) -> None:
        """Begin a tree at the last token, whose rows are committed."""
        super().begin_tree()
        self.level = 0
        self._tree = DraftedNodes()
        self._tree_outputs = self.outputs[:, :0]  # outputs at all nodes of the head that drafted the newest level

    def whole_tree(self, frontier: Frontier) -> tuple[Segment, Tensor]:
        """The segment of all drafted nodes, the new frontier last, for the next head, and the states that they read.

        The next head has no rows of these nodes yet. The states are the previous head's outputs at their parents.
        """
        self.next_level(frontier)
        self._tree.add(frontier)
        cache = self.caches[self.level + 1]
        positions = cache.next_position + np.array(self._tree.levels)
        newest_nodes = slice(len(self._tree.tokens) - len(frontier.tokens), None)
        tokens = np.array(self._tree.tokens)
        segment = Segment(cache, tokens, positions, self._tree.visible(), newest_nodes, RANKED)
        previous_outputs = torch.cat((self._newest_outputs[self.level], self._tree_outputs), 1)
        return segment, rows_of(previous_outputs, self._tree.parents)

    def end_level(self, frontier: Frontier, outputs: Tensor) -> None:
        """Keep the outputs `[1, rows, hidden]` of a pass, whose last rows are those of the new frontier."""
        self._tree_outputs = outputs
        self.outputs = outputs[:, -len(frontier.tokens) :]
        self.level += 1
