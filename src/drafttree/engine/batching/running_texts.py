"""The texts that are being written, found by their prompts: what a new request may copy, or should wait for.

Requests that come together often begin alike: users of one system prompt, or several texts of one prompt. The first of
them reads the beginning; the others wait until it has, and take copies of its rows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from drafttree.engine.batching.served_request import ServedRequest
from drafttree.engine.prefix_cache import PrefixCache
from drafttree.engine.prefix_tree import PrefixTree
from drafttree.engine.request import Request
from drafttree.models import TreeCache

LEAST_GAIN = 32
"""Tokens that waiting must save a request, since it takes a round."""


@dataclass(frozen=True)
class RunningText:
    """A text that is being written, as one that may be copied.

    Attributes:
        request: its request.
        reads_hidden: whether the target goes on from where the drafter does, which then has to read all of the text.
    """

    request: Request
    reads_hidden: bool

    @property
    def cache(self) -> TreeCache:
        return self.request.cache

    def draft_rows(self, tokens: int) -> object:
        drafting = self.request.drafting
        with drafting.failing_softly():
            session = drafting.catch_up() if self.reads_hidden else drafting.session
            return session and session.keep(tokens)


class RunningTexts:
    """The requests of one loop that have begun, by the tokens they began with.

    Args:
        prefixes: beginnings of finished texts, for which nobody has to wait.
        reads_hidden: whether the drafter reads the target's hidden states.
    """

    def __init__(self, prefixes: PrefixCache, *, reads_hidden: bool) -> None:
        self._prefixes, self._reads_hidden = prefixes, reads_hidden
        self._begun = PrefixTree[ServedRequest]()

    def limit_to(self, running: Sequence[ServedRequest]) -> None:
        """Forget the requests that run no longer, for whatever reason."""
        for gone in {*self._begun}.difference(running):
            self._begun.remove(gone)

    def add(self, served: ServedRequest) -> None:
        """Take up a request that has begun and wants to share."""
        if served.request.reuse_prefix:
            self._begun.add(served.request.tokens, served)

    def shared_with(self, request: Request) -> list[tuple[int, RunningText]]:
        """The texts that a request may copy, with how many tokens each has read of what they share, most first."""
        found = [
            (min(shared, served.request.cache.length), RunningText(served.request, self._reads_hidden))
            for shared, served in self._begun.matches(request.tokens)
        ]
        return sorted((match for match in found if match[0]), key=lambda match: -match[0])

    def is_being_read(self, request: Request) -> bool:
        """Whether a longer beginning of a request's prompt is being read than was read before.

        Only a request that is reading is waited for, so nobody waits for one who waits.
        """
        if not request.reuse_prefix:
            return False
        read: int | None = None
        for shared, served in self._begun.matches(request.tokens):
            reading, wanted = served.request, min(shared, len(request.tokens) - 1)
            if not reading.unread or reading.cache.length >= wanted or not self._may_copy(request, reading):
                continue
            if read is None:
                running = max((rows for rows, _ in self.shared_with(request)), default=0)
                read = max(running, self._prefixes.shared(request))
            return wanted - read >= LEAST_GAIN
        return False

    def _may_copy(self, request: Request, text: Request) -> bool:
        drafts = request.drafting.session is not None and self._reads_hidden
        return request.cache.can_resume(text.cache) and not (drafts and text.drafting.session is None)
