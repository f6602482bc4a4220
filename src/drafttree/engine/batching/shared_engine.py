"""An engine that exists as long as somebody streams from it, so that texts of one decoder are written together."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from drafttree.core.errors import EngineClosedError
from drafttree.engine.batching.engine import Engine, EngineDecoder


class SharedEngine:
    """Makes an engine for its first user and closes it after the last; there is never more than one."""

    def __init__(self) -> None:
        self._changing = threading.Lock()
        self._engine: Engine | None = None
        self._users: set[object] = set()

    @asynccontextmanager
    async def use(self, decoder: EngineDecoder) -> AsyncIterator[Engine]:
        """The engine of a decoder, while it is used; the event loop does not wait for its thread."""
        loop, user = asyncio.get_running_loop(), object()
        self._users.add(user)
        try:
            yield await loop.run_in_executor(None, self._get, decoder)
        finally:
            self._users.discard(user)
            await asyncio.shield(loop.run_in_executor(None, self._close_unused))

    def _get(self, decoder: EngineDecoder) -> Engine:
        with self._changing:
            if not self._users:
                raise EngineClosedError("the call that started the engine was cancelled")
            self._engine = self._engine or Engine(decoder)
            return self._engine

    def _close_unused(self) -> None:
        with self._changing:
            if self._engine and not self._users:
                self._engine.close()
                self._engine = None
