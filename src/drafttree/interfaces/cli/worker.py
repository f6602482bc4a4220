"""`drafttree worker`: one of many that NVIDIA Dynamo's frontend serves as one model."""

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from typing import Annotated, Any

import typer

from drafttree.core.counts import MAX_BATCH, MAX_TOKEN_GAP
from drafttree.core.requirements import check_requirements
from drafttree.interfaces.cli.option_groups import DecoderOptions, grouped
from drafttree.interfaces.cli.options import (
    MaxBatch,
    MaxModelLen,
    MaxTokenGap,
    PrefixTokens,
    ServedTarget,
    ServedTargetName,
    choose_target,
)


class Discovery(StrEnum):
    """How frontend and workers find each other."""

    FILE = "file"
    ETCD = "etcd"
    KUBERNETES = "kubernetes"


@grouped
def worker(
    name: ServedTargetName = None,
    target: ServedTarget = None,
    *,
    models: DecoderOptions,
    discovery: Annotated[
        Discovery, typer.Option(help='How the frontend and workers find each other. "file" works on one machine only.')
    ] = Discovery.FILE,
    served_model_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Model name that clients use.", show_default="the target's name"),
    ] = None,
    namespace: Annotated[str, typer.Option(metavar="NAME", help="Dynamo namespace.")] = "dynamo",
    max_batch: MaxBatch = MAX_BATCH,
    max_kv_tokens: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="TOKENS",
            help="Maximum number of tokens in all KV caches.",
            show_default="half of the memory",
        ),
    ] = None,
    max_model_len: MaxModelLen = None,
    prefix_tokens: PrefixTokens = None,
    max_token_gap: MaxTokenGap = MAX_TOKEN_GAP,
) -> None:
    """Run a worker behind NVIDIA Dynamo's frontend.

    If a worker dies, another one continues its texts, and they stay the same: a text depends on its prompt and seed
    alone. See docs/fleet.md.
    """
    target = choose_target(name, target)
    models.check()

    from drafttree.interfaces.dynamo.fleet_settings import FleetSettings
    from drafttree.interfaces.dynamo.supervisor import supervise

    check_requirements("a worker", "dynamo")
    settings = FleetSettings(
        target,
        served_model_name or target,
        discovery.value,
        namespace,
        max_batch=max_batch,
        max_kv_tokens=max_kv_tokens,
        prefix_tokens=prefix_tokens,
        max_token_gap=max_token_gap,
        max_model_len=max_model_len,
    )
    serves = partial(_serve, target, models, settings)
    if discovery is not Discovery.FILE:
        serves(lambda _: None)
        return
    raise typer.Exit(supervise(serves))


def _serve(target: str, models: DecoderOptions, settings: Any, registered: Callable[[int], None]) -> None:
    from drafttree.interfaces.dynamo.serving import serve

    serve(models.load_served(target, settings.max_model_len), settings, registered)
