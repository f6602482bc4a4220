"""`drafttree bench`: measure what speculation gains and what it costs, a command for each question."""

from dataclasses import asdict
from typing import Annotated, Any

import typer

from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import (
    DraftTemperature,
    Inflate,
    Length,
    PolicySpecs,
    Quantize,
    QuantizeDrafter,
    Repeats,
    parse_numbers,
)
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress
from drafttree.loading import parse_policies
from drafttree_lab.commands.bench_batch import bench_batch_
from drafttree_lab.commands.bench_drafters import bench_drafters_, bench_memory_
from drafttree_lab.commands.bench_expansion import bench_expansion_
from drafttree_lab.commands.bench_peers import bench_peers_
from drafttree_lab.commands.bench_serve import bench_serve_
from drafttree_lab.commands.bench_verifiers import bench_acceptance_, bench_verifiers_
from drafttree_lab.commands.option_groups import DrawOptions, PairOptions, PromptOptions

app = typer.Typer(help="Measure what speculation gains and what it costs.", rich_markup_mode=None, add_completion=False)
app.command(name="batch")(bench_batch_)
app.command(name="drafters")(bench_drafters_)
app.command(name="memory")(bench_memory_)
app.command(name="peers")(bench_peers_)
app.command(name="serve")(bench_serve_)
app.command(name="verifiers")(bench_verifiers_)
app.command(name="acceptance")(bench_acceptance_)
app.command(name="expansion")(bench_expansion_)


@app.command(name="policies")
@grouped
def bench_policies_(
    context: typer.Context,
    prompts: PromptOptions,
    models: PairOptions,
    draws: DrawOptions,
    results: ResultOptions,
    policies: PolicySpecs = ["all"],  # noqa: B006
    repeats: Repeats = 3,
) -> None:
    """Measure every policy against plain decoding.

    In turns, with all terms of the speed-up, predicted and measured.
    """
    chosen = [*parse_policies(policies).values()]
    decoder = models.load()

    from drafttree_lab.display import tables as display
    from drafttree_lab.experiment.methods import bench_policies

    texts = prompts.token_ids(decoder, draws.max_new_tokens)
    store = results.open_store(context, texts)
    with progress(repeats * len(texts) * (len(chosen) + 1)) as advance:
        options = {"repeats": repeats, "progress": advance, "store": store} | asdict(draws)
        result = bench_policies(decoder, texts, chosen, **options)
    results.finish(store, result.summary(), lambda: display.show_methods(result))


@app.command(name="law")
@grouped
def bench_law(
    context: typer.Context,
    prompts: PromptOptions,
    models: PairOptions,
    results: ResultOptions,
    policies: PolicySpecs = ["chain;dynatree;talon;eagle;opt-tree;fixed"],  # noqa: B006
    inflated: Inflate = None,
    max_new_tokens: Length = 128,
    draft_temperature: DraftTemperature = 1.0,
    repeats: Repeats = 3,
    contexts: Annotated[
        str | None, typer.Option(help='Also time passes at these context lengths, such as "512,2048,8192".')
    ] = None,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Also time transformers' own methods.")] = True,
    quantize: Quantize = None,
    quantize_drafter: QuantizeDrafter = None,
) -> None:
    """Measure passes, bandwidth, and decoding against both.

    With --inflate at the cost of a larger target, which computes what the small one does: the pair's real acceptance at
    the large model's cost.
    """
    chosen = [*parse_policies(policies).values()]
    lengths = parse_numbers(contexts, "--contexts") if contexts else ()
    decoder = models.load(inflated, quantize=quantize, quantize_drafter=quantize_drafter)

    from drafttree_lab.display import tables as display
    from drafttree_lab.experiment.law import measure_law

    texts = prompts.token_ids(decoder, max_new_tokens)
    store = results.open_store(context, texts)
    with progress(repeats * len(texts) * (len(chosen) + 1 + (4 if peers else 0))) as advance:
        options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "draft_temperature": draft_temperature}
        options |= {"repeats": repeats, "contexts": lengths, "peers": peers, "progress": advance, "store": store}
        law = measure_law(decoder, texts, chosen, **options)
    results.finish(store, law.summary(), lambda: display.show_law(law))


@app.command(name="exact-text")
@grouped
def bench_exact_text_(
    context: typer.Context,
    prompts: PromptOptions,
    models: PairOptions,
    draws: DrawOptions,
    results: ResultOptions,
    policies: PolicySpecs = ["chain;dynatree;talon:budget=16,width=4"],  # noqa: B006
    inflated: Inflate = None,
    repeats: Repeats = 3,
) -> None:
    """Measure what --exact-text costs and changes.

    In turns with decoding without it, and how many texts are plain decoding's.
    """
    chosen = [*parse_policies(policies).values()]
    decoder = models.load(inflated)

    from drafttree_lab.display import tables as display
    from drafttree_lab.experiment.exact_text import bench_exact_text

    texts = prompts.token_ids(decoder, draws.max_new_tokens)
    store = results.open_store(context, texts)
    with progress(2 * repeats * len(texts) * (len(chosen) + 1)) as advance:
        options = {"repeats": repeats, "progress": advance, "store": store} | asdict(draws)
        rows = bench_exact_text(decoder, texts, chosen, **options)
    results.finish(store, {"rows": [row.summary() for row in rows]}, lambda: display.show_exact_text(rows))


@app.command(name="overhead")
@grouped
def bench_overhead(
    context: typer.Context,
    models: PairOptions,
    draws: DrawOptions,
    results: ResultOptions,
    prompts: PromptOptions = PromptOptions(limit=2),
    policies: PolicySpecs = ["all"],  # noqa: B006
    repeats: Repeats = 3,
) -> None:
    """Measure the time of a round outside the two models."""
    chosen = [*parse_policies(policies).values()]
    decoder = models.load()

    from drafttree_lab.display import tables as display
    from drafttree_lab.experiment.overhead import measure_overhead

    texts = prompts.token_ids(decoder, draws.max_new_tokens)
    store = results.open_store(context, texts)
    rows = measure_overhead(decoder, texts, chosen, repeats=repeats, store=store, **asdict(draws))
    results.finish(store, {"rows": [row.summary() for row in rows]}, lambda: display.show_overhead(rows))
