"""`drafttree bench verifiers` and `acceptance`: the time verifiers take, and the tokens they accept."""

from typing import Annotated

import typer

from drafttree.evaluation.prompt_form import PromptForm
from drafttree.interfaces.cli.options import (
    AsJson,
    Device,
    Drafter,
    Dtype,
    Files,
    Limit,
    Repeats,
    Seed,
    Target,
    complete_policy,
    complete_verifier,
    formed,
    parse_numbers,
    parse_temperatures,
)
from drafttree.interfaces.cli.results import Minutes, Out, finish, open_store
from drafttree.interfaces.console import progress
from drafttree.loading import parse_policies, parse_verifiers

Verifiers = Annotated[
    list[str],
    typer.Option(
        "--verifiers", "--verifier", help='Names or "all"; separate by commas.', autocompletion=complete_verifier
    ),
]


def bench_verifiers_(
    context: typer.Context,
    verifiers: Verifiers = ["all"],  # noqa: B006
    nodes: Annotated[str, typer.Option(help="Tree sizes, root included.")] = "16,64,256",
    vocab: Annotated[str, typer.Option(help="Vocabulary sizes.")] = "4000,32000,128000",
    hidden: Annotated[int, typer.Option(min=1, help="Width of the hidden states the logits are made from.")] = 4096,
    temperature: Annotated[float, typer.Option(help="Above 0; greedy decodes at 0.")] = 1.0,
    repeats: Repeats = 5,
    device: Device = "auto",
    out: Out = None,
    minutes: Minutes = None,
    json_: AsJson = False,
) -> None:
    """The time every verifier takes for a tree, beside that of the logits it needs, on synthetic trees."""
    sizes, vocabs = parse_numbers(nodes, "--nodes"), parse_numbers(vocab, "--vocab")
    chosen = [*parse_verifiers(verifiers).values()]

    from drafttree.loading import find_device
    from drafttree_lab.bench import bench_verifiers
    from drafttree_lab.display import tables as display

    on = find_device(device)
    options = {"hidden": hidden, "temperature": temperature, "repeats": repeats, "device": on}
    store = open_store(context, minutes=minutes)
    with progress(len(sizes) * len(vocabs) * len(chosen)) as advance:
        result = bench_verifiers(chosen, nodes=sizes, vocabs=vocabs, progress=advance, store=store, **options)
    finish(store, json_, result.summary(), lambda: display.show_verifier_times(result))


@formed
def bench_acceptance_(
    context: typer.Context,
    prompts: Files = None,
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
    rounds: Annotated[int, typer.Option(min=1, help="Rounds judged per prompt and temperature.")] = 2,
    stride: Annotated[int, typer.Option(min=1, help="Tokens between them.")] = 24,
    seed: Seed = 0,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    minutes: Minutes = None,
    json_: AsJson = False,
    *,
    form: PromptForm,
) -> None:
    """Tokens that verifiers accept, over tree shapes and temperatures, and by category where prompts have several.

    With --limit, as many prompts are taken of each file, evenly spaced.
    """
    warmth = parse_temperatures(temperatures)
    grown, judges = shapes and [*parse_policies(shapes).values()], [*parse_verifiers(verifiers).values()]

    from drafttree.interfaces.cli.decoders import load_speculative, read_tasks
    from drafttree_lab.bench import bench_acceptance
    from drafttree_lab.display import tables as display

    decoder = load_speculative(target, drafter, dtype, device)
    tasks = read_tasks(decoder, prompts, limit, rounds * stride + 64, form)
    ids = [each for _, each in tasks]
    options = {"temperatures": warmth, "rounds": rounds, "stride": stride, "seed": seed}
    options |= {"shapes": grown, "verifiers": judges, "tasks": [task for task, _ in tasks]}
    store = open_store(context, tasks, minutes=minutes)
    with progress(len(warmth) * len(ids)) as advance:
        result = bench_acceptance(decoder, ids, progress=advance, store=store, **options)
    finish(store, json_, result.summary(), lambda: display.show_acceptance(result))
