"""The command line, called from a test."""

import pytest
from typer.testing import CliRunner

from drafttree.interfaces import cli

PROMPT = "The old man looked at the sea"


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
