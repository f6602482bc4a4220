"""Prefix reuse: a prompt that begins like another text continues from copies of that text's KV rows.

Of a finished text its token ids, a copy of the target's rows and what its drafter keeps are kept; the least recently
used texts are dropped first. Running texts are copied in the same way. A request waits while another one reads the same
beginning, as happens when users of one system prompt come together.

The rows are those of the passes that computed them, over trees and in other chunks than a prefill's. In float32 they
differ from those of a fresh prefill by rounding, which changes a greedy or coupled text only if two tokens are tied; in
bfloat16 ties are more frequent, as they are between speculative and plain decoding. With `exact_text` rows are the same
bit for bit, and so are texts.

Other verifiers draw tokens by inverse distribution functions, where rounding errors add up over the vocabulary and
shift the boundaries between tokens: in float32 with 4,096 tokens by 2e-4 to 1e-3 in all, which is the probability that
one draw gives another token. So a text that is written alone with these verifiers reuses no rows, and its seed repeats
it. `exact_text` does not change that, since these verifiers also weigh the drafter's probabilities, whose rows are not
exact. In an engine their seeds repeat no text in any case, and reused rows change their distribution by rounding only.

Recurrent layers have one state for the whole text, which cannot be cut to a shorter one, and compute it by other sums
in decoding than in reading. So models with such layers read every prompt anew. So do targets with a `lossy_window`,
which drop rows.
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

WIDTH = array("i").itemsize
"""Bytes of a token id. Texts are compared as bytes: finding one among 200 of 1,000 to 3,000 tokens takes 0.04 ms."""
BLOCK = 16
"""Tokens that requests with a salt share only together, so that a hit tells an attacker no single token of a text."""
LEAST_GAIN = 32
"""The fewest tokens that waiting must save a request, since it takes a round."""


@dataclass(frozen=True, eq=False)
class ReadText:
    """A text whose rows may be copied by texts that begin with the same tokens.

    Attributes:
        salt: only requests with an equal `Task.cache_salt` may copy the rows.
        ids: the tokens that have rows, as bytes.
        cache: the target's rows.
        draft: given a number of tokens, returns the drafter's snapshot of at most so many first ones, for
            `Session.restore`; None if it has none.
    """

    salt: Hashable | None
    ids: bytes
    cache: TreeCache
    draft: Callable[[int], object] | None

    @property
    def tokens(self) -> list[int]:
        """The tokens that have rows."""
        return array("i", self.ids).tolist()


class Restored(NamedTuple):
    """What a request has taken over from other texts.

    Attributes:
        tokens: the number of first tokens of its prompt that need not be read.
    """

    tokens: int


class WaitsForPrefix(NamedTuple):
    """What a request waits for instead of beginning.

    Attributes:
        tokens: the number of first tokens of its prompt that another request is reading.
    """

    tokens: int


class KeptTextsObserver(Protocol):
    """Told which texts are kept, in the thread that keeps or drops them and waits for the observer."""

    def kept(self, tokens: list[int]) -> None:
        """Note that a text is kept from now on."""
        ...

    def forgotten(self, tokens: list[int]) -> None:
        """Note that a text is no longer kept."""
        ...


class PrefixCache:
    """Keeps the beginnings of recent texts; the least recently used are dropped first. Any thread may use it.

    Args:
        max_tokens: the most tokens to keep, over all texts; of a longer text the first ones are kept. 0 keeps nothing.
            None keeps what fits into a share of the memory, which is determined when it is first needed.

    Attributes:
        max_tokens: as given, or as determined.
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
        """Copy to a request the rows of the longest beginning of its prompt that another text has.

        If another request is reading so much more of that prompt that waiting pays, nothing is copied, and the request
        waits. No request waits for one that waits itself, since that has not begun.

        Args:
            request: a request that has read nothing. Its last token gets no row: it is the root of the first tree.
            reads_hidden: whether its drafter reads the target's hidden states. These are not kept, so the target then
                continues from where the drafter does.
            running: requests that have begun and share their rows.
        """
        ids = array("i", request.tokens).tobytes()
        cache = request.cache
        salt = request.task.cache_salt
        block = 1 if salt is None else BLOCK
        peers = [peer for peer in running if peer.task.cache_salt == salt and cache.can_copy_from(peer.cache)]
        with self._lock:
            self._forget_stale(cache)
            texts = [text for text in reversed(self._texts) if text.salt == salt and cache.can_copy_from(text.cache)]
            texts += [_running_text(peer, reads_hidden=reads_hidden) for peer in peers]
            reading_peers = [peer for peer in peers if peer.unread and (peer.drafting.session or not reads_hidden)]
            if awaited_tokens := _being_read(ids, reading_peers, texts, block):
                return WaitsForPrefix(awaited_tokens)
            request.share(ids)
            restored_tokens = self._copy_longest(request, texts, block, reads_hidden=reads_hidden)
        if restored_tokens and not request.metrics.rounds:
            request.metrics.reused_tokens = restored_tokens
        return Restored(restored_tokens)

    def _forget_stale(self, cache: TreeCache) -> None:
        """Drop the texts whose rows are of other weights than those of a cache."""
        for stale_text in [text for text in self._texts if text.cache.layout is not cache.layout]:
            self._forget(stale_text)

    def _copy_longest(self, request: Request, texts: list[ReadText], block: int, *, reads_hidden: bool) -> int:
        """Copy the rows of the text that shares most tokens with a request, and return how many were copied.

        Where the drafter takes over nothing of a text, the text that shares the next most is tried.

        Args:
            request: as for `restore`.
            texts: texts whose rows may be copied.
            block: tokens that are shared only together.
            reads_hidden: as for `restore`.
        """
        while texts:
            text, shared_tokens = _longest(texts, request.shared_prefix)
            rows = min(shared_tokens, len(request.tokens) - 1)
            if reads_hidden:
                rows -= 1  # a head pairs a token with the hidden state before it, which has to be computed again
            rows -= rows % block
            if rows <= 0:
                break
            if restored_tokens := _copy_rows(request, text, rows, reads_hidden=reads_hidden):
                if text in self._texts:
                    self._texts.remove(text)
                    self._texts.append(text)
                return restored_tokens
            texts.remove(text)
        return 0

    def store(self, request: Request) -> None:
        """Keep the text of a request if it has begun and wants that, and drop kept texts that it makes useless.

        These are the beginnings of the new text, unless the drafter has kept something for them and not for it.
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
            draft = session.snapshot(cache.length) if session else None
            tokens = request.tokens[: cache.length]
            text = ReadText(salt, array("i", tokens).tobytes(), cache, None if draft is None else lambda _: draft)
            of_salt = [kept_text for kept_text in self._texts if kept_text.salt == salt]
            shorter_texts = [
                kept_text
                for kept_text in of_salt
                if text.ids.startswith(kept_text.ids) and (text.draft or not kept_text.draft)
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
    """The tokens that a running request began with, as far as they have rows."""
    drafting = request.drafting

    def draft(tokens: int) -> object:
        with drafting.failing_softly():
            session = drafting.catch_up() if reads_hidden else drafting.session
            return session and session.snapshot(tokens)

    return ReadText(
        request.task.cache_salt, request.shared_prefix[: request.cache.length * WIDTH], request.cache, draft
    )


def _being_read(ids: bytes, peers: list[Request], texts: list[ReadText], block: int) -> int:
    """The number of first tokens of a prompt that other requests are reading, if waiting for them pays; else 0.

    It pays if `texts` have so much less of the prompt.
    """
    shared_tokens = max((_shared(peer.shared_prefix, ids) for peer in peers), default=0)
    shared_tokens -= shared_tokens % block
    needed_prefix = ids[: (shared_tokens - LEAST_GAIN + 1) * WIDTH]
    pays = shared_tokens >= LEAST_GAIN and not any(text.ids.startswith(needed_prefix) for text in texts)
    return shared_tokens if pays else 0


def _longest(texts: list[ReadText], ids: bytes) -> tuple[ReadText, int]:
    """The first of the texts that share the longest beginning with `ids`, and its length in tokens."""
    longest_text = texts[0]
    shared_tokens = 0
    longer_prefix = ids[:WIDTH]
    for text in texts:
        if text.ids.startswith(longer_prefix):
            longest_text = text
            shared_tokens = _shared(text.ids, ids)
            if shared_tokens * WIDTH == len(ids):
                break
            longer_prefix = ids[: (shared_tokens + 1) * WIDTH]
    return longest_text, shared_tokens


def _shared(one: bytes, other: bytes) -> int:
    """The length in tokens of the common beginning of two texts."""
    size = min(len(one), len(other)) // WIDTH
    mismatches = np.frombuffer(one, np.intc, size) != np.frombuffer(other, np.intc, size)
    return int(mismatches.argmax()) if mismatches.any() else size


def _copy_rows(request: Request, text: ReadText, rows: int, *, reads_hidden: bool) -> int:
    """Copy at most `rows` rows of a text to a request, and return how many were copied."""
    restored_tokens = 0
    if session := request.drafting.session:
        with request.drafting.failing_softly():
            restored_tokens = session.restore(text.draft and text.draft(rows), rows)
    return request.cache.copy_from(text.cache, restored_tokens if reads_hidden else rows)
