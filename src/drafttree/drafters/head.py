"""Drafts with a head that reads hidden states: EAGLE, EAGLE-2, EAGLE-3 and multi-token-prediction (MTP) layers.

A head is a language model of one or two layers. Each of its rows reads a token and the hidden state at the token
before, and gives logits of the next token. For a committed token that state is the target's, which verification has
computed anyway; for a drafted token it is the head's own output at the parent. So a head drafts trees of any depth, one
pass per level.

Heads may form a sequence (DeepSeek-V3, arXiv 2412.19437, section 2.2): the first reads the target's state at the token
before, each later one the output of the previous head there. The last head drafts all further levels too.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from drafttree.drafters.base import HiddenStates, Session, ShownBySize, rows_of
from drafttree.drafters.session import Frontier, TreeSession, count_pass, level_segments
from drafttree.models import Segment, TreeCache
from drafttree.models.inference import in_inference_mode
from drafttree.models.module.fingerprint import SelectedBackend
from drafttree.models.segment import join, split

PREFILL_CHUNK = 512
NOTHING, LAST = slice(0, 0), slice(-1, None)
"""Rows of each text whose logits are wanted."""


class Head(Protocol):
    """One way to run a head: its module, or the same function on fused weights."""

    def new_cache(self, capacity: int) -> TreeCache:
        """Make an empty KV cache for one text."""
        ...

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        """Make the states `[1, rows, hidden]` that committed tokens read from the target's hidden states."""
        ...

    def __call__(self, segments: Sequence[Segment], states: Tensor) -> tuple[Tensor, Tensor]:
        """Run a pass; keys and values join the drafted rows of each KV cache.

        Args:
            segments: tokens, by text, with the positions of their states: one less than the tokens' own.
            states: `[1, rows, hidden]` the state that each token reads, of all segments.

        Returns:
            Logits `[wanted, vocab]` of the rows that the segments want, over the target's vocabulary, and the states
            `[1, rows, hidden]` that the children of all rows read.
        """
        ...


class HeadDrafter(ShownBySize):
    """Drafts with one head or a sequence of heads, one draft pass per level of the tree.

    Args:
        kind: "eagle" (EAGLE-1 and EAGLE-2), "eagle3" or "mtp".
        modules: the heads, or what runs them.
        hidden_layers: layers of the target whose hidden states the first head reads, in the order of its weights.
        zeros: zeros `[1, 1, width]` for each of these layers, read if the target has no state before the root.
        vocab_size: size of the target's vocabulary.
        nbytes: bytes of the weights that are not shared with the target.
        select: chooses what runs a module, again when a text begins if the module's hooks, layers or weights have
            changed; None if modules run as they are.

    Attributes:
        heads: what runs each module now.
    """

    context: int | None = None
    """No limit: past the length a head was trained at, its rotary positions only get less accurate."""

    def __init__(
        self,
        kind: str,
        modules: Sequence[Any],
        hidden_layers: tuple[int, ...],
        zeros: HiddenStates,
        vocab_size: int,
        nbytes: int,
        select: Callable[[Any], Head] | None = None,
    ) -> None:
        self.kind = kind
        self.modules = modules
        self.hidden_layers = hidden_layers
        self.zeros = zeros
        self.vocab_size = vocab_size
        self.nbytes = nbytes
        self.levels: int | None = None
        self._selected = [SelectedBackend(module, select) for module in modules] if select else []
        self.heads: tuple[Head, ...] = tuple(selection.backend for selection in self._selected) or tuple(modules)

    def __repr__(self) -> str:
        return super().__repr__().replace("(", f"({self.kind}, ", 1)

    def start(self, prompt: list[int], capacity: int) -> Session:
        """Begin a request; its first row pairs the second token with the hidden state of the first."""
        changes = [selection.refresh() for selection in self._selected]
        if any(changes):
            self.heads = tuple(selection.backend for selection in self._selected)
        return HeadSession(self, prompt, capacity)

    @in_inference_mode
    def draft_root(self, sessions: "Sequence[HeadSession]") -> Tensor:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.base.SharedDrafter`."""
        with count_pass(sessions):
            logits = self.read(sessions, [session.unread_rows() for session in sessions], LAST)
        for session in sessions:
            session.begin_tree()
        return logits

    @in_inference_mode
    def draft_level(self, sessions: "Sequence[HeadSession]", frontiers: Sequence[Frontier]) -> Tensor:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.base.SharedDrafter`."""
        heads: tuple[Head, ...] = sessions[0].shared
        level = sessions[0].level + 1
        with count_pass(sessions):
            if level < len(heads):
                segments, states = _whole_trees(sessions, frontiers)
            else:
                states = _inherited(sessions, frontiers)
                segments = level_segments(sessions, frontiers)
            logits, outputs = heads[min(level, len(heads) - 1)](segments, states)
            sizes = [segment.nodes for segment in segments]
            for session, frontier, output in zip(sessions, frontiers, outputs.split(sizes, 1), strict=True):
                session.take(output, frontier)
        return logits

    @in_inference_mode
    def draft_chain(
        self, sessions: "Sequence[HeadSession]", tokens: Sequence[int], count: int, allowed: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Chains behind the trees' only nodes; see `drafttree.drafters.base.SharedDrafter`."""
        draft: Any = getattr(sessions[0].shared[0], "draft_chains", None)
        if not draft or len(sessions[0].shared) > 1:
            return None
        with count_pass(sessions, count):
            frontiers = [Frontier([token], [0]) for token in tokens]
            states = _inherited(sessions, frontiers)
            return draft(level_segments(sessions, frontiers), count, allowed, states)

    def read(self, sessions: "Sequence[HeadSession]", rows: "Sequence[Rows]", wanted: slice) -> Tensor:
        """Run all heads over committed tokens, and commit their rows.

        Args:
            sessions: sessions of the texts.
            rows: per session, its next tokens and the target's states that they read.
            wanted: the tokens of each session whose logits are wanted.

        Returns:
            The wanted logits `[rows, vocab]` of the first head.
        """
        heads = sessions[0].shared
        states = heads[0].fuse(_joined([text_rows.states for text_rows in rows]))
        texts = [*zip(sessions, [text_rows.tokens for text_rows in rows], strict=True)]
        logits, next_rows = _read_with(heads[0], 0, _HeadRows(texts, states), wanted)
        for index, head in enumerate(heads[1:], start=1):
            if next_rows is None:
                break
            _, next_rows = _read_with(head, index, next_rows, NOTHING)
        return logits


