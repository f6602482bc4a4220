"""Serves a decoder as a worker of a fleet, in this process."""

import importlib.util
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass

from drafttree.core.errors import ConfigError
from drafttree.engine.batching import Engine
from drafttree.engine.decoder import Decoder
from drafttree.loading import zoo

QUIET = {"DYN_LOG": "warn"}
ONE_MACHINE = {"DYN_TCP_RPC_HOST": "127.0.0.1", "DYN_SELF_HOST_METADATA": "0"}
"""Where Dynamo's runtime listens, and that the frontend finds the tokenizer's files on this disk."""


@dataclass(frozen=True)
class FleetSettings:
    """A worker's place in its fleet.

    Attributes:
        model: what was loaded: an embedded name, a folder or a hub name.
        name: by which clients ask for the model.
        discovery: how frontend and workers find each other: "file", "etcd" or "kubernetes".
        namespace: of the fleet.
        max_batch: texts that are written at once, at most.
        max_kv_tokens: rows of all KV caches, None for what fits.
    """

    model: str
    name: str
    discovery: str
    namespace: str
    max_batch: int
    max_kv_tokens: int | None

    @property
    def files(self) -> str:
        """Where the frontend finds the tokenizer and the chat template."""
        return str(zoo.folder(self.model)) if self.model in zoo.MODELS else self.model


def check_installed() -> None:
    """Refuse to go on without the extra.

    Raises:
        ConfigError: it is missing.
    """
    if importlib.util.find_spec("dynamo") is None:
        raise ConfigError("a worker needs NVIDIA Dynamo, which is not installed: pip install drafttree[dynamo]")


def serve(decoder: Decoder, settings: FleetSettings, registered: Callable[[int], None] = lambda _: None) -> None:
    """Serve until the process is told to end.

    Args:
        decoder: that writes the texts.
        settings: the place in the fleet.
        registered: called with the worker's id when it is known.

    Raises:
        ConfigError: there is no fleet to join.
    """
    for name, value in (QUIET | ONE_MACHINE if settings.discovery == "file" else QUIET).items():
        os.environ.setdefault(name, value)
    import uvloop
    from dynamo.common.backend import Worker, WorkerConfig

    from drafttree.interfaces.dynamo.fleet_worker import FleetWorker

    def tell(worker_id: int) -> None:
        registered(worker_id)
        _say(f"worker {os.getpid()} serves {settings.name!r} to {_frontend(settings.discovery)}")

    engine = Engine(decoder, max_batch=settings.max_batch, max_kv_tokens=settings.max_kv_tokens)
    worker = FleetWorker(engine, settings.files, settings.name, settings.max_batch, tell)
    chats = bool(getattr(decoder.tokenizer, "chat_template", None))
    config = WorkerConfig(
        namespace=settings.namespace,
        model_name=settings.files,
        served_model_name=settings.name,
        endpoint_types="chat,completions" if chats else "completions",
        discovery_backend=settings.discovery,
    )
    try:
        uvloop.run(Worker(worker, config).run())
    except Exception as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"the worker cannot join a fleet by {settings.discovery}: {reason}") from error
    finally:
        engine.close()


def _frontend(discovery: str) -> str:
    return f"python -m dynamo.frontend --discovery-backend {discovery} --request-plane tcp --migration-limit 3"


def _say(text: str) -> None:
    print(f"drafttree: {text}", file=sys.stderr, flush=True)
