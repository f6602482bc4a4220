"""Serves a decoder as a worker of a fleet, in this process."""

import os
import sys
from collections.abc import Callable
from typing import Any

from drafttree.core.errors import ConfigError
from drafttree.core.machine_memory import frozen_heap
from drafttree.engine.decoder import Decoder
from drafttree.interfaces.dynamo.fleet_settings import FleetSettings

QUIET = {"DYN_LOG": "warn"}
ONE_MACHINE = {"DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_SELF_HOST_METADATA": "0"}
"""Environment of Dynamo's runtime on one machine: it listens locally, and the frontend reads files from this disk."""


def serve(decoder: Decoder, settings: FleetSettings, registered: Callable[[int], None] = lambda _: None) -> None:
    """Serve until the process is asked to end.

    Args:
        decoder: the decoder that writes the texts.
        settings: the settings of the worker.
        registered: called with the worker's id once it is known.

    Raises:
        ConfigError: the worker cannot join a fleet.
    """
    for name, value in (QUIET | ONE_MACHINE if settings.discovery == "file" else QUIET).items():
        os.environ.setdefault(name, value)
    import uvloop  # pyright: ignore[reportMissingImports]
    from dynamo.common.backend import Worker  # pyright: ignore[reportMissingImports]

    from drafttree.interfaces.dynamo.fleet_worker import FleetWorker

    def tell(worker_id: int) -> None:
        registered(worker_id)
        frontend = f"python -m dynamo.frontend --discovery-backend {settings.discovery} --migration-limit 3"
        served_model = f"{settings.name!r} ({decoder.fidelity.words})"
        print(
            f"drafttree: worker {os.getpid()} serves {served_model}; start its frontend with: {frontend}",
            file=sys.stderr,
        )

    worker = FleetWorker(decoder, settings, tell)
    try:
        with frozen_heap():
            uvloop.run(Worker(worker, _config(decoder, settings)).run())
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the worker cannot join a fleet by {settings.discovery}: {reason}") from error
    finally:
        worker.close()


def _config(decoder: Decoder, settings: FleetSettings) -> Any:
    from dynamo.common.backend import WorkerConfig  # pyright: ignore[reportMissingImports]

    chats = bool(getattr(decoder.tokenizer, "chat_template", None))
    return WorkerConfig(
        namespace=settings.namespace,
        model_name=settings.files,
        served_model_name=settings.name,
        endpoint_types="chat,completions" if chats else "completions",
        discovery_backend=settings.discovery,
    )