class _HeadRows(NamedTuple):
    """Committed tokens that one head reads in one pass.

    Attributes:
        texts: the sessions that have such tokens, each with their ids.
        states: `[1, rows, hidden]` the state that each token reads, of all texts.
    """

    texts: "Sequence[tuple[HeadSession, list[int]]]"
    states: Tensor


def _read_with(head: Head, index: int, rows: _HeadRows, wanted: slice) -> tuple[Tensor, _HeadRows | None]:
    """Compute and commit the rows of one head.

    Args:
        head: the head.
        index: its number.
        rows: what it reads.
        wanted: the tokens of each text whose logits are wanted.

    Returns:
        The wanted logits `[rows, vocab]`, and what the next head reads: None if there is none or it has no rows.
    """
    segments = [session.segment(index, tokens, wanted) for session, tokens in rows.texts]
    logits, outputs = head(segments, rows.states)
    outputs_by_text = split(outputs, [len(tokens) for _, tokens in rows.texts])
    next_texts = list[tuple[HeadSession, list[int]]]()
    next_states = list[Tensor]()
    for (session, tokens), text_outputs in zip(rows.texts, outputs_by_text, strict=True):
        later_tokens, later_states = session.commit_rows(index, tokens, text_outputs)
        if later_tokens:
            next_texts.append((session, later_tokens))
            next_states.append(later_states)
    return logits, _HeadRows(next_texts, join(next_states)) if next_texts else None


def _inherited(sessions: "Sequence[HeadSession]", frontiers: Sequence[Frontier]) -> Tensor:
    """The states `[1, nodes, hidden]` that the nodes of new frontiers read, of all sessions."""
    return join([session.inherited(frontier) for session, frontier in zip(sessions, frontiers, strict=True)])


def _whole_trees(sessions: "Sequence[HeadSession]", frontiers: Sequence[Frontier]) -> tuple[list[Segment], Tensor]:
    """`HeadSession.whole_tree` of each session, with the states of all of them joined."""
    segments = list[Segment]()
    states = list[Tensor]()
    for session, frontier in zip(sessions, frontiers, strict=True):
        segment, tree_states = session.whole_tree(frontier)
        segments.append(segment)
        states.append(tree_states)
    return segments, join(states)


def _joined(states: Sequence[HiddenStates]) -> HiddenStates:
    return states[0] if len(states) == 1 else tuple(torch.cat(layer, 1) for layer in zip(*states, strict=True))


class Rows(NamedTuple):
    """Committed tokens that the first head has not read.

    Attributes:
        tokens: their ids.
        states: the target's hidden states before them, `[1, rows, width]` of each layer.
    """

    tokens: list[int]
    states: HiddenStates


