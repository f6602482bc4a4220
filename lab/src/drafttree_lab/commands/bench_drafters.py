"""`drafttree bench drafters`, `lookup` and `memory`: methods beside each other, their time and their memory."""

from dataclasses import asdict, replace
from typing import Annotated

import typer

from drafttree.core.errors import ConfigError
from drafttree.evaluation.method import Method, parse_methods
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Inflate, Length, PolicySpecs, Repeats, complete_policy, parse_drafters
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress
from drafttree.loading import find_verifier, parse_policies
from drafttree_lab.commands.option_groups import DrawOptions, PromptOptions, TargetOptions

DRAFTERS = "embedded-draft;lookup;mixed:embedded-draft"
POLICIES = "chain;dynatree;talon;eagle;opt-tree"
Methods = Annotated[
    list[str] | None,
    typer.Option(help='"DRAFTER|POLICY|VERIFIER", the last two optional; separate by semicolons, or repeat it.'),
]


@grouped
def bench_drafters_(
    context: typer.Context,
    models: TargetOptions,
    draws: DrawOptions,
    results: ResultOptions,
    prompts: PromptOptions,
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
    inflated: Inflate = None,
    repeats: Repeats = 1,
) -> None:
    """Every drafter with every policy, or --methods: the law's terms by prompt file, and what each drafter costs.

    With --limit, as many prompts are taken of each file, evenly spaced.
    """
    chosen = _chosen_methods(methods, drafters, policies)
    decoder = models.load_plain(inflated)

    from drafttree.evaluation.inflation import drafters_for_inflated
    from drafttree_lab.display import tables as display
    from drafttree_lab.experiment.methods import bench_methods

    texts = prompts.token_ids_by_file(decoder, draws.max_new_tokens)
    store = results.open_store(context, texts)
    names = [method.drafter for method in chosen if method.drafter]
    sources = drafters_for_inflated(decoder, models.target, names) if inflated else {}
    with progress(repeats * sum(map(len, texts.values())) * (len(chosen) + 1)) as advance:
        options = {"repeats": repeats, "progress": advance, "store": store} | asdict(draws)
        result = bench_methods(decoder, chosen, texts, drafters=sources, **options)
    results.finish(store, result.summary(), lambda: display.show_methods(result))


@grouped
def bench_lookup_(
    context: typer.Context,
    prompts: PromptOptions,
    models: TargetOptions,
    results: ResultOptions,
    policies: PolicySpecs = ["chain:depth=10", "talon:budget=16,width=4,depth=10", "talon:depth=10"],  # noqa: B006
    max_new_tokens: Length = 128,
    repeats: Repeats = 3,
) -> None:
    """Lookup drafters on prompt files and on edits of this package's source: trees against chains, cost by length.

    Prompts with a "reference" are also replayed: the reference is taken for the target's output.
    """
    chosen = [*parse_policies(policies).values()]

    from drafttree.drafters import LOOKUPS
    from drafttree_lab.display import tables as display
    from drafttree_lab.experiment.lookup import bench_lookup, code_edits

    sets = {"code edits": code_edits()[: prompts.limit], **prompts.examples_by_file()}
    decoder = models.load_plain()
    ways = sum(1 + any(example.reference for example in examples) for examples in sets.values())
    store = results.open_store(context, sets)
    with progress(ways * len(chosen) * len(LOOKUPS)) as advance:
        options = {"max_new_tokens": max_new_tokens, "repeats": repeats, "progress": advance, "store": store}
        result = bench_lookup(decoder, sets, chosen, form=prompts.prompt_form, **options)
    results.finish(store, result.summary(), lambda: display.show_lookup(result))


@grouped
def bench_memory_(
    context: typer.Context,
    models: TargetOptions,
    draws: DrawOptions,
    results: ResultOptions,
    prompts: PromptOptions = PromptOptions(limit=2),
    methods: Methods = None,
) -> None:
    """The memory that plain decoding and every method need at most, each in a process of its own."""
    found, judge = parse_methods(methods or [DRAFTERS]).values(), find_verifier(models.verifier)
    chosen = [replace(method, verifier=method.verifier or judge) for method in found]

    from drafttree_lab.display import tables as display
    from drafttree_lab.experiment.memory import MemorySetting, bench_memory

    texts = prompts.token_ids(models.load_plain(), draws.max_new_tokens)
    setting = MemorySetting(models.target, models.dtype, models.device, texts, asdict(draws))
    store = results.open_store(context, texts)
    with progress(len(chosen) + 1) as advance:
        result = bench_memory(setting, chosen, progress=advance, store=store)
    results.finish(store, result.summary(), lambda: display.show_memory(result))


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
