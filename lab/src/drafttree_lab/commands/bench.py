"""`drafttree bench`: measure what speculation gains and what it costs, a command for each file of `bench/`."""

import pkgutil
from importlib import import_module

import typer

from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli.command_help import HelpCommand
from drafttree_lab import bench

GONE = {"verifiers": "micro", "expansion": "micro"}
GONE |= dict.fromkeys(("auto", "drafters", "exact-text", "law", "overhead", "peers", "policies"), "methods")

app = typer.Typer(help="Measure what speculation gains and what it costs.", rich_markup_mode=None, add_completion=False)
for found in pkgutil.iter_modules(bench.__path__):
    app.command(found.name, cls=HelpCommand)(import_module(f"{bench.__name__}.{found.name}").bench)


def _gone(context: typer.Context) -> None:
    command = GONE[str(context.info_name)]
    raise ConfigError(f"drafttree bench {context.info_name} is part of drafttree bench {command}; see its --help")


for name in GONE:
    app.command(name, hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(_gone)
