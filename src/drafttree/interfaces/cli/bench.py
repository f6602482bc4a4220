"""`drafttree bench`: measure what speculation gains and what it costs, a command for each question."""

from typing import Annotated, Any

import typer

from drafttree.evaluation.prompts import read_examples, spread_prompts
from drafttree.evaluation.shapes import SHAPES
from drafttree.interfaces.cli.bench_auto import bench_auto_, bench_calibration
from drafttree.interfaces.cli.bench_expansion import bench_expansion_
from drafttree.interfaces.cli.options import (
    AsJson,
    Device,
    Drafter,
    DraftTemperature,
    Dtype,
    Files,
    Length,
    Limit,
    PolicySpecs,
    Quantize,
    QuantizeDrafter,
    Repeats,
    Seed,
    Target,
    Temperature,
    name_files,
    parse_drafters,
    parse_numbers,
    parse_temperatures,
)
from drafttree.interfaces.cli.results import Out, finish, open_store
from drafttree.interfaces.console import progress
from drafttree.loading import parse_policies, parse_verifiers

Inflate = Annotated[str | None, typer.Option("--inflate", help=f"Cost of the target: {', '.join(SHAPES)}.")]

app = typer.Typer(help="Measure what speculation gains and what it costs.", rich_markup_mode=None)
app.command(name="auto")(bench_auto_)
app.command(name="calibration")(bench_calibration)
app.command(name="expansion")(bench_expansion_)


