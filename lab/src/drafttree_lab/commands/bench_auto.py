"""`drafttree bench auto` and `calibration`: the `auto` policy against the others, and its probabilities."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree.core.errors import ConfigError
from drafttree.evaluation.prompt_form import PromptForm
from drafttree.evaluation.prompts import Example
from drafttree.evaluation.shapes import SHAPES, find_shape
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import (
    Device,
    Dtype,
    Length,
    Seed,
    Target,
    VerifierName,
    name_files,
    parse_drafters,
    parse_temperatures,
    split_names,
)
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress
from drafttree.loading import find_verifier, parse_policies
from drafttree_lab.commands.option_groups import FormOptions

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder

OWN = "own"
"""The place whose costs are those of the target as it is."""
HEADS = "embedded-eagle3;mixed:embedded-eagle3;embedded-medusa"
ALL = f"embedded-draft;embedded-hydra;lookup;{HEADS}"
KINDS = "books,chat,code,summaries"

Data = Annotated[Path | None, typer.Option(help="Folder of prompt sets. Default: the sets in the package.")]
Sets = Annotated[str, typer.Option(help="Prompt sets to use.")]
PerSet = Annotated[int, typer.Option(min=1, help="Number of prompts per set, evenly spaced.")]
Temperatures = Annotated[str, typer.Option(help="Sampling temperature. 0 means greedy decoding.")]
Names = Annotated[
    list[str] | None, typer.Option("--drafters", "--drafter", help=f'By default "{ALL}", at a larger size "{HEADS}".')
]


@grouped
def bench_auto_(
    context: typer.Context,
    form: FormOptions,
    results: ResultOptions,
    data: Data = None,
    sets: Sets = KINDS,
    target: Target = "embedded",
    sizes: Annotated[
        str, typer.Option(help=f'"{OWN}" and shapes to inflate the target to: {", ".join(SHAPES)}.')
    ] = f"{OWN},300m",
    drafters: Names = None,
    costs: Annotated[
        list[Path] | None, typer.Option(help="Cost curve of another machine; nothing is timed then. May be repeated.")
    ] = None,
    policies: Annotated[
        str | None, typer.Option(help="Policies to compare with auto. Default: a grid over all policies.")
    ] = None,
    verifier: VerifierName = "auto",
    temperatures: Temperatures = "0,1",
    max_new_tokens: Length = 64,
    limit: PerSet = 4,
    repeats: Annotated[int, typer.Option(min=1, help="Number of timed runs.")] = 2,
    seed: Seed = 0,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Compare the auto policy with plain decoding and others.

    All settings are counted; the best are timed in turns. Speed-ups of the grid are counted rounds at the measured
    costs. Aims are printed, and every row that misses one.
    """
    warmth, places = parse_temperatures(temperatures, zero=True), split_names(sizes)
    judge, given_policies = find_verifier(verifier), parse_policies([policies]) if policies else None
    for size in places:
        if size != OWN:
            find_shape(size)

    from drafttree.evaluation.curve_file import read_cost_curves
    from drafttree.evaluation.inflation import load_inflated
    from drafttree.interfaces.cli.decoders import judged_by, load_named
    from drafttree_lab.display import auto as display_auto
    from drafttree_lab.experiment.auto import GRID, Place, bench_auto, encode_sets

    grid = [*given_policies] if given_policies else GRID
    small, large = _drafter_names(drafters, ALL, target), _drafter_names(drafters, HEADS, target)
    prompts = _read_sets(sets, data, limit, form.prompt_form)
    given = {name: read_cost_curves(path, small) for name, path in name_files(costs)}
    decoder = judged_by(load_named(target, "none", dtype=dtype, device=device), judge)
    found = _find_drafters(decoder, dict.fromkeys([*small, *large]))
    loaders = {
        size: (lambda name, size=size: judged_by(load_inflated(target, name, size, dtype, device), judge))
        if size != OWN
        else lambda name: decoder.with_drafter(found[name])
        for size in places
    }
    measured = [Place(size, small if size == OWN else large, load) for size, load in loaders.items()]
    others = [Place(name, small, costs=curves) for name, curves in given.items()]
    texts = encode_sets(decoder, prompts, form.prompt_form, max_new_tokens)
    options: dict[str, Any] = {"temperatures": warmth, "seed": seed, "max_new_tokens": max_new_tokens}
    rows = sum(len(place.drafters) for place in measured + others) * (1 if others else 2) + len(found) * len(grid)
    store = results.open_store(context, texts, given)
    with progress(rows * len(warmth) * len(texts)) as advance:
        options |= {"repeats": repeats, "timed": not others, "progress": advance, "store": store, "policies": grid}
        result = bench_auto(decoder, found, measured + others, texts, **options)
    results.finish(store, result.summary(), lambda: display_auto.show_auto(result))


@grouped
def bench_calibration(
    context: typer.Context,
    form: FormOptions,
    results: ResultOptions,
    data: Data = None,
    sets: Sets = KINDS,
    target: Target = "embedded",
    drafters: Names = None,
    temperatures: Temperatures = "0,1",
    max_new_tokens: Length = 64,
    limit: PerSet = 4,
    seed: Seed = 0,
    dtype: Dtype = "auto",
    device: Device = "auto",
) -> None:
    """Compare draft probabilities with acceptance.

    Before and after the calibration by the policy "auto".
    """
    warmth = parse_temperatures(temperatures, zero=True)

    from drafttree.interfaces.cli.decoders import load_named
    from drafttree_lab.display import auto as display_auto
    from drafttree_lab.experiment.auto import encode_sets
    from drafttree_lab.experiment.calibration import bench_reliability

    names, prompts = _drafter_names(drafters, ALL, target), _read_sets(sets, data, limit, form.prompt_form)
    decoder = load_named(target, "none", dtype=dtype, device=device)
    texts = encode_sets(decoder, prompts, form.prompt_form, max_new_tokens)
    found, ids = _find_drafters(decoder, names), [prompt for each in texts.values() for prompt in each]
    options: dict[str, Any] = {"temperatures": warmth, "seed": seed, "max_new_tokens": max_new_tokens}
    store = results.open_store(context, texts)
    with progress(len(found) * len(warmth)) as advance:
        result = bench_reliability(decoder, found, ids, progress=advance, store=store, **options)
    results.finish(store, result.summary(), lambda: display_auto.show_reliability(result))


def _drafter_names(given: list[str] | None, default: str, target: str) -> list[str]:
    """The names of the drafters to measure.

    Raises:
        ConfigError: there are none, or one is not a drafter.
    """
    if not given and target != "embedded":
        raise ConfigError(f"there are no drafters for {target!r} by default; name some with --drafters")
    return parse_drafters(given or [default])


def _find_drafters(decoder: "Decoder", names: Any) -> dict[str, Any]:
    from drafttree.evaluation.reference import transformers_model
    from drafttree.loading import find_drafter

    model = transformers_model(decoder)
    return {name: find_drafter(name, model, decoder.tokenizer) for name in names}


def _read_sets(names: str, folder: Path | None, limit: int, form: PromptForm) -> dict[str, list[Example]]:
    """The prompts by set; those that do not ship are named as left out."""
    from drafttree.evaluation.prompt_sets import read_prompt_sets

    wanted = split_names(names)
    found = read_prompt_sets(wanted, folder, limit, **form.selection)
    if left_out := [name for name in wanted if name not in found]:
        print(f"left out: {', '.join(left_out)}, which may not ship; --data FOLDER names prompts", file=sys.stderr)
    return found
