"""Lets requests into the engine, or refuses them where too many wait or the server is shutting down."""

import asyncio
from typing import Any

from drafttree.engine.batching import Engine, Handle
from drafttree.engine.prompt import Prompt
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.settings import ServerSettings

RETRY_AFTER = 1
"""Seconds after which a request that was refused may come again."""


class Admission:
    """Counts the requests of a server.

    Args:
        engine: takes them.
        settings: how many may wait, and how long each may take.

    Attributes:
        draining: whether no more requests are let in.
    """

    def __init__(self, engine: Engine, settings: ServerSettings) -> None:
        self._engine, self._settings = engine, settings
        self._handles: set[Handle] = set()
        self.draining = False

    @property
    def open(self) -> int:
        """Requests that were let in and have not ended."""
        self._handles = {handle for handle in self._handles if not handle.done}
        return len(self._handles)

    async def submit(self, prompt: Prompt, **options: Any) -> Handle:
        """Submit a request; reading its prompt and compiling its grammar hold up nobody.

        Args:
            prompt: as for `Engine.submit`.
            **options: likewise.

        Raises:
            ServerError: too many requests wait (429), or the server is shutting down (503).
            DraftTreeError: as for `Engine.submit`.
        """
        self.check()
        if self._settings.timeout is not None:
            options = {"max_time": self._settings.timeout, **options}
        handle = await asyncio.to_thread(self._engine.submit, prompt, **options)
        self._handles.add(handle)
        return handle

    def check(self) -> None:
        """Refuse a request that cannot be taken now.

        Raises:
            ServerError: as for `submit`.
        """
        again = {"Retry-After": str(RETRY_AFTER)}
        if self.draining:
            raise ServerError(503, "the server is shutting down", code="shutting_down", headers=again)
        limit = self._settings.max_batch + self._settings.max_queue
        if self.open >= limit:
            message = f"{self.open} requests are running or waiting, which is the limit; try again later"
            raise ServerError(429, message, code="queue_full", headers=again)
