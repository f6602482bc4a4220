"""An engine that exists as long as somebody streams from it, so that texts of one decoder are written together."""

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from drafttree.engine.batching.engine import Engine
from drafttree.engine.request_rounds import RequestRounds


class SharedEngine:
    """Makes an engine for its first user and closes it after the last."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._engine: Engine | None = None
        self._users = 0

    @asynccontextmanager
    async def use(self, decoder: RequestRounds) -> AsyncIterator[Engine]:
        """The engine of a decoder, while it is used; the event loop does not wait for its thread."""
        engine = await asyncio.to_thread(self._enter, decoder)
        try:
            yield engine
        finally:
            if ended := self._leave():
                await asyncio.to_thread(ended.close)

    def _enter(self, decoder: RequestRounds) -> Engine:
        with self._lock:
            self._engine = self._engine or Engine(decoder)
            self._users += 1
            return self._engine

    def _leave(self) -> Engine | None:
        """The engine to close, if nobody uses it any more."""
        with self._lock:
            self._users -= 1
            if self._users:
                return None
            ended, self._engine = self._engine, None
            return ended
