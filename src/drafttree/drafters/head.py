"""Drafts with a head that reads hidden states: EAGLE, EAGLE-2, EAGLE-3 or a multi-token-prediction (MTP) layer.

A head is a language model of one or two layers. Each row reads a token and the hidden state at the token before, and
gives logits of the next token. For a committed token that state is the target's, which verification has computed. For a
drafted token it is the head's own output at the parent. So a head drafts trees of any depth, one pass per level. See
`drafttree.drafters.head_chain` for several heads in a chain.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from drafttree.drafters.base import HiddenStates, Session, ShownBySize, rows_of
from drafttree.drafters.ranked_logits import RANKED, DraftLogits
from drafttree.drafters.session import Frontier, TreeSession, count_pass, level_segments
from drafttree.models import Segment, TreeCache
from drafttree.models.inference import in_inference_mode
from drafttree.models.module.fingerprint import SelectedBackend
from drafttree.models.segment import join, split

PREFILL_CHUNK = 512
NO_ROWS, LAST_ROW = slice(0, 0), slice(-1, None)
"""Rows of each text whose logits are computed."""


class Head(Protocol):
    """A head, or a backend that computes the same."""

    def new_cache(self, capacity: int) -> TreeCache:
        """Make an empty KV cache for one text."""
        ...

    def fuse(self, hidden_states: HiddenStates) -> Tensor:
        """Fuse the target's hidden states to the states `[1, rows, hidden]` that committed tokens read."""
        ...

    def __call__(self, segments: Sequence[Segment], states: Tensor) -> tuple[DraftLogits, Tensor]:
        """Run a pass; keys and values join the drafted rows of each KV cache.

        Args:
            segments: the tokens of each text. Positions are those of the states, one less than the tokens' own.
            states: `[1, rows, hidden]` the state that each token of all segments reads.

        Returns:
            Logits `[wanted, vocab]` of the segments' wanted rows over the target's vocabulary, and the states
            `[1, rows, hidden]` that the children of all rows read.
        """
        ...


class HeadDrafter(ShownBySize):
    """Drafts with one head, one draft pass per level of the tree.

    Args:
        kind: "eagle" (EAGLE-1 and EAGLE-2), "eagle3" or "mtp".
        modules: the head, or a backend that runs it, as the only item; for several heads, use `HeadChainDrafter`.
        hidden_layers: layers of the target whose hidden states the head reads, in the order of its weights.
        zeros: zeros `[1, 1, width]` for each of these layers, for a root without a state before it.
        vocab_size: size of the target's vocabulary.
        nbytes: bytes of the weights that are not shared with the target.
        select: chooses the backend of a module. It is called again when a text begins, if the module's hooks, layers or
            weights have changed. None runs modules as they are.

    Attributes:
        heads: the present backend of each module.
    """

    context: int | None = None
    """No limit: beyond the length that a head was trained at, its drafts only become less accurate."""

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
        """Begin a request. Its first row reads the second token and the hidden state of the first."""
        (head,) = self.refreshed_heads()
        return HeadSession(self, head, prompt, capacity)

    def refreshed_heads(self) -> tuple[Head, ...]:
        """The heads, on new backends if their modules have changed."""
        has_changed = False
        for selection in self._selected:
            has_changed |= selection.refresh()
        if has_changed:
            self.heads = tuple(selection.backend for selection in self._selected)
        return self.heads

    @in_inference_mode
    def draft_root(self, sessions: "Sequence[HeadSession]") -> DraftLogits:
        """Logits `[sessions, vocab]` of the token after each root; see `drafttree.drafters.base.SharedDrafter`."""
        with count_pass(sessions):
            logits = self.read(sessions, [session.unread_rows() for session in sessions], LAST_ROW)
        for session in sessions:
            session.begin_tree()
        return logits

    @in_inference_mode
    def draft_level(self, sessions: "Sequence[HeadSession]", frontiers: Sequence[Frontier]) -> DraftLogits:
        """Logits `[nodes, vocab]` after each node; see `drafttree.drafters.base.SharedDrafter`."""
        with count_pass(sessions):
            states = inherited_states(sessions, frontiers)
            segments = level_segments(sessions, frontiers)
            logits, outputs = sessions[0].head(segments, states)
            for session, frontier_outputs in zip(sessions, split_by_segment(outputs, segments), strict=True):
                session.outputs = frontier_outputs
        return logits

    @in_inference_mode
    def draft_chain(
        self, sessions: "Sequence[HeadSession]", tokens: Sequence[int], count: int, allowed: int
    ) -> tuple[np.ndarray, np.ndarray] | None:
        """Draft chains after the trees' only nodes; see `drafttree.drafters.base.SharedDrafter`."""
        draft: Any = getattr(sessions[0].head, "draft_chains", None)
        if not draft:
            return None
        with count_pass(sessions, count):
            frontiers = [Frontier([token], [0]) for token in tokens]
            states = inherited_states(sessions, frontiers)
            return draft(level_segments(sessions, frontiers), count, allowed, states)

    def read(self, sessions: "Sequence[HeadSession]", rows: "Sequence[Rows]", wanted_rows: slice) -> DraftLogits:
        """Run the head over committed tokens, and commit their rows.

        Args:
            sessions: sessions of the texts.
            rows: for each session, its next tokens and the target's states that they read.
            wanted_rows: which tokens of each session need logits.

        Returns:
            The wanted logits `[rows, vocab]`.
        """
        head = sessions[0].head
        segments = list[Segment]()
        states = list[HiddenStates]()
        for session, text_rows in zip(sessions, rows, strict=True):
            segments.append(session.text_segment(text_rows.tokens, wanted_rows))
            states.append(text_rows.states)
        logits, outputs = head(segments, head.fuse(_join_texts(states)))
        outputs_by_text = split_by_segment(outputs, segments)
        for session, text_rows, text_outputs in zip(sessions, rows, outputs_by_text, strict=True):
            session.commit_rows(text_rows, text_outputs)
        return logits


