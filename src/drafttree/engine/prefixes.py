"""Prefix reuse: a prompt that begins as another text does goes on from copies of that text's rows.

Of a finished text are kept its token ids, a copy of the target's rows for them, and what its drafter keeps; the least
recently used goes first. Texts that are being written are copied in the same way. A request waits while another one
reads the beginning of its prompt, as users of one system prompt do who come together.

The rows are those of the passes that computed them, over trees and in other chunks than a prefill's. In float32 they
differ from those of a fresh prefill by rounding, which changes a greedy or coupled text only where two tokens are tied;
in bfloat16 ties are more frequent, as they are between speculative and plain decoding. With `exact_text` rows are the
same bit for bit, and so are texts.

Other verifiers draw tokens by inverse distribution functions, where rounding errors add up over the vocabulary and
shift the boundaries between tokens: in float32 with 4,096 tokens by 2e-4 to 1e-3 in all, which is the chance that one
draw gives another token. So a text that is written alone with these verifiers is read anew, and its seed repeats it;
`exact_text` changes nothing of that, since these verifiers also weigh the drafter's probabilities, whose rows are not
exact. In an engine their seeds repeat no text in any case, and rounding is all that kept rows change of their law.

Recurrent layers keep one state for the whole text, which cannot be cut to a shorter one, and decode by other sums than
they read with. So models that have them read every prompt anew. So do targets with a `lossy_window`, which drop rows.
"""

import threading
from array import array
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from drafttree.engine.request import Request
from drafttree.models import TreeCache

WIDTH = array("i").itemsize
"""Bytes of a token id. Texts are compared as bytes: a look-up among 200 of 1,000 to 3,000 tokens takes 0.04 ms."""
BLOCK = 16
"""Tokens that requests with a salt share as a whole or not: a hit tells who guesses at texts no single one."""
LEAST_GAIN = 32
"""Tokens that waiting must save a request, since it takes a round."""


@dataclass(frozen=True, eq=False)
class ReadText:
    """A text whose rows another one that begins with the same tokens may copy.

    Attributes:
        salt: the requests that may copy them have an equal `Request.cache_salt`.
        ids: the tokens whose rows there are, as bytes.
        cache: the target's rows.
        draft: gives what its drafter's session knows of at most so many first tokens, for `Session.resume`; None where
            that is nothing.
    """

    salt: Hashable | None
    ids: bytes
    cache: TreeCache
    draft: Callable[[int], object] | None

    @property
    def tokens(self) -> list[int]:
        """The tokens whose rows there are."""
        return array("i", self.ids).tolist()


class KeptTextsObserver(Protocol):
    """Told of what is kept, by the thread that keeps or forgets it, which waits."""

    def kept(self, tokens: list[int]) -> None:
        """Note that a text is kept."""
        ...

    def forgotten(self, tokens: list[int]) -> None:
        """Note that a text that was kept is so no longer."""
        ...


