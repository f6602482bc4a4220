"""Write methods.md: every tree policy, verifier and drafter with its parameters, as the commands list them."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from drafttree.interfaces import cli

DOCUMENT = Path(__file__).parent / "methods.md"
INTRODUCTION = """# Policies, verifiers and drafters

Made by `python docs/methods.py` from what `drafttree policies` and `drafttree verifiers` list. Parameters follow
a name: `--policy talon:budget=60,margin=0.03`, in Python `drafttree.policies.Talon(budget=60, margin=0.03)` or
`policy="talon:budget=60,margin=0.03"`. [Choosing](choosing.md) shows a tree of each policy.
"""


def document() -> str:
    """The whole page."""
    policies = [line for name, policy in _listed("policies").items() for line in _policy(name, policy)]
    verifiers = [
        f"| `{name}` | {each['description']} | {each['source']} |" for name, each in _listed("verifiers").items()
    ]
    parts = [
        "## Tree policies",
        "",
        *policies,
        "## Verifiers",
        "",
        "| name | what it does | source |",
        "| --- | --- | --- |",
    ]
    return "\n".join([INTRODUCTION, *parts, *verifiers, ""])


def _listed(command: str) -> dict[str, dict[str, Any]]:
    return json.loads(CliRunner().invoke(cli.app, [command, "--json"]).stdout)


def _policy(name: str, policy: dict[str, Any]) -> list[str]:
    rows = [
        f"| `{each['name']}` | {str(each['default']).lower()} | {each['range']} | {each['meaning']} |"
        for each in policy["parameters"]
    ]
    head = ["| parameter | default | range | meaning |", "| --- | --- | --- | --- |"]
    return [f"### {name}", "", f"{policy['description']} Source: {policy['source']}.", "", *head, *rows, ""]


if __name__ == "__main__":
    DOCUMENT.write_text(document())
