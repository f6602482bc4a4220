"""`drafttree policies`, `drafttree verifiers` and `drafttree inspect`: lists of methods, and inspection of folders."""

from collections.abc import Mapping
from typing import Annotated

import typer
from rich.text import Text

from drafttree.interfaces.console import make_console, make_table
from drafttree.loading import POLICY_CLASSES, VERIFIER_CLASSES
from drafttree.policies import TreePolicy
from drafttree.verifiers import Verifier


def policies() -> None:
    """List the tree policies, installed ones included: parameters, defaults, ranges and sources."""
    _show_policies(POLICY_CLASSES.all())


def verifiers() -> None:
    """List the verifiers and their sources, installed ones included."""
    _show_verifiers(VERIFIER_CLASSES.all())


def inspect(path: Annotated[str, typer.Argument(help="A folder, a hub name or an embedded name.")]) -> None:
    """Say what a drafter's folder is, which target it fits, its sizes, and what it lacks."""
    from drafttree.interfaces.display import show_inspection
    from drafttree.loading.inspect import inspect

    found = inspect(path)
    show_inspection(found)
    raise typer.Exit(1 if found.problems else 0)


def _show_policies(policies: Mapping[str, type[TreePolicy]]) -> None:
    """Every policy with its source and a table of its parameters."""
    for name, policy in policies.items():
        make_console().print(
            Text.assemble((name, "bold"), "  ", _source(policy)), Text(_first_paragraph(policy)), sep="\n"
        )
        table = make_table("parameter", "default", "range", "meaning")
        for key, field in policy.model_fields.items():
            table.add_row(key, str(field.default).lower(), _range(field), field.description or "")
        make_console().print(table, "")


def _show_verifiers(verifiers: Mapping[str, type[Verifier]]) -> None:
    """Every verifier with its source."""
    for name, verifier in verifiers.items():
        title = Text.assemble((name, "bold"), "  ", _source(verifier))
        make_console().print(title, Text(_first_paragraph(verifier)), "", sep="\n")


def _source(method: type) -> str:
    """The paper a method is from; the module of one that names none."""
    return getattr(method, "source", method.__module__)


def _first_paragraph(thing: type) -> str:
    return " ".join((thing.__doc__ or "").split("\n\n")[0].split())


def _range(field) -> str:
    """The range of a pydantic field, as "1 to 64"."""
    bounds = [getattr(limit, side) for limit in field.metadata for side in ("ge", "le") if hasattr(limit, side)]
    if field.annotation is bool:
        return "true, false"
    return " to ".join(map(str, bounds)) if bounds else "text"
