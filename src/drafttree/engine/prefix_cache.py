"""Kept beginnings of texts: a prompt that begins as an earlier text did is not read again.

What is kept of a text are its token ids, a copy of the target's rows for them, and what its drafter keeps. A new text
takes copies of the rows of the longest beginning it shares, so kept rows never change and several texts may share them.

The rows are those of the passes that computed them, over trees and in other chunks than a prefill's. In float32 they
differ from those of a fresh prefill by rounding, which changes a greedy or coupled text only where two tokens are tied;
in bfloat16 ties are more frequent, as they are between speculative and plain decoding.

Other verifiers draw tokens by inverse distribution functions, where rounding errors add up over the vocabulary and
shift the boundaries between tokens: in float32 with 4,096 tokens by 2e-4 to 1e-3 in all, which is the chance that one
draw gives another token. So conversations with these verifiers are read anew, and their seeds repeat their texts,
unless a call asks for `reuse_prefix`.

Recurrent layers keep one state for the whole text, which cannot be cut to a shorter one, and decode by other sums than
they read with. So models that have them read every prompt anew. So do targets with a `lossy_window`, which drop rows.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from drafttree.engine.request import Request
from drafttree.models import TreeCache

MAX_TOKENS = 8192
"""Tokens kept by default, of all texts together; 8,192 tokens of an 8B Llama take 1 GiB in bfloat16."""
MAX_TEXTS = 8


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


class PrefixCache:
    """The beginnings of the latest texts, of which the least recently used go first.

    Args:
        max_tokens: kept at most, of all texts together; of a longer text its first ones are. 0 keeps nothing.

    Attributes:
        max_tokens: as given.
    """

    def __init__(self, max_tokens: int = MAX_TOKENS) -> None:
        self.max_tokens = max_tokens
        self._texts: list[KeptText] = []

    @property
    def tokens(self) -> int:
        """Tokens kept, of all texts together."""
        return sum(len(text.tokens) for text in self._texts)

    def clear(self) -> None:
        """Forget all texts and free their memory."""
        self._texts = []

    def restore(self, request: Request, *, reads_hidden: bool) -> None:
        """Give a request that has read nothing the rows of the longest kept beginning of its prompt.

        Args:
            request: its last token is left to be the root of the first tree.
            reads_hidden: whether its drafter reads the target's hidden states. They are not kept, so the target then
                goes on from where the drafter does.
        """
        layout = request.cache.layout
        self._texts = [text for text in self._texts if text.cache.layout is layout]  # others are of other weights
        if not self._texts:
            return
        found = max(self._texts, key=lambda text: _shared(text, request))
        rows = min(_shared(found, request), len(request.tokens) - 1)
        if reads_hidden:
            rows -= 1  # a head pairs a token with the hidden state before it, which has to be computed again
        resume = getattr(request.drafting.session, "resume", None)
        resumed = resume(found.draft, max(rows, 0)) if resume else 0
        request.metrics.reused_tokens = request.cache.resume(found.cache, resumed if reads_hidden else rows)
        if request.metrics.reused_tokens:
            self._texts.remove(found)
            self._texts.append(found)

    def keep(self, request: Request) -> None:
        """Keep a text; one that it begins with is forgotten."""
        cache = request.cache.copy_rows(min(len(request.tokens) - 1, self.max_tokens))
        if not cache.length:
            return
        tokens = request.tokens[: cache.length]
        keep = getattr(request.drafting.catch_up(), "keep", None)
        self._texts = [text for text in self._texts if tokens[: len(text.tokens)] != text.tokens]
        self._texts.append(KeptText(tokens, cache, keep(cache.length) if keep else None))
        while self.tokens > self.max_tokens or len(self._texts) > MAX_TEXTS:
            self._texts.pop(0)

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


def _shared(text: KeptText, request: Request) -> int:
    """How many tokens a kept text and a prompt begin with in common."""
    pairs = enumerate(zip(text.tokens, request.tokens, strict=False))
    shorter = min(len(text.tokens), len(request.tokens))
    return next((place for place, (kept, token) in pairs if kept != token), shorter)
