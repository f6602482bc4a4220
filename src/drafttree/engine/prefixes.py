"""Prefix reuse: a prompt that begins like another text continues from copies of that text's KV rows.

The cache keeps the token ids of a finished text, a copy of the target's rows, and the drafter's snapshot. It drops the
least recently used texts first. Rows of running texts are copied too. If another request is reading the same beginning,
a request waits for it: users of one system prompt often come together.

Reused rows were computed by other passes than a prefill: over trees, or in other chunks. In float32 they differ from
those of a prefill by rounding. This changes a greedy or coupled text only if two tokens are tied. In bfloat16 ties are
more frequent, as they are between speculative and plain decoding. With `exact_text`, rows and texts are the same bit
for bit.

Other verifiers draw tokens by inverse distribution functions. There rounding errors add up over the vocabulary and
shift the boundaries between tokens. In float32 with 4,096 tokens, one draw gives another token with a probability of
2e-4 to 1e-3. So a text that is written alone with these verifiers reuses no rows, and its seed repeats it. `exact_text`
does not change that, since these verifiers also weigh the drafter's probabilities, and its rows are not exact. In an
engine their seeds repeat no text anyway, and reused rows change their distribution by rounding only.

Recurrent layers have one state for the whole text, which cannot be cut to a shorter one. They also sum in another order
when they decode than when they read. So models with such layers read every prompt anew. So do targets with a
`lossy_window`, since they drop rows.
"""

import threading
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import numpy as np

from drafttree.engine.request import Request
from drafttree.models import TreeCache

TOKEN_BYTES = array("i").itemsize
"""Bytes of a token id. Texts are compared as bytes: finding one among 200 of 1,000 to 3,000 tokens takes 0.04 ms."""
BLOCK = 16
"""Requests with a salt share whole blocks of this many tokens, so that a hit reveals no single token to an attacker."""
LEAST_GAIN = 32
"""A request waits for another one only if that saves it this many tokens, since waiting takes a round."""


@dataclass(frozen=True, eq=False)
class ReadText:
    """A text whose rows may be copied by texts that begin with the same tokens.

    Attributes:
        salt: only requests with an equal `Task.cache_salt` may copy the rows.
        ids: the tokens that have rows, as bytes.
        cache: the target's rows.
        draft_snapshot: makes the drafter's snapshot of at most this many first tokens, for `Session.restore`; None if
            the drafter has none.
        images_end: as for `Request`. Positions after it are those of a text with the same images, and no others.
    """

    salt: Hashable | None
    ids: bytes
    cache: TreeCache
    draft_snapshot: Callable[[int], object] | None
    images_end: int = 0

    @property
    def tokens(self) -> list[int]:
        """The tokens that have rows."""
        return array("i", self.ids).tolist()


class Restored(NamedTuple):
    """A request has begun, perhaps with rows of another text.

    Attributes:
        tokens: the number of first tokens of its prompt whose rows were copied.
    """

    tokens: int


class WaitsForPrefix(NamedTuple):
    """A request has not begun, since another one is reading the beginning of its prompt.

    Attributes:
        tokens: the number of first tokens that the other request is reading.
    """

    tokens: int


class KeptTextsObserver(Protocol):
    """Is told which texts are kept. The thread that keeps or drops a text calls it and waits for it."""

    def kept(self, tokens: list[int]) -> None:
        """Note that a text is kept from now on."""
        ...

    def forgotten(self, tokens: list[int]) -> None:
        """Note that a text is no longer kept."""
        ...


