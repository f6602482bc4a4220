"""Drafts with a smaller language model."""

from collections.abc import Sequence
from contextlib import ExitStack
from itertools import islice

import torch
from torch import Tensor

from drafttree.drafters.base import DraftSession, HiddenStates, PackedDraft, ShownBySize, extend_visible
from drafttree.drafters.packed import DraftEach, drafting_sessions, share
from drafttree.drafters.pass_counter import PassCounter, count_pass
from drafttree.models import Model, Output, Segment, TreeCache, forward_packed, prefill
from drafttree.models.packed import forward_each


class LanguageModelDrafter(ShownBySize):
    """Drafts with any `Model`, one forward pass per level of the tree.

    Args:
        model: the draft model; it must share the target's vocabulary. Padding ids that only the target has are given
            to it as its own last id.
    """

    def __init__(self, model: Model) -> None:
        self.model = model
        self.vocab_size = model.vocab_size
        self.context = model.context if model.rope_switch is None else model.rope_switch
        self.levels: int | None = None
        self.hidden_layers = ()
        self.nbytes = model.nbytes

    def start(self, prompt: list[int], capacity: int) -> DraftSession:
        """Begin a request; without `prefill`, the first draft pass reads the prompt."""
        return LanguageModelSession(self.model, prompt, capacity)


class LanguageModelSession(PassCounter):
    """The draft model's KV cache for one request: the committed prefix and the nodes expanded this round.

    The rows of accepted nodes stay in the cache, so the first pass of the next round reads only the bonus token and, if
    the deepest accepted node was never expanded, that node.
    """

    def __init__(self, model: Model, prompt: list[int], capacity: int) -> None:
        super().__init__(model.device)
        self._model = model
        self._cache = model.new_cache(1, capacity)
        self._unread = list(prompt)
        self._root = torch.empty(1, 1, 0, device=model.device)
        self._levels: list[tuple[Tensor, Tensor]] = []
        self._visible = torch.zeros(1, 1, 0, dtype=torch.bool, device=model.device)

    @property
    def nbytes(self) -> int:
        return self._cache.nbytes

    def prefill(self, hidden_states: HiddenStates, tokens: int) -> None:
        count = min(tokens, len(self._unread) - 1)
        prefill(self._model, self._cache, self._clamp_to_vocab(self._unread[:count]))
        self._unread = self._unread[count:]

    def keep(self, tokens: int) -> object:
        return self._cache.copy_rows(tokens)

    def resume(self, kept: object, tokens: int) -> int:
        resumed = self._cache.resume(kept, tokens) if isinstance(kept, TreeCache) else 0
        self._unread = self._unread[resumed:]
        return resumed

    @staticmethod
    def pack(sessions: "Sequence[LanguageModelSession]") -> PackedDraft:
        return PackedLanguageModel(sessions) if share(each._model for each in sessions) else DraftEach(sessions)

    def root(self) -> Tensor:
        """As in `DraftLogits`; a second call before the next commit begins another tree at the same root."""
        return PackedLanguageModel([self]).root()[None]

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        return PackedLanguageModel([self]).expand(tokens, origins, [tokens.shape[1]])[None]

    def _read(self, logits: Tensor) -> None:
        """Commit the unread tokens' rows, given the last one's logits."""
        self._cache.commit(range(len(self._unread)))
        self._root, self._unread = logits, []

    def _begin_tree(self) -> None:
        """Drop the rows of an earlier tree."""
        self._cache.commit([])
        self._levels = []
        self._visible = self._visible[:, :1, :0]

    def _next_level(self, tokens: Tensor, origins: Tensor) -> Segment:
        """The nodes of a new frontier."""
        self._visible = extend_visible(self._visible, origins)
        positions = torch.full_like(tokens, self._cache.next_position + len(self._levels))
        self._levels.append((tokens, origins))
        return Segment(self._cache, tokens, positions, self._visible)

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        if self._unread:
            self._unread += tokens
            return
        path = self._accepted_rows(tokens[:-1])
        self._cache.commit(path)
        self._unread = tokens[len(path) :]

    def _accepted_rows(self, tokens: list[int]) -> list[int]:
        """Indices of the drafted cache rows along an accepted path, up to the first node that was not expanded.

        A level whose pass failed has no rows.
        """
        path: list[int] = []
        first, parent = 0, 0
        for token, children in zip(tokens, self._levels_on_host(), strict=False):
            if (token, parent) not in children:
                break
            parent = children.index((token, parent))
            if first + parent >= self._cache.drafted:
                break
            path.append(first + parent)
            first += len(children)
        return path

    def _levels_on_host(self) -> list[list[tuple[int, int]]]:
        """(token, origin) of every expanded node, by level, copied to the host in one transfer."""
        if not self._levels:
            return []
        tokens, origins = zip(*self._levels, strict=True)
        read = torch.cat((*tokens, *origins), 1)[0].tolist()
        count = len(read) // 2
        nodes = iter(zip(read[:count], read[count:], strict=True))
        return [list(islice(nodes, level.shape[1])) for level, _ in self._levels]

    def _clamp_to_vocab(self, tokens: list[int]) -> list[int]:
        """Replace ids beyond the draft model's vocabulary; this stays lossless, since it only changes the drafts."""
        return [min(token, self._model.vocab_size - 1) for token in tokens]


class PackedLanguageModel:
    """The passes of a draft model for several requests. See `drafttree.drafters.base.PackedDraft`.

    Args:
        sessions: of the same model.
    """

    def __init__(self, sessions: Sequence[LanguageModelSession]) -> None:
        self._sessions, self._model = sessions, sessions[0]._model

    def root(self) -> Tensor:
        for session in self._sessions:
            session._begin_tree()
        if unread := [session for session in self._sessions if session._unread]:
            with count_pass(unread):
                self._read(unread)
        return torch.cat([session._root[:, 0] for session in self._sessions])

    def _read(self, sessions: Sequence[LanguageModelSession]) -> None:
        model = self._model
        with ExitStack() as reading:
            for session in sessions:
                reading.enter_context(session._cache.reading())
            texts = [
                Segment.of_text(session._cache, session._clamp_to_vocab(session._unread), model.device)
                for session in sessions
            ]
            for session, output in zip(sessions, _forward(model, texts), strict=True):
                session._read(output.logits)

    def expand(self, tokens: Tensor, origins: Tensor, widths: Sequence[int]) -> Tensor:
        drafting = drafting_sessions(self._sessions, tokens, origins, widths)
        with count_pass([session for session, *_ in drafting]):
            levels = [session._next_level(*nodes) for session, *nodes in drafting]
            return torch.cat([output.logits[0] for output in _forward(self._model, levels)])


def _forward(model: Model, segments: Sequence[Segment]) -> list[Output]:
    """Score the segments of one request, by the model's `forward`, or of several."""
    return forward_packed(model, segments) if len(segments) > 1 else forward_each(model, segments)
