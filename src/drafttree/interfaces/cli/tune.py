"""`drafttree tune`: find the drafter and the policy for a target, a machine and one's own prompts."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree.core.errors import ConfigError
from drafttree.core.sampling import Sampling
from drafttree.interfaces.cli.options import (
    AsJson,
    Device,
    Dtype,
    Files,
    Length,
    Limit,
    Seed,
    Target,
    Temperature,
    VerifierName,
)
from drafttree.interfaces.cli.results import UNFINISHED, Out, ResultOptions
from drafttree.interfaces.console import progress
from drafttree.loading import check_save, find_verifier

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder


def tune(
    context: typer.Context,
    prompts: Files = None,
    target: Target = "embedded",
    drafters: Annotated[
        list[str] | None, typer.Option("--drafter", help="A drafter to try, as for generate. May be repeated.")
    ] = None,
    minutes: Annotated[
        float, typer.Option(help="Time for everything. With --out, the same command can be continued.")
    ] = 5.0,
    max_new_tokens: Length = 64,
    temperature: Temperature = 0.0,
    verifier: VerifierName = "auto",
    seed: Seed = 0,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    out: Out = None,
    save: Annotated[Path | None, typer.Option(help="Save the recommendation as a .json file for --policy.")] = None,
    json_: AsJson = False,
) -> None:
    """Find the fastest drafter and policy for your prompts.

    Races drafters, policies and draft temperatures in turns, and confirms the winner against plain decoding. Recommends
    not to speculate if nothing is reliably faster. Recommends nothing from a single prompt, or if the time ends before
    the winner is confirmed. Without --prompts, it uses a few openings from the package.
    """
    _check(minutes, save)
    Sampling(temperature or 0.0)
    draft_verifier = find_verifier(verifier)

    from drafttree.evaluation import tune as tuning
    from drafttree.interfaces.cli.decoders import load_named, read_token_ids
    from drafttree.interfaces.tuning_display import show_tuning
    from drafttree.loading import choose_drafter

    names = [choose_drafter(target).name if name == "auto" else name for name in drafters or ["auto"]]
    decoder = load_named(target, "none", verifier=draft_verifier, dtype=dtype, device=device)
    raced_drafters, left_out = tuning.find_drafters(decoder, list(dict.fromkeys(names)))
    texts = read_token_ids(decoder, prompts, limit, max_new_tokens)
    results = ResultOptions(out, None, json_)
    store = results.open_store(context, texts)
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed}
    with progress(tuning.planned_texts(len(texts), len(raced_drafters) * len(tuning.GRID))) as advance:
        options |= {"minutes": minutes, "left_out": left_out, "progress": advance, "store": store}
        result = tuning.tune(decoder, raced_drafters, texts, **options)
    saved_path = save if result.recommends else None
    if saved_path:
        tuning.tuned_policy(result, decoder, target, verifier).write(saved_path)
    lines = tuning.python_lines(result, target, saved_path, verifier, _dtype(decoder)) if result.recommends else []
    command = tuning.command_options(result, saved_path, verifier) if result.recommends else ""
    summary = result.summary() | {"python": lines, "command": command}
    results.finish(store, summary, lambda: show_tuning(result, lines, command, minutes, out))
    if not (result.recommends or result.one_prompt):
        raise typer.Exit(UNFINISHED)


def _check(minutes: float, save: Path | None) -> None:
    """Refuse what no time needs to be spent on."""
    if not 0 < minutes < float("inf"):
        raise ConfigError(f"--minutes is {minutes:g}; give a number above 0, such as 5")
    if save:
        check_save(save)


def _dtype(decoder: "Decoder") -> str:
    return str(getattr(decoder.target, "dtype", "auto")).removeprefix("torch.")