@app.command(name="policies")
def bench_policies_(
    context: typer.Context,
    prompts: Files = None,
    policies: PolicySpecs = ["all"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 3,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    json_: AsJson = False,
) -> None:
    """Every policy and plain decoding, interleaved: every term of the law, predicted and measured speed-up."""
    chosen = [*parse_policies(policies).values()]

    from drafttree.evaluation.bench import bench_policies
    from drafttree.interfaces import display
    from drafttree.interfaces.cli.decoders import load_speculative, read_token_ids

    decoder = load_speculative(target, drafter, dtype, device)
    texts = read_token_ids(decoder, prompts, limit, max_new_tokens)
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    store = open_store(context, texts)
    with progress(repeats * len(texts) * (len(chosen) + 1)) as advance:
        result = bench_policies(decoder, texts, chosen, repeats=repeats, progress=advance, store=store, **options)
    finish(store, json_, result.summary(), lambda: display.show_bench(result))


@app.command(name="law")
def bench_law(
    context: typer.Context,
    prompts: Files = None,
    policies: PolicySpecs = ["chain;dynatree;talon;eagle;opt-tree;fixed"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
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
    json_: AsJson = False,
) -> None:
    """Passes, memory bandwidth, and greedy decoding against both; with --inflate at the cost of a larger target.

    An inflated target computes what the small one does: real acceptance of the pair at the cost of the large model.
    """
    chosen = [*parse_policies(policies).values()]

    from drafttree.evaluation.bench import measure_law
    from drafttree.interfaces import display
    from drafttree.interfaces.cli.decoders import load_speculative, read_token_ids

    kinds: dict[str, Any] = {"quantize": quantize, "quantize_drafter": quantize_drafter}
    decoder = load_speculative(target, drafter, dtype, device, inflated, **kinds)
    texts = read_token_ids(decoder, prompts, limit, max_new_tokens)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "draft_temperature": draft_temperature, "peers": peers}
    options["contexts"] = parse_numbers(contexts, "--contexts") if contexts else ()
    ways = len(chosen) + 1 + (4 if peers else 0)
    store = open_store(context, texts)
    with progress(repeats * len(texts) * ways) as advance:
        law = measure_law(decoder, texts, chosen, repeats=repeats, progress=advance, store=store, **options)
    finish(store, json_, law.summary(), lambda: display.show_law(law))


@app.command(name="exact-text")
def bench_exact_text_(
    context: typer.Context,
    prompts: Files = None,
    policies: PolicySpecs = ["chain;dynatree;talon:budget=16,width=4"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    inflated: Inflate = None,
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 3,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    json_: AsJson = False,
) -> None:
    """The price of --exact-text, by turns with decoding without it, and how many texts are plain decoding's."""
    chosen = [*parse_policies(policies).values()]

    from drafttree.evaluation.bench import bench_exact_text
    from drafttree.interfaces import display
    from drafttree.interfaces.cli.decoders import load_speculative, read_token_ids

    decoder = load_speculative(target, drafter, dtype, device, inflated)
    texts = read_token_ids(decoder, prompts, limit, max_new_tokens)
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    store = open_store(context, texts)
    with progress(2 * repeats * len(texts) * (len(chosen) + 1)) as advance:
        rows = bench_exact_text(decoder, texts, chosen, repeats=repeats, progress=advance, store=store, **options)
    finish(store, json_, {"rows": [row.summary() for row in rows]}, lambda: display.show_exact_text(rows))


@app.command(name="verifiers")
def bench_verifiers_(
    context: typer.Context,
    verifiers: Annotated[list[str], typer.Option("--verifiers", "--verifier", help='Names or "all".')] = ["all"],  # noqa: B006
    nodes: Annotated[str, typer.Option(help="Tree sizes, root included.")] = "16,64,256",
    vocab: Annotated[str, typer.Option(help="Vocabulary sizes.")] = "4000,32000,128000",
    hidden: Annotated[int, typer.Option(min=1, help="Width of the hidden states the logits are made from.")] = 4096,
    temperature: Annotated[float, typer.Option(help="Above 0; greedy decodes at 0.")] = 1.0,
    repeats: Repeats = 5,
    device: Device = "auto",
    out: Out = None,
    json_: AsJson = False,
) -> None:
    """The time every verifier takes for a tree, beside that of the logits it needs, on synthetic trees."""
    sizes, vocabs = parse_numbers(nodes, "--nodes"), parse_numbers(vocab, "--vocab")
    chosen = [*parse_verifiers(verifiers).values()]

    from drafttree.evaluation.bench import bench_verifiers
    from drafttree.interfaces import display
    from drafttree.loading import find_device

    on = find_device(device)
    options = {"hidden": hidden, "temperature": temperature, "repeats": repeats, "device": on}
    store = open_store(context)
    with progress(len(sizes) * len(vocabs) * len(chosen)) as advance:
        result = bench_verifiers(chosen, nodes=sizes, vocabs=vocabs, progress=advance, store=store, **options)
    finish(store, json_, result.summary(), lambda: display.show_verifier_times(result))


@app.command(name="acceptance")
def bench_acceptance_(
    context: typer.Context,
    prompts: Files = None,
    target: Target = "embedded",
    drafter: Drafter = "auto",
    temperatures: Annotated[str, typer.Option(help="Above 0.")] = "0.2,0.4,0.6,0.8,1.0",
    rounds: Annotated[int, typer.Option(min=1, help="Rounds judged per prompt and temperature.")] = 2,
    stride: Annotated[int, typer.Option(min=1, help="Tokens between them.")] = 24,
    seed: Seed = 0,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    json_: AsJson = False,
) -> None:
    """Tokens that RRSw, Traversal, PointMass and Coupled accept, over tree shapes and temperatures.

    With --limit, as many prompts are taken of each file, evenly spaced.
    """
    warmth = parse_temperatures(temperatures)

    from drafttree.evaluation.bench import bench_acceptance
    from drafttree.evaluation.bench.policies import shipped_prompts
    from drafttree.evaluation.certify import fit
    from drafttree.interfaces import display
    from drafttree.interfaces.cli.decoders import load_speculative

    decoder = load_speculative(target, drafter, dtype, device)
    texts = spread_prompts(prompts, limit) if prompts else shipped_prompts()[:limit]
    ids = [fit(decoder, text, rounds * stride + 64)[0] for text in texts]
    options = {"temperatures": warmth, "rounds": rounds, "stride": stride, "seed": seed}
    store = open_store(context, texts)
    with progress(len(warmth) * len(ids)) as advance:
        result = bench_acceptance(decoder, ids, progress=advance, store=store, **options)
    finish(store, json_, result.summary(), lambda: display.show_acceptance(result))


@app.command(name="overhead")
def bench_overhead(
    context: typer.Context,
    prompts: Files = None,
    policies: PolicySpecs = ["all"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 3,
    limit: Limit = 2,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    json_: AsJson = False,
) -> None:
    """The time of a round outside the two models' forward passes, and where it goes."""
    chosen = [*parse_policies(policies).values()]

    from drafttree.evaluation.bench import measure_overhead
    from drafttree.interfaces import display
    from drafttree.interfaces.cli.decoders import load_speculative, read_token_ids

    decoder = load_speculative(target, drafter, dtype, device)
    texts = read_token_ids(decoder, prompts, limit, max_new_tokens)
    options = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    store = open_store(context, texts)
    rows = measure_overhead(decoder, texts, chosen, repeats=repeats, store=store, **options)
    finish(store, json_, {"rows": [row.summary() for row in rows]}, lambda: display.show_overhead(rows))


@app.command(name="drafters")
def bench_drafters_(
    context: typer.Context,
    prompts: Files = None,
    drafters: Annotated[list[str], typer.Option("--drafters", "--drafter", help="Names, folders or hub names.")] = [  # noqa: B006
        "embedded-draft;lookup;mixed:embedded-draft"
    ],
    policies: PolicySpecs = ["chain;dynatree;talon;eagle;opt-tree"],  # noqa: B006
    target: Target = "embedded",
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts of each file at most, evenly spaced.")] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    json_: AsJson = False,
) -> None:
    """Every drafter with every policy on one target: the law's terms by prompt file, and what each drafter costs."""
    chosen = [*parse_policies(policies).values()]
    names = parse_drafters(drafters)

    from drafttree.evaluation.bench import bench_drafters
    from drafttree.evaluation.bench.policies import shipped_prompts
    from drafttree.evaluation.certify import fit
    from drafttree.evaluation.reference import transformers_model
    from drafttree.interfaces import display
    from drafttree.interfaces.cli.decoders import load_named
    from drafttree.loading import find_drafter

    decoder = load_named(target, "none", dtype=dtype, device=device)
    model = transformers_model(decoder)
    found = {name: drafter for name in names if (drafter := find_drafter(name, model, decoder.tokenizer))}
    files = {name: spread_prompts([path], limit) for name, path in name_files(prompts)}
    sets = files or {"openings": shipped_prompts()[:limit]}
    texts = {name: [fit(decoder, text, max_new_tokens)[0] for text in given] for name, given in sets.items()}
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    ways = repeats * sum(map(len, texts.values())) * (len(chosen) * len(found) + 1)
    store = open_store(context, texts)
    with progress(ways) as advance:
        options |= {"repeats": repeats, "progress": advance, "store": store}
        result = bench_drafters(decoder, found, texts, chosen, **options)
    finish(store, json_, result.summary(), lambda: display.show_drafters(result))


@app.command(name="lookup")
def bench_lookup_(
    context: typer.Context,
    prompts: Files = None,
    policies: PolicySpecs = ["chain:depth=10", "talon:budget=16,width=4,depth=10", "talon:depth=10"],  # noqa: B006
    target: Target = "embedded",
    max_new_tokens: Length = 128,
    repeats: Repeats = 3,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    json_: AsJson = False,
) -> None:
    """Lookup drafters on prompt files and on edits of this package's source: trees against chains, cost by length.

    Prompts with a "reference" are also replayed: the reference is taken for the target's output.
    """
    chosen = [*parse_policies(policies).values()]

    from drafttree.drafters import LOOKUPS
    from drafttree.evaluation.bench import bench_lookup, code_edits
    from drafttree.interfaces import display
    from drafttree.interfaces.cli.decoders import load_named

    sets = {"code edits": code_edits()[:limit]}
    sets |= {name: read_examples(path, limit) for name, path in name_files(prompts)}
    decoder = load_named(target, "none", dtype=dtype, device=device)
    ways = sum(1 + any(example.reference for example in examples) for examples in sets.values())
    store = open_store(context, sets)
    with progress(ways * len(chosen) * len(LOOKUPS)) as advance:
        options = {"max_new_tokens": max_new_tokens, "repeats": repeats, "progress": advance, "store": store}
        result = bench_lookup(decoder, sets, chosen, **options)
    finish(store, json_, result.summary(), lambda: display.show_lookup(result))
