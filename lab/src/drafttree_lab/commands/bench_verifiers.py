"""`drafttree bench verifiers` and `acceptance`: the time verifiers take, and the tokens they accept."""

from typing import Annotated

import typer

from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import (
    Device,
    Drafter,
    Dtype,
    Repeats,
    Seed,
    Target,
    complete_policy,
    complete_verifier,
    parse_numbers,
    parse_temperatures,
)
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress
from drafttree.loading import parse_policies, parse_verifiers
from drafttree_lab.options import PromptOptions

Verifiers = Annotated[
    list[str],
    typer.Option(
        "--verifiers", "--verifier", help='Verifiers, separated by commas, or "all".', autocompletion=complete_verifier
    ),
]


@grouped
def bench_verifiers_(
    context: typer.Context,
    results: ResultOptions,
    verifiers: Verifiers = ["all"],  # noqa: B006
    nodes: Annotated[str, typer.Option(help="Tree sizes, root included.")] = "16,64,256",
    vocab: Annotated[str, typer.Option(help="Vocabulary sizes.")] = "4000,32000,128000",
    hidden: Annotated[int, typer.Option(min=1, help="Width of the hidden states.")] = 4096,
    temperature: Annotated[float, typer.Option(help="Sampling temperature, above 0.")] = 1.0,
    repeats: Repeats = 5,
    device: Device = "auto",
) -> None:
    """Time every verifier on synthetic trees.

    Beside the time of the logits it needs.
    """
    sizes, vocabs = parse_numbers(nodes, "--nodes"), parse_numbers(vocab, "--vocab")
    chosen = [*parse_verifiers(verifiers).values()]

    from drafttree.loading import find_device
    from drafttree_lab.display import tables as display
    from drafttree_lab.micro.verifiers import bench_verifiers

    on = find_device(device)
    options = {"hidden": hidden, "temperature": temperature, "repeats": repeats, "device": on}
    store = results.open_store(context)
    with progress(len(sizes) * len(vocabs) * len(chosen)) as advance:
        result = bench_verifiers(chosen, nodes=sizes, vocabs=vocabs, progress=advance, store=store, **options)
    results.finish(store, result.summary(), lambda: display.show_verifier_times(result))


@grouped
def bench_acceptance_(
    context: typer.Context,
    prompts: PromptOptions,
    results: ResultOptions,
    target: Target = "embedded",
    drafter: Drafter = "auto",
    shapes: Annotated[
        list[str] | None,
        typer.Option(
            help='Policies, such as "chain:depth=5;talon"; by default chains, binary trees, DynaTree ...',
            autocompletion=complete_policy,
        ),
    ] = None,
    verifiers: Verifiers = ["rrsw,traversal,point-mass,coupled"],  # noqa: B006
    temperatures: Annotated[str, typer.Option(help="Above 0.")] = "0.2,0.4,0.6,0.8,1.0",
    rounds: Annotated[int, typer.Option(min=1, help="Number of rounds per prompt and temperature.")] = 2,
    stride: Annotated[int, typer.Option(min=1, help="Number of tokens between rounds.")] = 24,
    seed: Seed = 0,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Count the tokens that verifiers accept.

    Over tree shapes and temperatures, and by category where prompts have several. --limit takes that many prompts from
    each file, evenly spaced.
    """
    warmth = parse_temperatures(temperatures)
    grown, judges = shapes and [*parse_policies(shapes).values()], [*parse_verifiers(verifiers).values()]

    from drafttree.interfaces.cli.decoders import load_speculative
    from drafttree_lab.display import tables as display
    from drafttree_lab.experiment.acceptance import bench_acceptance

    decoder = load_speculative(target, drafter, dtype, device)
    tasks = prompts.token_ids_by_task(decoder, rounds * stride + 64)
    ids = [each for _, each in tasks]
    options = {"temperatures": warmth, "rounds": rounds, "stride": stride, "seed": seed}
    options |= {"shapes": grown, "verifiers": judges, "tasks": [task for task, _ in tasks]}
    store = results.open_store(context, tasks)
    with progress(len(warmth) * len(ids)) as advance:
        result = bench_acceptance(decoder, ids, progress=advance, store=store, **options)
    results.finish(store, result.summary(), lambda: display.show_acceptance(result))
