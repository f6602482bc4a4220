"""`drafttree bench`: measure what speculation gains and what it costs, a command for each question."""

from typing import Annotated, Any

import typer

from drafttree.evaluation.prompt_form import PromptForm
from drafttree.interfaces.cli.options import (
    AsJson,
    Device,
    Drafter,
    DraftTemperature,
    Dtype,
    Files,
    Inflate,
    Length,
    Limit,
    PolicySpecs,
    Quantize,
    QuantizeDrafter,
    Repeats,
    Seed,
    Target,
    Temperature,
    VerifierName,
    formed,
    parse_numbers,
)
from drafttree.interfaces.cli.results import Minutes, Out, finish, open_store
from drafttree.interfaces.console import progress
from drafttree.loading import find_verifier, parse_policies
from drafttree_lab.commands.bench_arrival import bench_arrival_
from drafttree_lab.commands.bench_auto import bench_auto_, bench_calibration
from drafttree_lab.commands.bench_batch import bench_batch_
from drafttree_lab.commands.bench_drafters import bench_drafters_, bench_lookup_, bench_memory_
from drafttree_lab.commands.bench_expansion import bench_expansion_
from drafttree_lab.commands.bench_serve import bench_serve_
from drafttree_lab.commands.bench_verifiers import bench_acceptance_, bench_verifiers_

app = typer.Typer(help="Measure what speculation gains and what it costs.", rich_markup_mode=None, add_completion=False)
app.command(name="arrival")(bench_arrival_)
app.command(name="auto")(bench_auto_)
app.command(name="batch")(bench_batch_)
app.command(name="calibration")(bench_calibration)
app.command(name="drafters")(bench_drafters_)
app.command(name="lookup")(bench_lookup_)
app.command(name="memory")(bench_memory_)
app.command(name="serve")(bench_serve_)
app.command(name="verifiers")(bench_verifiers_)
app.command(name="acceptance")(bench_acceptance_)
app.command(name="expansion")(bench_expansion_)


