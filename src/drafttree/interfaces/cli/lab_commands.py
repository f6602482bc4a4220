"""The commands of the package drafttree-lab, which measures drafttree, if it is installed."""

from importlib.metadata import entry_points
from typing import Any

import typer
from typer.core import TyperGroup

from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli.command_help import HelpCommand

LAB_COMMANDS = {
    "bench": "Measure what speculation gains and what it costs.",
    "replay": "Replay the papers' tables and figures.",
    "support": "Check every architecture of transformers.",
}
"""Descriptions of the commands, shown in the help if the package is missing."""
INSTALL = "pip install drafttree-lab (from a clone: pip install ./lab)"
ANY_ARGUMENTS = {"ignore_unknown_options": True, "allow_extra_args": True}


class Commands(TyperGroup):
    """The commands of the library, and those of the lab, which are imported only when they are used."""

    def list_commands(self, ctx: Any) -> list[str]:
        return [*super().list_commands(ctx), *LAB_COMMANDS]

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return lab_command(cmd_name) if cmd_name in LAB_COMMANDS else super().get_command(ctx, cmd_name)


def lab_command(name: str) -> Any:
    """A command of the lab; without the package, a command that says how to install it."""
    entry_point = next(iter(entry_points(group="drafttree.commands", name=name)), None)
    try:
        command = entry_point.load() if entry_point else _missing(name)
    except ImportError as error:
        problem = f"drafttree {name}: drafttree-lab cannot be imported ({error})"
        raise ConfigError(f"{problem}; reinstall it: {INSTALL}") from None
    if not isinstance(command, typer.Typer):
        function = command
        command = typer.Typer(rich_markup_mode=None, add_completion=False)
        command.command(name, cls=HelpCommand, context_settings={} if entry_point else ANY_ARGUMENTS)(function)
    click_command = typer.main.get_command(command)
    click_command.name = name
    return click_command


def _missing(name: str) -> Any:
    def refuse() -> None:
        raise ConfigError(f"drafttree {name} is part of drafttree-lab, which is not installed: {INSTALL}")

    refuse.__doc__ = f"{LAB_COMMANDS[name]} Part of drafttree-lab: {INSTALL}."
    return refuse
