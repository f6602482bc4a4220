"""Packed drafting: the sessions of several requests share a draft pass per level.

A session class whose passes can be shared has a static method `pack`, which makes a `PackedDraft` of several sessions.
All state stays in the sessions, so a session may draft with others in one round and alone in the next.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from drafttree.drafters.base import DraftLogits, PackedDraft

SessionT = TypeVar("SessionT")


def pack(sessions: Sequence[DraftLogits]) -> PackedDraft:
    """The sessions of requests as one draft, which runs one pass per level where they can share passes.

    A subclass of a session shares passes by a `pack` of its own only: it may draft in another way than its base.
    """
    kinds: set[Any] = {type(session) for session in sessions}
    kind = kinds.pop()
    return kind.pack(sessions) if "pack" in vars(kind) and not kinds else DraftEach(sessions)


class DraftEach:
    """Sessions that draft one after the other. See `drafttree.drafters.base.PackedDraft`.

    Args:
        sessions: of the requests.
    """

    def __init__(self, sessions: Sequence[DraftLogits]) -> None:
        self._sessions = sessions

    def root(self) -> Tensor:
        return torch.cat([session.root()[0] for session in self._sessions])

    def expand(self, tokens: Tensor, origins: Tensor, widths: Sequence[int]) -> Tensor:
        drafting = drafting_sessions(self._sessions, tokens, origins, widths)
        return torch.cat([session.expand(*nodes)[0] for session, *nodes in drafting])


def drafting_sessions(
    sessions: Sequence[SessionT], tokens: Tensor, origins: Tensor, widths: Sequence[int]
) -> list[tuple[SessionT, Tensor, Tensor]]:
    """The sessions that have a frontier, each with tokens and origins `[1, width]` of its nodes, without padding."""
    if len(sessions) == 1:
        return [(sessions[0], tokens, origins)]
    own = zip(sessions, tokens.split(1), origins.split(1), widths, strict=True)
    return [(session, ids[:, :width], above[:, :width]) for session, ids, above, width in own if width]


def share(parts: Iterable[object]) -> bool:
    """Whether the parts of several sessions are one and the same object."""
    return len({id(part) for part in parts}) == 1
