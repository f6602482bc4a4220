"""Write methods.md: every tree policy, verifier and drafter, as the commands list them."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from drafttree.interfaces import cli

DOCUMENT = Path(__file__).parent / "methods.md"
INTRODUCTION = """# Policies, verifiers and drafters

<!-- `python docs/methods.py` makes this page from what `drafttree policies`, `verifiers` and `drafters` list. -->

The names and parameters of all tree policies, verifiers and drafters. [Choosing](choosing.md) says which to take, and
shows a tree of each policy. Parameters follow a name: `--policy talon:budget=60,margin=0.03`. In Python this is
`policy="talon:budget=60,margin=0.03"` or `drafttree.policies.Talon(budget=60, margin=0.03)`.
"""


def document() -> str:
    """The whole page."""
    policies = [line for name, policy in _listed("policies").items() for line in _policy(name, policy)]
    verifiers = _rows(["name", "what it does", "source"], _listed("verifiers"), ["description", "source"])
    drafters = {
        each["write"]: each for each in _listed("drafters").values() if each["kind"] in ("built in", "embedded")
    }
    parts = [
        *[INTRODUCTION, "## Tree policies", "", *policies],
        *["## Verifiers", "", *verifiers, ""],
        *["## Drafters", "", *_rows(["name", "what it does"], drafters, ["description"]), ""],
        "Name drafters in files by a folder or a hub name: see",
        "[own models](own-models.md#identify-a-model-from-a-hub).",
    ]
    return "\n".join([*parts, ""])


def _listed(command: str) -> dict[str, dict[str, Any]]:
    return json.loads(CliRunner().invoke(cli.app, [command, "--json"]).stdout)


def _policy(name: str, policy: dict[str, Any]) -> list[str]:
    rows = {each["name"]: {**each, "default": str(each["default"]).lower()} for each in policy["parameters"]}
    table = _rows(["parameter", "default", "range", "meaning"], rows, ["default", "range", "meaning"])
    presets = [f"`{preset}` is `{spec}`.\n" for preset, spec in policy["presets"].items()]
    return [f"### {name}", "", policy["description"], "", f"Source: {policy['source']}.", "", *table, "", *presets]


def _rows(head: list[str], entries: dict[str, dict[str, Any]], fields: list[str]) -> list[str]:
    """A table with a row for every entry, whose name comes first."""
    rows = [[f"`{name}`", *(str(entry[field]) for field in fields)] for name, entry in entries.items()]
    return [f"| {' | '.join(row)} |" for row in [head, ["---"] * len(head), *rows]]


if __name__ == "__main__":
    DOCUMENT.write_text(document())
