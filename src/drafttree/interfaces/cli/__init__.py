"""The command line: every command makes one call into the lower folders and shows the result."""

from drafttree.interfaces.cli.command_line import app, main

__all__ = ["app", "main"]
