"""Kept beginnings of texts: a prompt that begins as an earlier text did is not read again.

What is kept of a text are its token ids, a copy of the target's rows for them, and what its drafter keeps. A new text
takes copies of the rows of the longest beginning it shares, so kept rows never change and several texts may share them.
The rows of texts that are still being written are copied in the same way; an engine tells which there are.

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

import math
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from heapq import merge
from operator import itemgetter
from typing import Protocol

from drafttree.engine.prefix_tree import PrefixTree
from drafttree.engine.request import Request
from drafttree.engine.row_memory import rows_in_memory
from drafttree.models import Model, TreeCache
from drafttree.models.tensor_parallel import of_first_process

LEAST_TOKENS = 8192
"""Tokens kept by default at least, of all texts together; 8,192 tokens of an 8B Llama take 1 GiB in bfloat16."""
SHARE, GPU_SHARE = 1 / 256, 1 / 16
"""The share of the machine's memory, or of what is free on a GPU, in which texts are kept by default."""


class ReadText(Protocol):
    """A text whose rows another one that begins with the same tokens may copy."""

    @property
    def cache(self) -> TreeCache:
        """The target's rows."""
        ...

    def draft_rows(self, tokens: int) -> object:
        """What its drafter's session knows of at most so many first tokens, for `Session.resume`."""
        ...


@dataclass(frozen=True, eq=False)
class KeptText:
    """The beginning of a finished text.

    Attributes:
        tokens: tokens whose rows are kept.
        cache: the target's rows of all of them.
        draft: what the drafter's session has kept, None if that is nothing.
    """

    tokens: list[int]
    cache: TreeCache
    draft: object

    def draft_rows(self, tokens: int) -> object:
        return self.draft


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
        self._texts = PrefixTree[KeptText]()
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
                self._forget(next(iter(self._texts)))

    def size(self, target: Model) -> None:
        """Find how many tokens may be kept of a target's texts, where nobody has said it."""
        if self.max_tokens is not None:
            return
        rows = rows_in_memory(target, GPU_SHARE if target.device.type == "cuda" else SHARE)
        found = LEAST_TOKENS if math.isinf(rows) else max(int(rows), LEAST_TOKENS)
        sharded = getattr(target, "tensor_parallel_size", 1) > 1
        self.max_tokens = of_first_process(found) if sharded else found

    def shared(self, request: Request) -> int:
        """How many tokens the longest kept beginning has in common with a request's."""
        with self._lock:
            return next((shared for shared, _ in self._texts.matches(request.tokens)), 0)

    def restore(self, request: Request, *, reads_hidden: bool, running: Sequence[tuple[int, ReadText]] = ()) -> None:
        """Give a request that has read nothing the rows of the longest beginning of its prompt that was read.

        Args:
            request: its last token is left to be the root of the first tree.
            reads_hidden: whether its drafter reads the target's hidden states. They are not kept, so the target then
                goes on from where the drafter does.
            running: texts that are being written, with how many tokens the request can take of each, most first.
        """
        with self._lock:
            layout = request.cache.layout
            for stale in [text for text in self._texts if text.cache.layout is not layout]:
                self._forget(stale)  # its rows are of other weights
            kept = self._texts.matches(request.tokens)
            for shared, text in merge(kept, running, key=itemgetter(0), reverse=True):
                rows = min(shared, len(request.tokens) - 1)
                if taken := _take(request, text, rows, reads_hidden=reads_hidden):
                    if not request.metrics.rounds:
                        request.metrics.reused_tokens = taken
                    if isinstance(text, KeptText):
                        self._texts.use(text)
                    return

    def keep(self, request: Request) -> None:
        """Keep a text; one that it begins with and that has nothing more is forgotten."""
        most = LEAST_TOKENS if self.max_tokens is None else self.max_tokens
        with self._lock:
            cache = request.cache.copy_rows(min(len(request.tokens) - 1, most))
            if not cache.length:
                return
            session = request.drafting.catch_up() if request.drafting.reads_prompt else None
            if session:
                session.read_rest()
            text = KeptText(request.tokens[: cache.length], cache, session and session.keep(cache.length))
            shorter = self._texts.beginnings(text.tokens)
            self._texts.add(text.tokens, text)
            self.tokens += cache.length
            if self._observer:
                self._observer.kept(text.tokens)
            for each in shorter:
                if text.draft is not None or each.draft is None:
                    self._forget(each)
            self.shrink(most)

    def _forget(self, text: KeptText) -> None:
        self._texts.remove(text)
        self.tokens -= len(text.tokens)
        if self._observer:
            self._observer.forgotten(text.tokens)

    @contextmanager
    def keeping(self, request: Request) -> Iterator[None]:
        """Keep a text that wants it when the block ends, by Ctrl-C or an abandoned stream too, but not by an error."""
        try:
            yield
        except (KeyboardInterrupt, GeneratorExit):
            self.keep_if_wanted(request)
            raise
        self.keep_if_wanted(request)

    def keep_if_wanted(self, request: Request) -> None:
        """Keep a text that has begun and wants it."""
        if request.reuse_prefix and request.metrics.rounds:
            self.keep(request)


def _take(request: Request, text: ReadText, rows: int, *, reads_hidden: bool) -> int:
    """Copy at most so many rows of a text; how many were."""
    if not request.cache.can_resume(text.cache):
        return 0
    if reads_hidden:
        rows -= 1  # a head pairs a token with the hidden state before it, which has to be computed again
    if rows <= 0:
        return 0
    resumed = 0
    if session := request.drafting.session:
        with request.drafting.failing_softly():
            resumed = session.resume(text.draft_rows(rows), rows)
    return request.cache.resume(text.cache, resumed if reads_hidden else rows)
