"""Draft passes that several sessions share, and sessions that get their text later.

A drafter whose sessions can share passes has `draft_root` and `draft_level` for lists of sessions. All state is in the
sessions, so a session may draft with others in one round and alone in the next.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from drafttree.core.candidates import Candidates
from drafttree.core.errors import ConfigError
from drafttree.drafters.base import Frontier, HiddenStates, Session, SharedDrafter, accepted_rows
from drafttree.drafters.ranked_logits import RANKED, DraftLogits, RankedLogits
from drafttree.drafters.timing import time_together
from drafttree.models import Segment, TreeCache

MAX_MISSED_PASSES = 32
"""After this many missed passes, the rows of accepted tokens are copied, so that the other rows can be freed."""
MAX_MISSED_TOKENS = 1024
"""The most tokens that a session may miss; their hidden states are kept for it."""


class TreeSession(Session):
    """Base of sessions with a KV cache. Its drafted rows are those of the nodes expanded in this round.

    Args:
        drafter: as for `Session`.
        cache: the cache of the session, empty.
        unread: the tokens of the prompt that need rows.
        device: as for `Session`.
        shared: as for `Session`.

    Attributes:
        cache: as given.
        unread: committed tokens without rows.
    """

    def __init__(
        self,
        drafter: SharedDrafter,
        cache: TreeCache,
        unread: Sequence[int],
        device: torch.device,
        shared: object = None,
    ) -> None:
        super().__init__(drafter, device, shared)
        self.cache = cache
        self.unread = [*unread]
        self.forget_tree()

    @property
    def nbytes(self) -> int:
        return self.cache.nbytes

    def snapshot(self, tokens: int) -> object:
        return self.cache.copy_rows(tokens)

    def restore(self, snapshot: object, tokens: int) -> int:
        restored_rows = self.cache.copy_from(snapshot, tokens) if isinstance(snapshot, TreeCache) else 0
        self.unread = self.unread[restored_rows:]
        return restored_rows

    def forget_tree(self) -> None:
        """Begin a new tree; the root's row is committed."""
        self._levels = 0
        self._visible = np.zeros((1, 0), dtype=bool)

    def next_level(self, frontier: Frontier) -> tuple[int, np.ndarray]:
        """The position of a new frontier's nodes, and the mask `[frontier, drafted rows]` of what they attend to."""
        position = self.cache.next_position + self._levels
        count = len(frontier.tokens)
        past_rows = self._visible.shape[1]
        visible = np.zeros((count, past_rows + count), dtype=bool)
        visible[:, :past_rows] = self._visible[frontier.origins]
        visible.reshape(-1)[past_rows :: past_rows + count + 1] = True
        self._visible = visible
        self._levels += 1
        return position, self._visible


def level_segments(sessions: Sequence[TreeSession], frontiers: Sequence[Frontier]) -> list[Segment]:
    """The segments of new frontiers, for one pass."""
    segments = list[Segment]()
    for session, frontier in zip(sessions, frontiers, strict=True):
        position, visible = session.next_level(frontier)
        tokens = np.array(frontier.tokens)
        positions = np.full(len(tokens), position)
        segments.append(Segment(session.cache, tokens, positions, visible, ranked=RANKED))
    return segments


def draft_root(sessions: Sequence[Session]) -> DraftLogits | Candidates:
    """Logits `[sessions, vocab]` of the token after each root, in one pass if the sessions can share it.

    The result is `RankedLogits` or `Candidates` if the drafter returns these.
    """
    if drafter := _shared_drafter(sessions):
        return _checked(drafter, "draft_root", drafter.draft_root(sessions), (len(sessions),))
    return _joined([_checked(session, "draft_root", session.draft_root(), (1, 1))[0] for session in sessions])


def draft_level(
    sessions: Sequence[Session], frontiers: Sequence[Frontier], device: torch.device
) -> DraftLogits | Candidates:
    """Logits `[nodes, vocab]` of the token after each node, in one pass if the sessions can share it.

    The result is `RankedLogits` or `Candidates` if the drafter returns these.

    Args:
        sessions: sessions of the requests.
        frontiers: the frontier of each session; empty if the session drafts no further.
        device: the device of the sessions' tensors.
    """
    if len(sessions) > 1:
        sessions = [session for session, frontier in zip(sessions, frontiers, strict=True) if frontier.tokens]
        frontiers = [frontier for frontier in frontiers if frontier.tokens]
    counts = [len(frontier.tokens) for frontier in frontiers]
    if drafter := _shared_drafter(sessions):
        return _checked(drafter, "draft_level", drafter.draft_level(sessions, frontiers), (sum(counts),))
    logits = list[Tensor]()
    for session, frontier, count in zip(sessions, frontiers, counts, strict=True):
        ids, origins = torch.tensor([frontier], device=device)[0, :, None]
        logits.append(_checked(session, "draft_level", session.draft_level(ids, origins), (1, count))[0])
    return _joined(logits)


