"""`drafttree support`: which architectures of transformers are exact."""

from pathlib import Path
from typing import Annotated

import typer

from drafttree.interfaces.cli.options import AsJson
from drafttree.interfaces.console import print_json, progress


def support(
    only: Annotated[
        list[str] | None, typer.Option(help="A model type, such as qwen3 or gemma3+images. May be repeated.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for results. The same command continues from it.")] = None,
    popular: Annotated[
        bool, typer.Option("--popular", help="Check popular models at their true sizes instead.")
    ] = False,
    json_: AsJson = False,
) -> None:
    """Check every architecture of transformers.

    Builds each one small, with random weights, and compares its texts with transformers' own. Prints Markdown tables.
    With --popular, it builds popular models with their true context lengths, vocabulary sizes and attention heads. The
    exit code is 1 if a text differs, or if an error is not drafttree's own.
    """
    from drafttree_lab.support import POPULAR, check_all, checked_names, popular_to_markdown, to_markdown

    with progress(len(only or (POPULAR if popular else checked_names()))) as advance:
        table = check_all(only or (), out, advance, popular)
    if json_:
        print_json(table.summary())
    else:
        print(popular_to_markdown(table) if popular else to_markdown(table), end="")
    raise typer.Exit(0 if table.passed else 1)
