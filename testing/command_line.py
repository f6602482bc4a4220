"""The command line, called from a test."""

from collections.abc import Iterator
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from drafttree.interfaces import cli

PROMPT = "The old man looked at the sea"


def _leaves(group: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Every command below a group that is shown and has no commands of its own, by its name."""
    for name in group.list_commands(None):
        command = group.get_command(None, name)
        if hasattr(command, "list_commands"):
            yield from _leaves(command, f"{path}{name} ")
        elif not command.hidden:
            yield f"{path}{name}", command


COMMANDS = dict(_leaves(typer.main.get_command(cli.app)))
"""Every command by its name, such as "bench methods"."""


def run(*arguments, **options):
    """The result of a command."""
    return CliRunner().invoke(cli.app, [str(argument) for argument in arguments], **options)


def complaint(capsys, *arguments):
    """What `main` prints on standard error, with exit code 2."""
    with pytest.raises(SystemExit) as stopped:
        cli.main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert stopped.value.code == 2
    assert captured.out == ""
    assert captured.err.startswith("drafttree: error: ")
    assert captured.err.count("\n") == 1
    return captured.err