@app.command(name="policies")
@formed
def bench_policies_(
    context: typer.Context,
    prompts: Files = None,
    policies: PolicySpecs = ["all"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    verifier: VerifierName = "auto",
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 3,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    minutes: Minutes = None,
    json_: AsJson = False,
    *,
    form: PromptForm,
) -> None:
    """Every policy and plain decoding, interleaved: every term of the law, predicted and measured speed-up."""
    chosen, judge = [*parse_policies(policies).values()], find_verifier(verifier)

    from drafttree.interfaces.cli.decoders import load_speculative, read_token_ids
    from drafttree_lab.bench import bench_policies
    from drafttree_lab.display import tables as display

    decoder = load_speculative(target, drafter, dtype, device, verifier=judge)
    texts = read_token_ids(decoder, prompts, limit, max_new_tokens, form)
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    store = open_store(context, texts, minutes=minutes)
    with progress(repeats * len(texts) * (len(chosen) + 1)) as advance:
        result = bench_policies(decoder, texts, chosen, repeats=repeats, progress=advance, store=store, **options)
    finish(store, json_, result.summary(), lambda: display.show_bench(result))


@app.command(name="law")
@formed
def bench_law(
    context: typer.Context,
    prompts: Files = None,
    policies: PolicySpecs = ["chain;dynatree;talon;eagle;opt-tree;fixed"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    verifier: VerifierName = "auto",
    inflated: Inflate = None,
    max_new_tokens: Length = 128,
    draft_temperature: DraftTemperature = 1.0,
    repeats: Repeats = 3,
    limit: Limit = None,
    contexts: Annotated[
        str | None, typer.Option(help='Also time passes behind so many tokens: "512,2048,8192".')
    ] = None,
    peers: Annotated[bool, typer.Option("--peers/--no-peers", help="Also time transformers' own ways.")] = True,
    dtype: Dtype = "auto",
    device: Device = "auto",
    quantize: Quantize = None,
    quantize_drafter: QuantizeDrafter = None,
    out: Out = None,
    minutes: Minutes = None,
    json_: AsJson = False,
    *,
    form: PromptForm,
) -> None:
    """Passes, memory bandwidth, and greedy decoding against both; with --inflate at the cost of a larger target.

    An inflated target computes what the small one does: real acceptance of the pair at the cost of the large model.
    """
    chosen, judge = [*parse_policies(policies).values()], find_verifier(verifier)

    from drafttree.interfaces.cli.decoders import load_speculative, read_token_ids
    from drafttree_lab.bench import measure_law
    from drafttree_lab.display import tables as display

    kinds: dict[str, Any] = {"quantize": quantize, "quantize_drafter": quantize_drafter}
    decoder = load_speculative(target, drafter, dtype, device, inflated, verifier=judge, **kinds)
    texts = read_token_ids(decoder, prompts, limit, max_new_tokens, form)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "draft_temperature": draft_temperature, "peers": peers}
    options["contexts"] = parse_numbers(contexts, "--contexts") if contexts else ()
    ways = len(chosen) + 1 + (4 if peers else 0)
    store = open_store(context, texts, minutes=minutes)
    with progress(repeats * len(texts) * ways) as advance:
        law = measure_law(decoder, texts, chosen, repeats=repeats, progress=advance, store=store, **options)
    finish(store, json_, law.summary(), lambda: display.show_law(law))


@app.command(name="exact-text")
@formed
def bench_exact_text_(
    context: typer.Context,
    prompts: Files = None,
    policies: PolicySpecs = ["chain;dynatree;talon:budget=16,width=4"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    verifier: VerifierName = "auto",
    inflated: Inflate = None,
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 3,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    minutes: Minutes = None,
    json_: AsJson = False,
    *,
    form: PromptForm,
) -> None:
    """The price of --exact-text, by turns with decoding without it, and how many texts are plain decoding's."""
    chosen, judge = [*parse_policies(policies).values()], find_verifier(verifier)

    from drafttree.interfaces.cli.decoders import load_speculative, read_token_ids
    from drafttree_lab.bench import bench_exact_text
    from drafttree_lab.display import tables as display

    decoder = load_speculative(target, drafter, dtype, device, inflated, verifier=judge)
    texts = read_token_ids(decoder, prompts, limit, max_new_tokens, form)
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    store = open_store(context, texts, minutes=minutes)
    with progress(2 * repeats * len(texts) * (len(chosen) + 1)) as advance:
        rows = bench_exact_text(decoder, texts, chosen, repeats=repeats, progress=advance, store=store, **options)
    finish(store, json_, {"rows": [row.summary() for row in rows]}, lambda: display.show_exact_text(rows))


@app.command(name="overhead")
@formed
def bench_overhead(
    context: typer.Context,
    prompts: Files = None,
    policies: PolicySpecs = ["all"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    verifier: VerifierName = "auto",
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 3,
    limit: Limit = 2,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    minutes: Minutes = None,
    json_: AsJson = False,
    *,
    form: PromptForm,
) -> None:
    """The time of a round outside the two models' forward passes, and where it goes."""
    chosen, judge = [*parse_policies(policies).values()], find_verifier(verifier)

    from drafttree.interfaces.cli.decoders import load_speculative, read_token_ids
    from drafttree_lab.bench import measure_overhead
    from drafttree_lab.display import tables as display

    decoder = load_speculative(target, drafter, dtype, device, verifier=judge)
    texts = read_token_ids(decoder, prompts, limit, max_new_tokens, form)
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    store = open_store(context, texts, minutes=minutes)
    rows = measure_overhead(decoder, texts, chosen, repeats=repeats, store=store, **options)
    finish(store, json_, {"rows": [row.summary() for row in rows]}, lambda: display.show_overhead(rows))