def inherited_states(sessions: "Sequence[HeadSession]", frontiers: Sequence[Frontier]) -> Tensor:
    """The states `[1, nodes, hidden]` that the nodes of all sessions' new frontiers read."""
    return join([session.inherited(frontier) for session, frontier in zip(sessions, frontiers, strict=True)])


def split_by_segment(states: Tensor, segments: Sequence[Segment]) -> Sequence[Tensor]:
    """The states `[1, nodes, hidden]` of each segment of a pass."""
    return split(states, [segment.nodes for segment in segments])


def _join_texts(states: Sequence[HiddenStates]) -> HiddenStates:
    """Join the states of several texts, for each layer."""
    return states[0] if len(states) == 1 else tuple(torch.cat(layer, 1) for layer in zip(*states, strict=True))


class Rows(NamedTuple):
    """Tokens of a text that a head reads, and the target's states that they read.

    Attributes:
        tokens: token ids.
        states: the target's hidden states at the tokens before, `[1, rows, width]` for each layer.
        kept: whether the rows join the KV cache; if not, only logits and outputs are used.
    """

    tokens: list[int]
    states: HiddenStates
    kept: bool = True


class HeadSession(TreeSession):
    """The KV cache of one request.

    Row i belongs to the text's token i + 1. Committed rows are computed from the target's states. Rows of drafted
    tokens are computed from the head's outputs, and dropped after the round.

    Args:
        drafter: the drafter.
        head: the head that reads committed tokens.
        prompt: token ids of the prompt.
        capacity: tokens that the KV cache should have room for.
        shared: as for `Session`; by default the head.

    Attributes:
        head: as given.
        outputs: `[1, nodes, hidden]` the head's outputs at the nodes that were expanded last, first at the root.
    """

    outputs: Tensor

    def __init__(
        self, drafter: HeadDrafter, head: Head, prompt: list[int], capacity: int, shared: object = None
    ) -> None:
        device = drafter.zeros[0].device
        super().__init__(drafter, head.new_cache(capacity), prompt[1:], device, head if shared is None else shared)
        self.head = head
        self._first_token = prompt[:1]
        self._states = list[HiddenStates]()

    @in_inference_mode
    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        rows = max(min(tokens, len(self.unread) - 1), 0)
        for start in range(0, rows, PREFILL_CHUNK):
            chunk = slice(start, min(start + PREFILL_CHUNK, rows))
            chunk_rows = Rows(self.unread[chunk], tuple(state[:, chunk] for state in hidden_states))
            self.drafter.read([self], [chunk_rows], NO_ROWS)
        if tokens >= len(self.unread) > 0:  # the last state belongs to the last token, which is the first root
            self._states = [tuple(state[:, rows:] for state in hidden_states)]
        self.unread = self.unread[rows:]

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        self.cache.commit([])
        self.unread += tokens
        self._states.append(hidden_states)

    @in_inference_mode
    def read_rest(self) -> None:
        """As in `Session`."""
        if self.unread and self._states:
            self.drafter.read([self], [self.unread_rows()], NO_ROWS)
            self.begin_tree()

    def unread_rows(self) -> Rows:
        """The unread tokens, and the target's states that they read.

        After a prompt of one token there are none. Then a row of that token and zeros is computed, but not kept.
        """
        if not self.unread:
            return Rows(self._first_token, self.drafter.zeros, kept=False)
        return Rows(self.unread, _join_texts(self._states))

    def text_segment(self, tokens: list[int], wanted_rows: slice) -> Segment:
        """The next tokens of the text, as rows of the head."""
        return Segment.of_text(self.cache, tokens)._replace(wanted=wanted_rows, ranked=RANKED)

    def commit_rows(self, rows: Rows, outputs: Tensor) -> None:
        """Commit rows of the head, given its outputs `[1, rows, hidden]`."""
        self.cache.commit(range(len(rows.tokens)) if rows.kept else [])
        self.outputs = outputs[:, -1:]

    def begin_tree(self) -> None:
        """Begin a tree at the last token, whose row is committed."""
        self.unread = []
        self._states = []
        self.forget_tree()

    def inherited(self, frontier: Frontier) -> Tensor:
        """The states `[1, frontier, hidden]` that the nodes of a new frontier read: outputs at their parents."""
        if frontier.keeps_all:
            return self.outputs[:, : len(frontier.tokens)]
        return rows_of(self.outputs, frontier.origins)
