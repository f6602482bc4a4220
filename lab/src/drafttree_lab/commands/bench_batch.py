"""`drafttree bench batch`: many requests at once, by batch size."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from drafttree.core.sampling import Sampling
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import (
    Device,
    Drafter,
    Dtype,
    Inflate,
    PolicySpec,
    Target,
    parse_numbers,
)
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress
from drafttree.loading import make_policy
from drafttree.loading.specs import default_policy
from drafttree.measure.shapes import find_shape
from drafttree_lab.options import DrawOptions, PromptOptions

Turns = Annotated[int, typer.Option(min=1, help="Number of turns per size, each with other prompts.")]


@grouped
def bench_batch_(
    context: typer.Context,
    prompts: PromptOptions,
    results: ResultOptions,
    draws: DrawOptions = DrawOptions(max_new_tokens=64),
    batches: Annotated[str, typer.Option(help="Batch sizes.")] = "1,2,4,8,16,32,64",
    target: Target = "embedded",
    drafter: Drafter = "auto",
    inflated: Inflate = None,
    policy: PolicySpec = None,
    budgets: Annotated[
        str, typer.Option(help="Fixed budgets to compare with: drafted nodes per request and round.")
    ] = "1,2,4,8",
    transformers: Annotated[
        bool, typer.Option("--transformers/--no-transformers", help="Also run transformers' generate_batch.")
    ] = True,
    one_by_one: Annotated[
        bool, typer.Option("--one-by-one/--no-one-by-one", help="Also generate one text after the other.")
    ] = True,
    repeats: Turns = 3,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Measure speculation by batch size.

    Compares the shared budget with packed plain decoding, fixed budgets and transformers, in turns on the same prompts,
    with texts of the same length.
    """
    sizes, nodes = parse_numbers(batches, "--batches", 1), parse_numbers(budgets, "--budgets", 1)
    chosen = make_policy(policy) if policy else default_policy(None)
    Sampling.from_options(asdict(draws))
    if inflated:
        find_shape(inflated)

    from drafttree.interfaces.cli.decoders import load_speculative
    from drafttree_lab.display.batch import show_batch
    from drafttree_lab.load.batch import bench_batch

    decoder = load_speculative(target, drafter, dtype, device, inflated).with_policy(chosen)
    texts = prompts.mixed_token_ids(decoder, draws.max_new_tokens)
    options: dict[str, Any] = asdict(draws) | {
        "sizes": sorted({*sizes}),
        "budgets": nodes,
        "transformers": transformers,
        "one_by_one": one_by_one,
    }
    store = results.open_store(context, texts)
    runs = repeats * (len(options["sizes"]) * (2 + len(nodes) + transformers) + one_by_one)
    with progress(runs) as advance:
        result = bench_batch(decoder, texts, repeats=repeats, progress=advance, store=store, **options)
    results.finish(store, result.summary(), lambda: show_batch(result))
