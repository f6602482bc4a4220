"""`drafttree worker`: one of many that NVIDIA Dynamo's frontend serves as one model."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from drafttree.core.counts import MAX_BATCH, MAX_TOKEN_GAP
from drafttree.core.requirements import check_requirements
from drafttree.interfaces.cli.option_groups import DecoderOptions, grouped
from drafttree.interfaces.cli.options import MaxBatch, MaxModelLen, MaxTokenGap, PrefixTokens


class Discovery(StrEnum):
    """How frontend and workers find each other."""

    FILE = "file"
    ETCD = "etcd"
    KUBERNETES = "kubernetes"


@grouped
def worker(
    models: DecoderOptions,
    model: Annotated[
        str, typer.Argument(help='The model to serve: "embedded", a folder, a GGUF file or a hub name.')
    ] = "embedded",
    discovery: Annotated[
        Discovery, typer.Option(help='How the frontend and workers find each other. "file" works on one machine only.')
    ] = Discovery.FILE,
    served_model_name: Annotated[str | None, typer.Option(help="Model name that clients use. Default: MODEL.")] = None,
    namespace: Annotated[str, typer.Option(help="Dynamo namespace.")] = "dynamo",
    max_batch: MaxBatch = MAX_BATCH,
    max_kv_tokens: Annotated[
        int | None, typer.Option(min=1, help="Maximum number of tokens in all KV caches. Default: half of the memory.")
    ] = None,
    max_model_len: MaxModelLen = None,
    prefix_tokens: PrefixTokens = None,
    max_token_gap: MaxTokenGap = MAX_TOKEN_GAP,
) -> None:
    """Run a worker behind NVIDIA Dynamo's frontend.

    If a worker dies, another one continues its texts, and they stay the same: a text depends on its prompt and seed
    alone. See docs/fleet.md.
    """
    models.check()

    from drafttree.interfaces.dynamo.fleet_settings import FleetSettings
    from drafttree.interfaces.dynamo.supervisor import supervise

    check_requirements("a worker", "dynamo")
    name = served_model_name or model
    limits = max_batch, max_kv_tokens, prefix_tokens, max_token_gap, max_model_len
    settings = FleetSettings(model, name, discovery.value, namespace, *limits)
    serves = partial(_serve, model, models, settings)
    if discovery is not Discovery.FILE:
        serves(lambda _: None)
        return
    raise typer.Exit(supervise(serves))


def _serve(target: str, models: DecoderOptions, settings: Any, registered: Callable[[int], None]) -> None:
    from drafttree.interfaces.dynamo.serving import serve

    serve(models.load_served(target, settings.max_model_len), settings, registered)
