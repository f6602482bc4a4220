"""`drafttree bench expansion`: the time of growing trees, without models."""

import math
from typing import Annotated

import typer

from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Device, PolicySpecs, parse_numbers
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress
from drafttree.loading import parse_policies

POLICIES = "eagle:depth=9;talon;dynatree;fixed;opt-tree;chain"
"""EAGLE's tree and TALON's are those of the paper: K = 10, D = 8, N = 60, mu = 0.03."""


@grouped
def bench_expansion_(
    context: typer.Context,
    results: ResultOptions,
    policies: PolicySpecs = [POLICIES],  # noqa: B006
    vocab: Annotated[str, typer.Option(help="Vocabulary sizes.")] = "32000,128000,152000",
    alpha: Annotated[str, typer.Option(help="Exponents of Zipf's law, above 0.")] = "0.7,1.35,5",
    repeats: Annotated[int, typer.Option(min=1, help="Number of trees per figure.")] = 100,
    device: Device = "auto",
) -> None:
    """Time how every policy grows a tree, without models.

    On synthetic rows that follow Zipf's law. The defaults are the vocabularies, exponents, repeats and trees of TALON's
    appendix E.6.
    """
    vocabs, alphas = parse_numbers(vocab, "--vocab"), _parse_exponents(alpha)
    chosen = [*parse_policies(policies).values()]

    from drafttree.loading import find_device
    from drafttree_lab.display.tables import show_expansion
    from drafttree_lab.micro.expansion import bench_expansion

    on, store = find_device(device), results.open_store(context)
    with progress(len(vocabs) * len(alphas) * len(chosen)) as advance:
        result = bench_expansion(
            chosen, vocabs=vocabs, alphas=alphas, repeats=repeats, device=on, progress=advance, store=store
        )
    results.finish(store, result.summary(), lambda: show_expansion(result))


def _parse_exponents(text: str) -> list[float]:
    """Numbers above 0 from a list separated by commas.

    Raises:
        ConfigError: they are not.
    """
    try:
        found = [float(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or not all(number > 0 and math.isfinite(number) for number in found):
        raise ConfigError(f"--alpha is {text!r}; give numbers above 0, separated by commas")
    return list(dict.fromkeys(found))
