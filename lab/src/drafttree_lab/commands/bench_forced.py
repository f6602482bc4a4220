"""`drafttree bench forced`: JSON with and without drafts of what a grammar forces."""

from dataclasses import asdict
from typing import Annotated

import typer

from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import AsJson, Inflate, Repeats, complete_policy
from drafttree.interfaces.console import print_json, progress
from drafttree_lab.commands.option_groups import DrawOptions, PairOptions


@grouped
def bench_forced_(
    models: PairOptions,
    draws: DrawOptions,
    policy: Annotated[str, typer.Option(help="The tree policy.", autocompletion=complete_policy)] = "talon",
    inflated: Inflate = None,
    repeats: Repeats = 3,
    json_: AsJson = False,
) -> None:
    """Measure drafting what a grammar forces.

    JSON of five schemas, with and without it, decoded plainly and with a drafter.
    """
    decoder = models.load(inflated).with_policy(policy)

    from drafttree_lab.display import tables as display
    from drafttree_lab.experiment.forced import KINDS, SCHEMAS, bench_forced

    decoders = {"plain": decoder.with_drafter(None), models.drafter: decoder}
    with progress((1 + len(decoders)) * len(KINDS) * len(SCHEMAS) * repeats) as advance:
        rows = bench_forced(decoders, repeats=repeats, progress=advance, **asdict(draws))
    print_json({"rows": [row.summary() for row in rows]}) if json_ else display.show_forced(rows)
