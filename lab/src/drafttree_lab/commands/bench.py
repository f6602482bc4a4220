"""`drafttree bench`: measure what speculation gains and what it costs, a command for each file of `bench/`."""

import pkgutil
from importlib import import_module

import typer

from drafttree.core.errors import ConfigError
from drafttree_lab import bench
from drafttree_lab.commands.bench_batch import bench_batch_
from drafttree_lab.commands.bench_expansion import bench_expansion_
from drafttree_lab.commands.bench_serve import bench_serve_
from drafttree_lab.commands.bench_verifiers import bench_acceptance_, bench_verifiers_

GONE = ("auto", "drafters", "exact-text", "law", "overhead", "peers", "policies")

app = typer.Typer(help="Measure what speculation gains and what it costs.", rich_markup_mode=None, add_completion=False)
for found in pkgutil.iter_modules(bench.__path__):
    app.command(found.name)(import_module(f"{bench.__name__}.{found.name}").bench)

app.command(name="batch")(bench_batch_)
app.command(name="serve")(bench_serve_)
app.command(name="verifiers")(bench_verifiers_)
app.command(name="acceptance")(bench_acceptance_)
app.command(name="expansion")(bench_expansion_)


def _gone(context: typer.Context) -> None:
    raise ConfigError(f"drafttree bench {context.info_name} is part of drafttree bench methods; see its --help")


for name in GONE:
    app.command(name, hidden=True, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(_gone)
