"""`drafttree bench arrival`: a long prompt beside texts that are being written."""

from typing import Annotated, Any

import typer

from drafttree.evaluation.shapes import find_shape
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import (
    Device,
    Drafter,
    Dtype,
    Inflate,
    PolicySpec,
    Target,
    Temperature,
)
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress
from drafttree.loading import make_policy
from drafttree.loading.specs import default_policy
from drafttree_lab.commands.option_groups import PromptOptions

ROOM = 256
"""Tokens that a prompt must leave room for in the context."""


@grouped
def bench_arrival_(
    context: typer.Context,
    prompts: PromptOptions,
    results: ResultOptions,
    target: Target = "embedded",
    drafter: Drafter = "auto",
    inflated: Inflate = None,
    policy: PolicySpec = None,
    arriving: Annotated[int, typer.Option(min=2, help="Length of the arriving prompt in tokens.")] = 1500,
    running: Annotated[int, typer.Option(min=1, help="Number of texts being generated meanwhile.")] = 4,
    temperature: Temperature = 0.0,
    repeats: Annotated[int, typer.Option(min=1, help="Number of arriving prompts.")] = 3,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Time tokens of running texts while a long prompt arrives."""
    chosen = make_policy(policy) if policy else default_policy(None)
    if inflated:
        find_shape(inflated)

    from drafttree.evaluation.inflation import load_inflated
    from drafttree.interfaces.cli.decoders import load_named
    from drafttree_lab.display.arrival import show_arrival
    from drafttree_lab.load.arrival import bench_arrival

    decoder = load_inflated(target, drafter, inflated, dtype, device) if inflated else None
    decoder = (decoder or load_named(target, drafter, dtype=dtype, device=device)).with_policy(chosen)
    texts = prompts.mixed_token_ids(decoder, ROOM)
    store = results.open_store(context, texts)
    options: dict[str, Any] = {
        "prompt_tokens": arriving,
        "running": running,
        "repeats": repeats,
        "temperature": temperature,
    }
    with progress(repeats) as advance:
        result = bench_arrival(decoder, texts, progress=advance, store=store, **options)
    results.finish(store, result.summary(), lambda: show_arrival(result))
