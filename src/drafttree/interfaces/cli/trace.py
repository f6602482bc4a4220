"""`drafttree trace`: generate a text, and show its draft trees."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from drafttree.core.errors import ConfigError
from drafttree.core.requirements import check_requirements
from drafttree.interfaces.cli.option_groups import DecoderOptions, TextOptions, grouped
from drafttree.interfaces.cli.options import (
    AsJson,
    PromptText,
    Target,
)
from drafttree.interfaces.cli.results import INTERRUPTED
from drafttree.interfaces.console import progress
from drafttree.measure.prompts import read_prompt

if TYPE_CHECKING:
    from drafttree.evaluation.trace import Trace, Tracer

Output = Annotated[Path | None, typer.Option("--output", "-o", metavar="FILE", help="HTML file to write.")]
Live = Annotated[bool, typer.Option("--live", help="Show the trees in the terminal while the text is generated.")]
Pace = Annotated[float, typer.Option(min=0, max=60, metavar="SECONDS", help="Seconds per round with --live.")]


@grouped
def trace(
    models: DecoderOptions,
    writing: TextOptions,
    prompt: PromptText = None,
    output: Output = None,
    live_trees: Live = False,
    pace: Pace = 0.6,
    target: Target = "embedded",
    json_: AsJson = False,
    chat: Annotated[bool, typer.Option("--chat", help="Apply the model's chat template to the prompt.")] = False,
) -> None:
    """Show the draft trees of a text, round by round.

    Prints the text and how its rounds went. -o writes a page with every tree, and --live shows the trees in the
    terminal. The text is the one that `drafttree generate` writes with the same options.
    """
    options = writing.to_dict()
    text = read_prompt(prompt)
    models.check()
    _check(output, live_trees, json_)

    from drafttree.evaluation.trace import Tracer

    tracer = Tracer(models.load(target), [{"role": "user", "content": text}] if chat else text, **options)
    _write(tracer, pace if live_trees else None)
    text_trace = tracer.trace()
    _show(text_trace, output, json_)
    raise typer.Exit(INTERRUPTED if text_trace.finish_reason == "interrupted" else 0)


def _check(output: Path | None, live: bool, json_: bool) -> None:
    """Check the output options before a model runs.

    Raises:
        ConfigError: --live is given with --json or without a terminal, or a package for the page is missing.
        InputError: the page cannot be written to `output`.
    """
    if live and json_:
        raise ConfigError("--live and --json both write to standard output; give one of them")
    if live and not sys.stdout.isatty():
        raise ConfigError("--live needs a terminal, and standard output is not one; give -o FILE for a page instead")
    if output:
        from drafttree.interfaces.trace_page.output import check_output

        check_requirements("a page", "report", ("jinja2",))
        check_output(output)


def _write(tracer: "Tracer", pace: float | None) -> None:
    """Generate the text until it ends or Ctrl-C ends it; with a pace, show it round by round."""
    from drafttree.interfaces.live_trace import show_live

    try:
        if pace is None:
            _write_quietly(tracer)
        else:
            show_live(tracer, pace)
    except KeyboardInterrupt:
        tracer.request.end("interrupted")


def _write_quietly(tracer: "Tracer") -> None:
    """Generate the text with a progress bar that counts its tokens."""
    with progress(tracer.request.text.remaining) as advance:
        for traced_round in tracer.run():
            for _ in range(traced_round.committed):
                advance("tokens")


def _show(text_trace: "Trace", output: Path | None, json_: bool) -> None:
    """Print the trace, as JSON or in words, and write the page if `output` is given."""
    from drafttree.interfaces.trace_display import show_trace
    from drafttree.interfaces.trace_page.page import render

    if json_:
        print(text_trace.to_json())
    else:
        show_trace(text_trace, output)
    if output:
        output.write_text(render(text_trace), encoding="utf-8")
        print(f"drafttree: wrote the page to {output}", file=sys.stderr)
