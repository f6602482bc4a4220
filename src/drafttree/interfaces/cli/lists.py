"""`drafttree policies`, `drafttree verifiers` and `drafttree inspect`: lists of methods, and inspection of folders."""

from typing import Annotated

import typer

from drafttree.interfaces import display
from drafttree.loading import POLICY_CLASSES, VERIFIER_CLASSES
from drafttree.loading.inspect import inspect as inspect_folder


def policies() -> None:
    """List the tree policies, installed ones included: parameters, defaults, ranges and sources."""
    display.show_policies(POLICY_CLASSES.all())


def verifiers() -> None:
    """List the verifiers and their sources, installed ones included."""
    display.show_verifiers(VERIFIER_CLASSES.all())


def inspect(path: Annotated[str, typer.Argument(help="A folder, a hub name or an embedded name.")]) -> None:
    """Say what a drafter's folder is, which target it fits, its sizes, and what it lacks."""
    found = inspect_folder(path)
    display.show_inspection(found)
    raise typer.Exit(1 if found.problems else 0)
