"""The command line: every command is one call into the folders below, and a way to show the result."""

from drafttree.interfaces.cli.command_line import app, main

__all__ = ["app", "main"]
