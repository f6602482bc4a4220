"""`drafttree bench drafters` and `memory`: methods beside each other, their time and their memory."""

from dataclasses import asdict, replace
from typing import Annotated

import typer

from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Inflate, Repeats, complete_policy, parse_drafters
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress
from drafttree.loading import find_verifier, parse_policies
from drafttree.measure.method import Method, parse_methods
from drafttree_lab.commands.option_groups import DrawOptions, PromptOptions, TargetOptions

DRAFTERS = "embedded-draft;lookup;mixed:embedded-draft"
POLICIES = "chain;dynatree;talon;eagle;opt-tree"
Methods = Annotated[
    list[str] | None,
    typer.Option(
        help='Methods as "DRAFTER|POLICY|VERIFIER" (the last two optional), separated by semicolons. May be repeated.'
    ),
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
    """Measure every drafter with every policy.

    Or those of --methods. Prints the terms of the speed-up by prompt file, and what each drafter costs. --limit takes
    that many prompts from each file, evenly spaced.
    """
    chosen = _chosen_methods(methods, drafters, policies)
    decoder = models.load_plain(inflated)

    from drafttree.measure.inflation import drafters_for_inflated
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
def bench_memory_(
    context: typer.Context,
    models: TargetOptions,
    draws: DrawOptions,
    results: ResultOptions,
    prompts: PromptOptions = PromptOptions(limit=2),
    methods: Methods = None,
) -> None:
    """Measure the peak memory of methods, each in its own process."""
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