class PrefixCache:
    """The beginnings of the latest texts, of which the least recently used go first. Any thread may use it.

    Args:
        max_tokens: kept at most, of all texts together; of a longer text its first ones are. 0 keeps nothing, and None
            as much as fits into a share of the memory, which is found when it is first asked for.

    Attributes:
        max_tokens: as given, or found.
        tokens: tokens kept, of all texts together.
    """

    def __init__(self, max_tokens: int | None = None) -> None:
        self.max_tokens = max_tokens
        self.tokens = 0
        self._observer: KeptTextsObserver | None = None
        self._texts: list[ReadText] = []
        self._lock = threading.RLock()

    def __len__(self) -> int:
        """How many texts are kept."""
        return len(self._texts)

    def observe(self, observer: KeptTextsObserver | None) -> None:
        """Tell an observer what is kept now, and of all changes until there is another one or none."""
        with self._lock:
            self._observer = observer
            if observer:
                for text in self._texts:
                    observer.kept(text.tokens)

    def clear(self) -> None:
        """Forget all texts and free their memory."""
        self.shrink(0)

    def limit(self, max_tokens: int) -> None:
        """Keep at most so many tokens from now on."""
        self.max_tokens = max_tokens
        self.shrink(max_tokens)

    def shrink(self, tokens: float) -> None:
        """Forget the texts used least recently, until there are at most so many tokens."""
        with self._lock:
            while self.tokens > tokens:
                self._forget(self._texts[0])

    def restore(self, request: Request, *, reads_hidden: bool, running: Sequence[Request] = ()) -> None:
        """Give a request that has read nothing the rows of the longest beginning of its prompt that was read.

        It still waits where another one is reading so much more of its prompt that waiting pays. Nobody waits for a
        request that waits, since it has not begun.

        Args:
            request: its last token is left to be the root of the first tree.
            reads_hidden: whether its drafter reads the target's hidden states. They are not kept, so the target then
                goes on from where the drafter does.
            running: requests that have begun and share what they read.
        """
        ids = array("i", request.tokens).tobytes()
        cache = request.cache
        salt = request.cache_salt
        block = 1 if request.cache_salt is None else BLOCK
        running = [peer for peer in running if peer.cache_salt == salt and cache.can_resume(peer.cache)]
        with self._lock:
            for stale_text in [text for text in self._texts if text.cache.layout is not cache.layout]:
                self._forget(stale_text)  # its rows are of other weights
            texts = [text for text in reversed(self._texts) if text.salt == salt and cache.can_resume(text.cache)]
            texts += [_running_text(peer, reads_hidden=reads_hidden) for peer in running]
            useful_requests = [peer for peer in running if peer.drafting.session or not reads_hidden]
            if _is_being_read(ids, [peer for peer in useful_requests if peer.unread], texts, block):
                return
            request.ids = ids
            while texts:
                text, shared_tokens = _longest(texts, ids)
                rows = min(shared_tokens, len(request.tokens) - 1)
                if reads_hidden:
                    rows -= 1  # a head pairs a token with the hidden state before it, which has to be computed again
                rows -= rows % block
                if rows <= 0:
                    return
                if reused_tokens := _take(request, text, rows, reads_hidden=reads_hidden):
                    if not request.metrics.rounds:
                        request.metrics.reused_tokens = reused_tokens
                    if text in self._texts:
                        self._texts.remove(text)
                        self._texts.append(text)
                    return
                texts.remove(text)

    def keep(self, request: Request) -> None:
        """Keep a text that has begun and wants it; one that it begins with and that has nothing more is forgotten."""
        salt = request.cache_salt
        if not (request.reuse_prefix and request.metrics.rounds) or (salt is not None and salt is request.group):
            return
        row_count = len(request.tokens) - 1
        with self._lock:
            cache = request.cache.copy_rows(row_count if self.max_tokens is None else min(row_count, self.max_tokens))
            if not cache.length:
                return
            session = request.drafting.catch_up() if request.drafting.reads_prompt else None
            if session:
                session.read_rest()
            draft = session.keep(cache.length) if session else None
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
    def keeping(self, request: Request) -> Iterator[None]:
        """Keep a text when the block ends, by Ctrl-C or an abandoned stream too, but not by an error."""
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            self.keep(request)
            raise
        self.keep(request)

    def _forget(self, text: ReadText) -> None:
        self._texts.remove(text)
        self.tokens -= text.cache.length
        if self._observer:
            self._observer.forgotten(text.tokens)


def _running_text(request: Request, *, reads_hidden: bool) -> ReadText:
    """What a request has read and written so far, of the tokens it began with."""
    drafting = request.drafting

    def draft(tokens: int) -> object:
        with drafting.failing_softly():
            session = drafting.catch_up() if reads_hidden else drafting.session
            return session and session.keep(tokens)

    return ReadText(request.cache_salt, request.ids[: request.cache.length * WIDTH], request.cache, draft)


def _is_being_read(ids: bytes, reading: list[Request], texts: list[ReadText], block: int) -> bool:
    """Whether requests are reading so much more of a prompt than is known of it that waiting pays."""
    shared_tokens = max((_shared(request.ids, ids) for request in reading), default=0)
    shared_tokens -= shared_tokens % block
    needed_prefix = ids[: (shared_tokens - LEAST_GAIN + 1) * WIDTH]
    return shared_tokens >= LEAST_GAIN and not any(text.ids.startswith(needed_prefix) for text in texts)


def _longest(texts: list[ReadText], ids: bytes) -> tuple[ReadText, int]:
    """The first of the texts that share most tokens with another one, and how many they share."""
    longest_text, shared_tokens = texts[0], 0
    longer_prefix = ids[:WIDTH]
    for text in texts:
        if text.ids.startswith(longer_prefix):
            longest_text, shared_tokens = text, _shared(text.ids, ids)
            if shared_tokens * WIDTH == len(ids):
                break
            longer_prefix = ids[: (shared_tokens + 1) * WIDTH]
    return longest_text, shared_tokens


def _shared(one: bytes, other: bytes) -> int:
    """How many tokens two texts begin with in common."""
    size = min(len(one), len(other)) // WIDTH
    mismatches = np.frombuffer(one, np.intc, size) != np.frombuffer(other, np.intc, size)
    return int(mismatches.argmax()) if mismatches.any() else size


def _take(request: Request, text: ReadText, rows: int, *, reads_hidden: bool) -> int:
    """Copy at most so many rows of a text; how many were."""
    resumed_tokens = 0
    if session := request.drafting.session:
        with request.drafting.failing_softly():
            resumed_tokens = session.resume(text.draft and text.draft(rows), rows)
    return request.cache.resume(text.cache, resumed_tokens if reads_hidden else rows)