class PrefixCache:
    """Keeps the beginnings of recent texts; the least recently used are dropped first. Any thread may use it.

    Args:
        max_tokens: the most tokens to keep, over all texts. If one text is longer, its first tokens are kept. 0 keeps
            nothing. None keeps what fits into a share of the memory, which is measured at first use.

    Attributes:
        max_tokens: as given, or as measured.
        tokens: the number of kept tokens, over all texts.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        self.max_tokens = max_tokens
        self.tokens = 0
        self._observer: KeptTextsObserver | None = None
        self._texts: list[ReadText] = []
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """The number of kept texts."""
        return len(self._texts)

    def observe(self, observer: KeptTextsObserver | None) -> None:
        """Tell an observer which texts are kept, and of all changes from now on. It replaces an earlier observer."""
        with self._lock:
            self._observer = observer
            if observer:
                for text in self._texts:
                    observer.kept(text.tokens)

    def clear(self) -> None:
        """Drop all texts and free their memory."""
        self.shrink(0)

    def limit(self, max_tokens: int) -> None:
        """Keep at most `max_tokens` tokens from now on."""
        self.max_tokens = max_tokens
        self.shrink(max_tokens)

    def shrink(self, tokens: float) -> None:
        """Drop the least recently used texts until at most `tokens` tokens are kept."""
        with self._lock:
            while self.tokens > tokens:
                self._forget(self._texts[0])

    def restore(
        self, request: Request, *, reads_hidden: bool, running: Sequence[Request] = ()
    ) -> Restored | WaitsForPrefix:
        """Copy the rows of another text that shares the longest beginning with a request's prompt.

        If another request is reading so much more of the prompt that waiting pays, nothing is copied and the request
        waits. No request waits for one that waits itself.

        Args:
            request: a request that has read nothing. Its last token is the root of the first tree and gets no row.
            reads_hidden: whether its drafter reads the target's hidden states. They are not kept, so target and drafter
                then continue at the same token.
            running: requests that have begun and share their rows.
        """
        ids = array("i", request.row_ids).tobytes()
        cache = request.cache
        salt = request.task.cache_salt
        block = 1 if salt is None else BLOCK
        peers = [peer for peer in running if peer.task.cache_salt == salt and cache.can_copy_from(peer.cache)]
        with self._lock:
            self._forget_stale(cache)
            texts = [text for text in reversed(self._texts) if text.salt == salt and cache.can_copy_from(text.cache)]
            texts += [_running_text(peer, reads_hidden=reads_hidden) for peer in peers]
            reading_peers = [peer for peer in peers if peer.unread and (peer.drafting.session or not reads_hidden)]
            if awaited_tokens := _tokens_being_read(ids, reading_peers, texts, block):
                return WaitsForPrefix(awaited_tokens)
            request.share(ids)
            restored_tokens = self._copy_longest(request, texts, block, reads_hidden=reads_hidden)
        if restored_tokens and not request.metrics.rounds:
            request.metrics.reused_tokens = restored_tokens
        return Restored(restored_tokens)

    def _forget_stale(self, cache: TreeCache) -> None:
        """Drop the texts whose rows other weights than those of a cache have computed."""
        for stale_text in [text for text in self._texts if text.cache.layout is not cache.layout]:
            self._forget(stale_text)

    def _copy_longest(self, request: Request, texts: list[ReadText], block: int, *, reads_hidden: bool) -> int:
        """Copy rows of the text that shares most tokens with a request, and return how many were copied.

        If none can be copied, since the drafter restores nothing of that text, the next best text is tried.

        Args:
            request: as for `restore`.
            texts: texts whose rows may be copied.
            block: the number of tokens is a multiple of this.
            reads_hidden: as for `restore`.
        """
        while texts:
            text, shared_tokens = _longest_match(texts, request.shared_prefix)
            rows = min(shared_tokens, len(request.tokens) - 1)
            if reads_hidden:
                rows -= 1  # a head pairs a token with the hidden state before it, which has to be computed again
            rows -= rows % block
            if rows <= 0 or rows < request.images_end:
                break
            has_same_images = not request.images_end or text.images_end <= rows
            if has_same_images and (restored_tokens := _copy_rows(request, text, rows, reads_hidden=reads_hidden)):
                if text in self._texts:
                    self._texts.remove(text)
                    self._texts.append(text)
                return restored_tokens
            texts.remove(text)
        return 0

    def store(self, request: Request) -> None:
        """Keep the text of a request that has begun, unless its task forbids it.

        Kept texts that are beginnings of the new one are dropped, unless only they have a snapshot of the drafter.
        """
        if not (request.task.kept_after_end and request.metrics.rounds):
            return
        salt = request.task.cache_salt
        row_count = len(request.tokens) - 1
        with self._lock:
            cache = request.cache.copy_rows(row_count if self.max_tokens is None else min(row_count, self.max_tokens))
            if not cache.length:
                return
            session = request.drafting.catch_up() if request.drafting.reads_prompt else None
            if session:
                session.read_rest()
            snapshot = session.snapshot(cache.length) if session else None
            tokens = request.row_ids[: cache.length]
            draft_snapshot = None if snapshot is None else lambda _: snapshot
            text = ReadText(salt, array("i", tokens).tobytes(), cache, draft_snapshot, request.images_end)
            texts_of_salt = [kept_text for kept_text in self._texts if kept_text.salt == salt]
            shorter_texts = [
                kept_text
                for kept_text in texts_of_salt
                if text.ids.startswith(kept_text.ids) and (text.draft_snapshot or not kept_text.draft_snapshot)
            ]
            self._texts.append(text)
            self.tokens += cache.length
            if self._observer:
                self._observer.kept(tokens)
            for shorter_text in shorter_texts:
                self._forget(shorter_text)
            if self.max_tokens is not None:
                self.shrink(self.max_tokens)

    @contextmanager
    def storing(self, request: Request) -> Iterator[None]:
        """Context manager: keep a text on exit, even after Ctrl-C or an abandoned stream, but not after an error."""
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            self.store(request)
            raise
        self.store(request)

    def _forget(self, text: ReadText) -> None:
        self._texts.remove(text)
        self.tokens -= text.cache.length
        if self._observer:
            self._observer.forgotten(text.tokens)


def _running_text(request: Request, *, reads_hidden: bool) -> ReadText:
    """The first tokens of a running request that have rows and that it shares."""
    drafting = request.drafting

    def draft_snapshot(tokens: int) -> object:
        with drafting.failing_softly():
            session = drafting.catch_up() if reads_hidden else drafting.session
            return session and session.snapshot(tokens)

    read_ids = request.shared_prefix[: request.cache.length * TOKEN_BYTES]
    return ReadText(request.task.cache_salt, read_ids, request.cache, draft_snapshot, request.images_end)


def _tokens_being_read(ids: bytes, peers: list[Request], texts: list[ReadText], block: int) -> int:
    """The number of first tokens of a prompt that a peer is reading, if waiting for it pays; else 0.

    Waiting pays if each of `texts` shares at least `LEAST_GAIN` tokens less with the prompt.
    """
    shared_tokens = max((_common_tokens(peer.shared_prefix, ids) for peer in peers), default=0)
    shared_tokens -= shared_tokens % block
    needed_prefix = ids[: (shared_tokens - LEAST_GAIN + 1) * TOKEN_BYTES]
    pays = shared_tokens >= LEAST_GAIN and not any(text.ids.startswith(needed_prefix) for text in texts)
    return shared_tokens if pays else 0


def _longest_match(texts: list[ReadText], ids: bytes) -> tuple[ReadText, int]:
    """The text that shares the longest beginning with `ids`, and that length in tokens; of several, the first."""
    longest_text = texts[0]
    shared_tokens = 0
    longer_prefix = ids[:TOKEN_BYTES]
    for text in texts:
        if text.ids.startswith(longer_prefix):
            longest_text = text
            shared_tokens = _common_tokens(text.ids, ids)
            if shared_tokens * TOKEN_BYTES == len(ids):
                break
            longer_prefix = ids[: (shared_tokens + 1) * TOKEN_BYTES]
    return longest_text, shared_tokens


def _common_tokens(ids: bytes, other_ids: bytes) -> int:
    """The number of first tokens that two texts share."""
    size = min(len(ids), len(other_ids)) // TOKEN_BYTES
    mismatches = np.frombuffer(ids, np.intc, size) != np.frombuffer(other_ids, np.intc, size)
    return int(mismatches.argmax()) if mismatches.any() else size


def _copy_rows(request: Request, text: ReadText, rows: int, *, reads_hidden: bool) -> int:
    """Copy at most `rows` rows of a text to a request, and return how many were copied."""
    restored_tokens = 0
    if session := request.drafting.session:
        with request.drafting.failing_softly():
            restored_tokens = session.restore(text.draft_snapshot and text.draft_snapshot(rows), rows)
    copied_rows = request.cache.copy_from(text.cache, restored_tokens if reads_hidden else rows)
    if request.images_end:
        request.cache.first_position = text.cache.first_position
    return copied_rows
