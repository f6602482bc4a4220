"""`drafttree support`: which architectures of transformers are exact."""

from pathlib import Path
from typing import Annotated

import typer

from drafttree.interfaces.cli.options import AsJson
from drafttree.interfaces.console import print_json, progress


def support(
    only: Annotated[list[str] | None, typer.Option(help="A model type, such as qwen3. May be repeated.")] = None,
    out: Annotated[Path | None, typer.Option(help="File for results. The same command continues from it.")] = None,
    json_: AsJson = False,
) -> None:
    """Check every architecture of transformers.

    Builds each one small, with random weights, and compares its texts with transformers' own. Prints a Markdown table.
    The exit code is 1 if a text differs, or an error is not drafttree's own.
    """
    from drafttree_lab.support import architectures, check_all, to_markdown

    with progress(len(only or architectures())) as advance:
        table = check_all(only or (), out, advance)
    if json_:
        print_json(table.summary())
    else:
        print(to_markdown(table), end="")
    raise typer.Exit(0 if table.passed else 1)
