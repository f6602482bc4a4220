"""The worker: an `LLMEngine` of Dynamo over an engine of drafttree.

Importing this needs the extra `drafttree[dynamo]`.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import suppress
from typing import Any, Self

from dynamo.common.backend import (  # pyright: ignore[reportMissingImports]
    EngineConfig,
    LLMEngine,
    LlmRegistration,
    WorkerConfig,
)
from dynamo.common.backend.health_check import build_health_check_payload  # pyright: ignore[reportMissingImports]
from dynamo.common.backend.metrics import register_engine_registry  # pyright: ignore[reportMissingImports]
from dynamo.common.backend.publisher import ComponentSnapshot, PushSource  # pyright: ignore[reportMissingImports]
from dynamo.llm.exceptions import EngineShutdown, InvalidArgument  # pyright: ignore[reportMissingImports]
from prometheus_client import CollectorRegistry

from drafttree.core.errors import ConfigError, DraftTreeError, EngineClosedError
from drafttree.engine.batching import Engine, Handle
from drafttree.engine.decoder import Decoder
from drafttree.engine.pass_recording import record_passes
from drafttree.interfaces.dynamo.fleet_settings import FleetSettings
from drafttree.interfaces.dynamo.kept_blocks import KeptBlocks
from drafttree.interfaces.dynamo.released_chunks import ReleasedChunks
from drafttree.interfaces.dynamo.request_options import read_options
from drafttree.interfaces.server.metrics import EngineCollector

BLOCK = 16
"""Rows of the KV cache per block, Dynamo's unit."""
PUBLISH_SECONDS = 0.5
MANY_ROWS = 2**31
"""The number of KV rows that is reported if there is no limit."""


class FleetWorker(LLMEngine):
    """Writes the texts of a frontend's requests.

    Requests have token ids, and replies have tokens and text. The frontend counts the usage, because a worker does not
    know which part of its prompt another worker has generated.

    Args:
        decoder: the decoder that writes the texts; an engine uses it until `close`.
        settings: the settings of the worker.
        registered: called with the worker's id once it is known.
    """

    def __init__(self, decoder: Decoder, settings: FleetSettings, registered: Callable[[int], None]) -> None:
        self._decoder = decoder
        self._settings = settings
        self._registered = registered
        self._engine = Engine(
            decoder,
            max_batch=settings.max_batch,
            max_kv_tokens=settings.max_kv_tokens,
            prefix_tokens=settings.prefix_tokens,
            max_token_gap=settings.max_token_gap,
        )
        record_passes(decoder, settings.max_batch, self._engine.memory.rows)
        self._handles: dict[str, Handle] = {}
        self._publisher: Any = None
        self._publishing: asyncio.Task[None] | None = None

    @classmethod
    async def from_args(cls, argv: list[str] | None = None) -> tuple[Self, WorkerConfig]:
        """Not supported: `drafttree worker` has the options instead."""
        raise ConfigError("a worker is made by the command drafttree worker, which reads the options it needs")

    async def start(self, worker_id: int) -> EngineConfig:
        """Start publishing the use of the KV cache, and return the model's description for the fleet."""
        self._registered(worker_id)
        self._publishing = asyncio.create_task(self._publish())
        return EngineConfig(
            model=self._settings.files,
            served_model_name=self._settings.name,
            llm=LlmRegistration(
                context_length=self._decoder.target.context,
                kv_cache_block_size=BLOCK,
                total_kv_blocks=self._blocks,
                max_num_seqs=self._settings.max_batch,
            ),
        )

    async def generate(self, request: Mapping[str, Any], context: Any) -> AsyncGenerator[dict[str, Any], None]:
        """Yield the chunks of a request's text.

        Raises:
            InvalidArgument: the request has an option that is not supported.
            EngineShutdown: the worker is shutting down; the frontend then lets another worker continue the text.
        """
        await self.abort(context)  # after a lost connection, the frontend sends a running request again
        try:
            handle, released_chunks = await asyncio.to_thread(self._submit, request)
            self._handles[context.id()] = handle
            if context.is_stopped():
                handle.cancel()
            async for chunk in handle:
                if released_chunk := released_chunks.add(chunk):
                    yield released_chunk
        except EngineClosedError as error:
            raise EngineShutdown(str(error)) from error
        except DraftTreeError as error:
            raise InvalidArgument(" ".join(str(error).split())) from error
        finally:
            self._handles.pop(context.id(), None)

    async def abort(self, context: Any) -> None:
        """Cancel the text of a request whose client has disconnected, because Dynamo does not close `generate`."""
        if handle := self._handles.pop(context.id(), None):
            handle.cancel()

    async def cleanup(self) -> None:
        """Finish running texts, and close the engine."""
        if self._publishing:
            self._publishing.cancel()
            with suppress(asyncio.CancelledError):
                await self._publishing
        self._decoder.prefixes.observe(None)
        await asyncio.to_thread(self._engine.close, drain=True)

    def close(self) -> None:
        """Cancel all texts and close the engine, unless `cleanup` has done so."""
        self._engine.close()

    async def health_check_payload(self) -> dict[str, Any]:
        """A request for one token, for the frontend's health checks."""
        return build_health_check_payload(next(iter(self._decoder.eos), 0))

    async def register_prometheus(self, metrics: Any) -> None:
        """Add the counts of the engine to the runtime's `/metrics`."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(EngineCollector(self._engine, {"model_name": self._settings.name}))
        register_engine_registry(metrics, registry)

    async def kv_event_sources(self) -> list[Any]:
        """The one source of events: the kept prefixes, by which the router chooses a worker for a prompt."""
        return [PushSource(on_ready=self._tell_of_blocks, dp_rank=0)]

    def _tell_of_blocks(self, publisher: Any) -> None:
        self._decoder.prefixes.observe(KeptBlocks(publisher, BLOCK))

    def component_metrics_dp_ranks(self) -> list[int]:
        """The ranks whose use of the KV cache is published: a worker has only one."""
        return [0]

    def attach_snapshot_publisher(self, publisher: Any) -> None:
        """Use this publisher from now on."""
        self._publisher = publisher

    @property
    def _blocks(self) -> int:
        return int(min(self._engine.memory.rows, MANY_ROWS)) // BLOCK

    def _submit(self, request: Mapping[str, Any]) -> tuple[Handle, ReleasedChunks]:
        """Submit a request. Runs in a thread, because it checks tokens and compiles the grammar."""
        tokenizer: Any = self._decoder.tokenizer
        options = read_options(request, self._decoder)
        handle = self._engine.submit(request["token_ids"], **options)
        decode = (lambda token: tokenizer.decode([token])) if tokenizer else str
        return handle, ReleasedChunks(decode, holds="stop" in options)

    async def _publish(self) -> None:
        """Publish periodically how full the KV cache is."""
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            if self._publisher:
                used_blocks = self._engine.memory.reserved // BLOCK
                share = used_blocks / max(self._blocks, 1)
                self._publisher.publish(0, ComponentSnapshot(used_blocks, self._blocks, share, 0))