def draft_chain(
    sessions: Sequence[Session], tokens: Sequence[int], count: int, allowed: int
) -> tuple[np.ndarray, np.ndarray] | None:
    """Draft chains after the only node of each tree; see `SharedDrafter.draft_chain`.

    None if the drafter has to draft level by level. This includes a drafter whose most derived class, or the object
    itself, defines only one of `draft_chain` and `draft_level`.
    """
    drafter: Any = _shared_drafter(sessions)
    methods = {"draft_chain", "draft_level"}
    namespaces = getattr(drafter, "__dict__", {}), *map(vars, type(drafter).__mro__)
    overriding_namespace = next((namespace for namespace in namespaces if methods & {*namespace}), {})
    if not methods <= {*overriding_namespace}:
        return None
    return drafter.draft_chain(sessions, tokens, count, allowed)


def _joined(rows: Sequence[Tensor]) -> Tensor:
    return rows[0] if len(rows) == 1 else torch.cat(list(rows))


def _checked(drafter: object, name: str, logits: Any, shape: tuple[int, ...]) -> Any:
    """Check and return the logits of a drafter, which may be a user's own.

    Args:
        drafter: the drafter or session whose method was called.
        name: the name of the method.
        logits: the result of the method.
        shape: the shape of the logits without their last dimension.

    Raises:
        ConfigError: If the result is not logits of this shape.
    """
    wanted_shape = f"[{', '.join(map(str, shape))}, vocab]"
    subject = f"{type(drafter).__name__}.{name} returns"
    if isinstance(logits, Candidates) and shape == (logits.nodes,):
        return logits
    if isinstance(logits, RankedLogits) and shape == (logits.rows,):
        return logits
    if not isinstance(logits, Tensor):
        raise ConfigError(f"{subject} {type(logits).__name__}; it must return a tensor of logits {wanted_shape}")
    if logits.shape[:-1] != shape or not logits.shape[-1] or not logits.is_floating_point():
        raise ConfigError(
            f"{subject} {logits.dtype} {list(logits.shape)}; it must return floating-point logits {wanted_shape}"
        )
    return logits


def _shared_drafter(sessions: Sequence[Session]) -> SharedDrafter | None:
    """The drafter of the sessions if they can share a pass; None otherwise.

    Only sessions of one class can, since a subclass may draft in another way.
    """
    first_session = sessions[0]
    if type(first_session).draft_root is not Session.draft_root:
        return None
    alike = (type(session) is type(first_session) and session.shared is first_session.shared for session in sessions)
    return first_session.drafter if all(alike) else None


class LateReader:
    """Tells a session the new tokens of its text. During a pause of drafting, they wait until it drafts again.

    So a text without drafts costs as little as plain decoding: no draft model reads it, unless its state is stored for
    later texts at the end.

    Args:
        session: the session to tell.

    Attributes:
        resting: whether drafting is paused, so that new tokens wait for `catch_up`.
    """

    def __init__(self, session: Session) -> None:
        self.resting = False
        self._session = session
        self._missed: list[_MissedTokens] = []
        self._tokens = 0

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        """Tell the session the next tokens of the prompt; see `Session.prefill`."""
        self._tell(_MissedTokens(tokens, None, hidden_states, None))

    def commit(self, tokens: list[int], hidden_states: HiddenStates, path: list[int] | None = None) -> None:
        """Tell the session the tokens of a round; see `Session.commit`.

        Args:
            tokens: the accepted tokens, then the bonus token.
            hidden_states: hidden states of the root and the accepted path, or with `path` of all nodes of the tree.
            path: the accepted nodes, the root first; None if the states are theirs alone.
        """
        self._tell(_MissedTokens(len(tokens), tokens, hidden_states, path))

    def _tell(self, missed_tokens: "_MissedTokens") -> None:
        self._tokens += missed_tokens.size
        self._missed.append(missed_tokens)
        if not self.resting or self._tokens > MAX_MISSED_TOKENS:
            self.catch_up()
        elif len(self._missed) % MAX_MISSED_PASSES == 0:
            self._missed[-MAX_MISSED_PASSES:] = [record.compacted() for record in self._missed[-MAX_MISSED_PASSES:]]

    def catch_up(self) -> None:
        """Tell the session all tokens that it has missed."""
        if not self._missed:
            return
        records = self._missed
        self._missed = []
        self._tokens = 0
        for record in records:
            if record.tokens is None:
                self._session.prefill(record.hidden_states, record.size)
            else:
                self._session.commit(record.tokens, record.rows)


class _MissedTokens(NamedTuple):
    """Tokens of the text that a session has not been told.

    Attributes:
        size: number of tokens.
        tokens: ids of committed tokens; None for tokens of the prompt.
        hidden_states: the target's hidden states of these tokens, or with `path` of all nodes of the tree.
        path: the rows of the hidden states that belong to the tokens; None for all.
    """

    size: int
    tokens: list[int] | None
    hidden_states: HiddenStates
    path: list[int] | None

    @property
    def rows(self) -> HiddenStates:
        """The hidden states of the tokens."""
        return self.hidden_states if self.path is None else accepted_rows(self.hidden_states, self.path)

    def compacted(self) -> "_MissedTokens":
        """A copy with the tokens' rows only, so that the other rows of the pass can be freed."""
        return self._replace(hidden_states=tuple(state.clone() for state in self.rows), path=None)


@contextmanager
def count_pass(sessions: Sequence[Session], passes: int = 1) -> Iterator[None]:
    """Context manager: count the block as passes of each session. Each counts the whole time, since all wait for it."""
    with time_together([session.timer for session in sessions]):
        yield
    for session in sessions:
        session.passes += passes
