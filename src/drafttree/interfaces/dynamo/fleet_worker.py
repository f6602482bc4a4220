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
"""Rows of the KV cache in a block, the unit in which Dynamo counts them."""
PUBLISH_SECONDS = 0.5
MANY_ROWS = 2**31
"""Told where the number of rows is not known."""


class FleetWorker(LLMEngine):
    """Writes the texts of a frontend's requests.

    Token ids come in, tokens and text go out. Usage is left to the frontend, which alone knows the whole text of a
    request that came from another worker.

    Args:
        decoder: the decoder that writes the texts; it belongs to an engine until `close`.
        settings: the worker's place in its fleet.
        registered: called with the worker's id when it is known.
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
        """Refused: the command `drafttree worker` has the options."""
        raise ConfigError("a worker is made by the command drafttree worker, which reads the options it needs")

    async def start(self, worker_id: int) -> EngineConfig:
        """Tell the fleet what there is."""
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
        """The chunks of a request's text.

        Raises:
            InvalidArgument: something is asked for that is not served.
            EngineShutdown: the worker ends; the frontend lets another one go on.
        """
        await self.abort(context)  # a frontend that lost the connection asks again while the worker still writes
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
        """End the text of a request whose client has gone: Dynamo leaves `generate` where it is."""
        if handle := self._handles.pop(context.id(), None):
            handle.cancel()

    async def cleanup(self) -> None:
        """Write running texts to their end, and close the engine."""
        if self._publishing:
            self._publishing.cancel()
            with suppress(asyncio.CancelledError):
                await self._publishing
        self._decoder.prefixes.observe(None)
        await asyncio.to_thread(self._engine.close, drain=True)

    def close(self) -> None:
        """End all texts where they are, if `cleanup` was never reached."""
        self._engine.close()

    async def health_check_payload(self) -> dict[str, Any]:
        """One token, for the frontend's probes."""
        return build_health_check_payload(next(iter(self._decoder.eos), 0))

    async def register_prometheus(self, metrics: Any) -> None:
        """Let the runtime's own `/metrics` tell what the engine counts."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(EngineCollector(self._engine, {"model_name": self._settings.name}))
        register_engine_registry(metrics, registry)

    async def kv_event_sources(self) -> list[Any]:
        """One source: what is kept of finished texts, so that the router sends prompts to where they begin."""
        return [PushSource(on_ready=self._tell_of_blocks, dp_rank=0)]

    def _tell_of_blocks(self, publisher: Any) -> None:
        self._decoder.prefixes.observe(KeptBlocks(publisher, BLOCK))

    def component_metrics_dp_ranks(self) -> list[int]:
        """One rank, whose use of the KV cache is published."""
        return [0]

    def attach_snapshot_publisher(self, publisher: Any) -> None:
        """Publish by this from now on."""
        self._publisher = publisher

    @property
    def _blocks(self) -> int:
        return int(min(self._engine.memory.rows, MANY_ROWS)) // BLOCK

    def _submit(self, request: Mapping[str, Any]) -> tuple[Handle, ReleasedChunks]:
        """Submit a request. Its tokens are checked and its grammar is compiled here, away from the event loop."""
        tokenizer: Any = self._decoder.tokenizer
        options = read_options(request, self._decoder)
        handle = self._engine.submit(request["token_ids"], **options)
        decode = (lambda token: tokenizer.decode([token])) if tokenizer else str
        return handle, ReleasedChunks(decode, holds="stop" in options)

    async def _publish(self) -> None:
        """Tell the fleet how full the KV cache is, again and again."""
        while True:
            await asyncio.sleep(PUBLISH_SECONDS)
            if self._publisher:
                used_blocks = self._engine.memory.reserved // BLOCK
                share = used_blocks / max(self._blocks, 1)
                self._publisher.publish(0, ComponentSnapshot(used_blocks, self._blocks, share, 0))
