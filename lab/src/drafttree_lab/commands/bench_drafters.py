"""`drafttree bench drafters`, `lookup` and `memory`: methods beside each other, their time and their memory."""

from dataclasses import replace
from typing import Annotated, Any

import typer

from drafttree.core.errors import ConfigError
from drafttree.evaluation.method import Method, parse_methods
from drafttree.evaluation.prompt_form import PromptForm
from drafttree.evaluation.prompts import read_examples
from drafttree.interfaces.cli.options import (
    AsJson,
    Device,
    Dtype,
    Files,
    Length,
    Limit,
    PolicySpecs,
    Repeats,
    Seed,
    Target,
    Temperature,
    VerifierName,
    complete_policy,
    formed,
    name_files,
    parse_drafters,
)
from drafttree.interfaces.cli.results import Minutes, Out, finish, open_store
from drafttree.interfaces.console import progress
from drafttree.loading import find_verifier, parse_policies

DRAFTERS = "embedded-draft;lookup;mixed:embedded-draft"
POLICIES = "chain;dynatree;talon;eagle;opt-tree"
Methods = Annotated[
    list[str] | None,
    typer.Option(help='"DRAFTER|POLICY|VERIFIER", the last two optional; separate by semicolons, or repeat it.'),
]


@formed
def bench_drafters_(
    context: typer.Context,
    prompts: Files = None,
    drafters: Annotated[
        list[str] | None,
        typer.Option("--drafters", "--drafter", help=f'Names, folders or hub names; by default "{DRAFTERS}".'),
    ] = None,
    policies: Annotated[
        list[str] | None,
        typer.Option(
            "--policies",
            "--policy",
            help=f'Specifications or "all", for each drafter; by default "{POLICIES}".',
            autocompletion=complete_policy,
        ),
    ] = None,
    methods: Methods = None,
    target: Target = "embedded",
    verifier: VerifierName = "auto",
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    repeats: Repeats = 1,
    limit: Annotated[int | None, typer.Option(min=1, help="Prompts of each file at most, evenly spaced.")] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    minutes: Minutes = None,
    json_: AsJson = False,
    *,
    form: PromptForm,
) -> None:
    """Every drafter with every policy, or --methods: the law's terms by prompt file, and what each drafter costs."""
    chosen, judge = _chosen_methods(methods, drafters, policies), find_verifier(verifier)

    from drafttree.interfaces.cli.decoders import judged_by, load_named, read_sets
    from drafttree_lab.bench import bench_methods
    from drafttree_lab.display import tables as display

    decoder = judged_by(load_named(target, "none", dtype=dtype, device=device), judge)
    texts = read_sets(decoder, name_files(prompts), limit, max_new_tokens, form)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    ways = repeats * sum(map(len, texts.values())) * (len(chosen) + 1)
    store = open_store(context, texts, minutes=minutes)
    with progress(ways) as advance:
        options |= {"repeats": repeats, "progress": advance, "store": store}
        result = bench_methods(decoder, chosen, texts, **options)
    finish(store, json_, result.summary(), lambda: display.show_drafters(result))


@formed
def bench_lookup_(
    context: typer.Context,
    prompts: Files = None,
    policies: PolicySpecs = ["chain:depth=10", "talon:budget=16,width=4,depth=10", "talon:depth=10"],  # noqa: B006
    target: Target = "embedded",
    verifier: VerifierName = "auto",
    max_new_tokens: Length = 128,
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
    """Lookup drafters on prompt files and on edits of this package's source: trees against chains, cost by length.

    Prompts with a "reference" are also replayed: the reference is taken for the target's output.
    """
    chosen, judge = [*parse_policies(policies).values()], find_verifier(verifier)

    from drafttree.drafters import LOOKUPS
    from drafttree.interfaces.cli.decoders import judged_by, load_named
    from drafttree_lab.bench import bench_lookup, code_edits
    from drafttree_lab.display import tables as display

    sets = {"code edits": code_edits()[:limit]}
    sets |= {name: read_examples(path, limit, **form.selection) for name, path in name_files(prompts)}
    decoder = judged_by(load_named(target, "none", dtype=dtype, device=device), judge)
    ways = sum(1 + any(example.reference for example in examples) for examples in sets.values())
    store = open_store(context, sets, minutes=minutes)
    with progress(ways * len(chosen) * len(LOOKUPS)) as advance:
        options = {"max_new_tokens": max_new_tokens, "repeats": repeats, "progress": advance, "store": store}
        result = bench_lookup(decoder, sets, chosen, form=form, **options)
    finish(store, json_, result.summary(), lambda: display.show_lookup(result))


@formed
def bench_memory_(
    context: typer.Context,
    prompts: Files = None,
    methods: Methods = None,
    target: Target = "embedded",
    verifier: VerifierName = "auto",
    max_new_tokens: Length = 128,
    temperature: Temperature = 0.0,
    seed: Seed = 0,
    limit: Limit = 2,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    minutes: Minutes = None,
    json_: AsJson = False,
    *,
    form: PromptForm,
) -> None:
    """The memory that plain decoding and every method need at most, each in a process of its own."""
    found, judge = parse_methods(methods or [DRAFTERS]).values(), find_verifier(verifier)
    chosen = [replace(method, verifier=method.verifier or judge) for method in found]

    from drafttree.interfaces.cli.decoders import load_named, read_token_ids
    from drafttree_lab.bench.memory import MemorySetting, bench_memory
    from drafttree_lab.display import memory as display_memory

    texts = read_token_ids(load_named(target, "none", dtype=dtype, device=device), prompts, limit, max_new_tokens, form)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    setting = MemorySetting(target, dtype, device, texts, options)
    store = open_store(context, texts, minutes=minutes)
    with progress(len(chosen) + 1) as advance:
        result = bench_memory(setting, chosen, progress=advance, store=store)
    finish(store, json_, result.summary(), lambda: display_memory.show_memory(result))


def _chosen_methods(methods: list[str] | None, drafters: list[str] | None, policies: list[str] | None) -> list[Method]:
    """The methods that are named, or every drafter with every policy.

    Raises:
        ConfigError: both are given, or a name is wrong.
    """
    if methods and (drafters or policies):
        raise ConfigError("--methods names drafters and policies; leave out --drafters and --policies")
    if methods:
        return [*parse_methods(methods).values()]
    grown = parse_policies(policies or [POLICIES]).values()
    return [Method(name, policy) for name in parse_drafters(drafters or [DRAFTERS]) for policy in grown]
