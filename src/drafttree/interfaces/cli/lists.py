"""`drafttree drafters`, `policies` and `verifiers`, which list methods, and `drafttree inspect`, for one drafter."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import typer
from pydantic.fields import FieldInfo
from rich.text import Text

from drafttree.interfaces.cli.options import AsJson
from drafttree.interfaces.console import make_console, make_table, print_json
from drafttree.loading import POLICY_CLASSES, VERIFIER_CLASSES, policy_spec
from drafttree.loading.drafter_list import list_drafters
from drafttree.policies import TreePolicy


def policies(json_: AsJson = False) -> None:
    """List the tree policies with their parameters.

    Policies of installed packages are included, with defaults, ranges and the papers they come from.
    """
    classes = POLICY_CLASSES.all().items()
    summaries = {
        name: _summary(policy) | {"parameters": _parameters(policy), "presets": _presets(name, policy)}
        for name, policy in classes
    }
    if json_:
        print_json(summaries)
    else:
        _show_policies(summaries)


def verifiers(json_: AsJson = False) -> None:
    """List the verifiers and the papers they come from."""
    summaries = {name: _summary(verifier) for name, verifier in VERIFIER_CLASSES.all().items()}
    if json_:
        print_json(summaries)
    else:
        _show_verifiers(summaries)


def drafters(json_: AsJson = False) -> None:
    """List the drafters and how to name them.

    Drafters of installed packages are included.
    """
    listed_drafters = list_drafters()
    if json_:
        print_json({name: asdict(drafter) for name, drafter in listed_drafters.items()})
        return
    table = make_table("", "--drafter", "what drafts")
    drafter_kinds = [drafter.kind for drafter in listed_drafters.values()]
    for index, drafter in enumerate(listed_drafters.values()):
        begins_kind = index == drafter_kinds.index(drafter.kind)
        table.add_row(Text(drafter.kind if begins_kind else "", style="bold"), drafter.write, drafter.description)
    make_console().print(table)


def inspect(
    path: Annotated[
        str, typer.Argument(metavar="NAME", help='A folder, a GGUF file, a hub name, or a drafter such as "lookup".')
    ],
    target: Annotated[str | None, typer.Option(metavar="NAME", help="Target to test the head on.")] = None,
    json_: AsJson = False,
) -> None:
    """Show what a drafter is and which target it fits.

    Prints its kind, its target, its sizes, and what is missing. With --target, it also tests the head on some texts.
    """
    from drafttree.interfaces.display import show_inspection
    from drafttree.loading.inspect import inspect

    inspection = inspect(path)
    if target and not inspection.problems:
        from drafttree.evaluation.head_trial import try_head
        from drafttree.interfaces.cli.decoders import load_named

        inspection = try_head(inspection, load_named(target, path))
    if json_:
        print_json(asdict(inspection))
    else:
        show_inspection(inspection)
    raise typer.Exit(1 if inspection.problems else 0)


def _show_policies(policies: Mapping[str, dict[str, Any]]) -> None:
    for name, policy in policies.items():
        table = make_table("parameter", "default", "range", "meaning")
        for parameter in policy["parameters"]:
            table.add_row(*map(str, (parameter | {"default": str(parameter["default"]).lower()}).values()))
        _show(name, policy)
        make_console().print(
            table, *(f"{preset} is {spec}" for preset, spec in policy["presets"].items()), "", sep="\n"
        )


def _show_verifiers(verifiers: Mapping[str, dict[str, Any]]) -> None:
    for name, verifier in verifiers.items():
        _show(name, verifier)
        make_console().print()


def _show(name: str, method: Mapping[str, Any]) -> None:
    title = Text.assemble((name, "bold"), "  ", method["source"])
    make_console().print(title, Text(method["description"]), sep="\n")


def _summary(method: type) -> dict[str, Any]:
    """The paper of a method, or its module if it names none, and the first paragraph of its description."""
    description = " ".join((method.__doc__ or "").split("\n\n")[0].split())
    return {"source": getattr(method, "source", method.__module__), "description": description}


def _parameters(policy: type[TreePolicy]) -> list[dict[str, Any]]:
    return [
        {"name": key, "default": field.default, "range": _range(field), "meaning": field.description or ""}
        for key, field in policy.model_fields.items()
    ]


def _presets(name: str, policy: type[TreePolicy]) -> dict[str, str]:
    """The specification of each preset of a policy, by the preset's full name."""
    return {f"{name}:{preset}": policy_spec(policy(**parameters)) for preset, parameters in policy.presets.items()}


def _range(field: FieldInfo) -> str:
    """The range of a parameter in words, such as "1 to 64"."""
    bounds = [getattr(limit, side) for limit in field.metadata for side in ("ge", "le") if hasattr(limit, side)]
    if field.annotation is bool:
        return "true, false"
    return " to ".join(map(str, bounds)) if bounds else "text"