class HeadSession(TreeSession):
    """The KV caches of one request, one for each head.

    Row i of head k belongs to the token k + 1 places after the i-th. Committed rows are computed from the target's
    states alone; rows of drafted tokens, computed from the heads' own outputs, are dropped after the round.

    Attributes:
        level: level of the nodes that were expanded last; the root's is 0.
    """

    def __init__(self, drafter: HeadDrafter, prompt: list[int], capacity: int) -> None:
        self.caches = [head.new_cache(capacity) for head in drafter.heads]
        self._device = drafter.zeros[0].device
        super().__init__(drafter, self.caches[-1], prompt[1:], self._device, shared=drafter.heads)
        self._first = prompt[:1]
        self._states = list[HiddenStates]()
        self._newest = [*drafter.zeros[:1]] * len(self.caches)  # each head's output at the last committed token

    @property
    def nbytes(self) -> int:
        return sum(cache.nbytes for cache in self.caches)

    @in_inference_mode
    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        rows = max(min(tokens, len(self.unread) - 1), 0)
        for start in range(0, rows, PREFILL_CHUNK):
            chunk = slice(start, min(start + PREFILL_CHUNK, rows))
            chunk_rows = Rows(self.unread[chunk], tuple(state[:, chunk] for state in hidden_states))
            self.drafter.read([self], [chunk_rows], NOTHING)
        if tokens >= len(self.unread) > 0:  # the last state goes with the last token, the first round's root
            self._states = [tuple(state[:, rows:] for state in hidden_states)]
        self.unread = self.unread[rows:]

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        for cache in self.caches:
            cache.commit([])
        self.unread += tokens
        self._states.append(hidden_states)

    @in_inference_mode
    def read_rest(self) -> None:
        """As in `Session`."""
        if len(self.caches) == 1 and self.unread and self._states:
            self.drafter.read([self], [self.unread_rows()], NOTHING)
            self.begin_tree()

    def snapshot(self, tokens: int) -> object:
        """As in `Session`.

        With several heads nothing is kept: a later head's next row reads the previous head's output at the last kept
        token, but only the output at the last committed token is there.
        """
        return super().snapshot(tokens) if len(self.caches) == 1 else None

    def unread_rows(self) -> Rows:
        """The unread tokens, and the target's states that they read.

        After a prompt of one token there are none: a row of that token and zeros is computed, but not kept.
        """
        if not self.unread:
            return Rows(self._first, self.drafter.zeros)
        return Rows(self.unread, _joined(self._states))

    def segment(self, head: int, tokens: list[int], wanted: slice) -> Segment:
        """The next tokens of the text, as rows of a head."""
        return Segment.of_text(self.caches[head], tokens)._replace(wanted=wanted)

    def commit_rows(self, head: int, tokens: list[int], outputs: Tensor) -> tuple[list[int], Tensor]:
        """Commit a head's rows, and make those of the next head, which begin one token later.

        Args:
            head: number of the head.
            tokens: token ids of its rows.
            outputs: `[1, rows, hidden]` its outputs at them.

        Returns:
            The tokens that the next head reads, none if there is no such head, and the states `[1, rows, hidden]` that
            they read: the outputs at the tokens before.
        """
        if head == 0:
            self._hidden = outputs[:, -1:]
        cache = self.caches[head]
        if tokens is self._first:
            cache.commit([])
            return [], outputs
        begins = cache.length == 0
        cache.commit(range(len(tokens)))
        if head == len(self.caches) - 1:
            return [], outputs
        previous_output, self._newest[head] = self._newest[head], outputs[:, -1:]
        if begins:
            return tokens[1:], outputs[:, :-1]
        return tokens, torch.cat((previous_output, outputs[:, :-1]), 1)

    def begin_tree(self) -> None:
        """Begin a tree at the last token, whose rows are committed."""
        self.unread = []
        self._states = []
        self.level = 0
        self._tree = list[Frontier]()
        self._seen = list[np.ndarray]()
        self._outputs = self._hidden[:, :0]
        self.forget_tree()

    def inherited(self, frontier: Frontier) -> Tensor:
        """The states `[1, frontier, hidden]` that the nodes of a new frontier read: outputs at their parents."""
        if frontier.keeps_all:
            return self._hidden[:, : len(frontier.tokens)]
        return rows_of(self._hidden, frontier.origins)

    def whole_tree(self, frontier: Frontier) -> tuple[Segment, Tensor]:
        """All drafted nodes, those of a new frontier last, as rows of the next head, and the states that they read.

        That head has no rows of them yet. The states are the previous head's outputs at their parents.
        """
        head = self.level + 1
        cache = self.caches[head]
        self._tree.append(frontier)
        self._seen.append(self.next_level(frontier)[1])
        sizes = [len(level_frontier.tokens) for level_frontier in self._tree]
        nodes = sum(sizes)
        visible = np.concatenate([np.pad(mask, ((0, 0), (0, nodes - mask.shape[1]))) for mask in self._seen])
        tokens = list[int]()
        parents = list[int]()  # among the root and all nodes
        parent_start = 0
        for level_frontier in self._tree:
            parents += [parent_start + origin for origin in level_frontier.origins]
            parent_start = 1 + len(tokens)
            tokens += level_frontier.tokens
        positions = cache.next_position + np.repeat(np.arange(len(sizes)), sizes)
        states = rows_of(torch.cat((self._newest[head - 1], self._outputs), 1), parents)
        return Segment(cache, np.array(tokens), positions, visible, slice(nodes - sizes[-1], None)), states

    def take(self, outputs: Tensor, frontier: Frontier) -> None:
        """Keep the outputs `[1, rows, hidden]` of a pass, whose last rows are those of the new frontier."""
        self._outputs = outputs
        self._hidden = outputs[:, -len(frontier.tokens) :]
        self.level += 1
