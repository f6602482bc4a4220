"""`drafttree tune`: find the fastest drafter and policy for a target, a machine and the user's prompts."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from drafttree.core.errors import ConfigError
from drafttree.core.sampling import Sampling
from drafttree.interfaces.cli.option_groups import grouped
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
    from drafttree.drafters import Drafter
    from drafttree.engine.decoder import Decoder
    from drafttree.evaluation.tune import Tuning


@dataclass(frozen=True)
class RacedTexts:
    """Options of the texts that drafters and policies race on, and of the target that writes them."""

    max_new_tokens: Length = 64
    temperature: Temperature = 0.0
    verifier: VerifierName = "auto"
    seed: Seed = 0
    limit: Limit = None
    dtype: Dtype = "auto"
    device: Device = "auto"

    def check(self) -> None:
        """Refuse a wrong temperature or verifier before a model is loaded."""
        Sampling(self.temperature or 0.0)
        find_verifier(self.verifier)

    def load_target(self, target: str) -> "Decoder":
        """The decoder of a target without a drafter."""
        from drafttree.interfaces.cli.decoders import load_named

        verifier = find_verifier(self.verifier)
        return load_named(target, "none", verifier=verifier, dtype=self.dtype, device=self.device)

    @property
    def text_options(self) -> dict[str, Any]:
        """Options of `Decoder.generate`."""
        return {"max_new_tokens": self.max_new_tokens, "temperature": self.temperature, "seed": self.seed}


@grouped
def tune(
    context: typer.Context,
    prompts: Files = None,
    target: Target = "embedded",
    drafters: Annotated[
        list[str] | None,
        typer.Option(
            "--drafter",
            metavar="NAME",
            help="A drafter to try, as for generate. May be repeated.",
            show_default="auto",
        ),
    ] = None,
    minutes: Annotated[
        float,
        typer.Option(
            "--minutes", metavar="MINUTES", help="Time for everything. With --out, the same command can be continued."
        ),
    ] = 5.0,
    *,
    raced_texts: RacedTexts,
    out: Out = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Save the recommendation as a .json file for --policy.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Find the fastest drafter and policy for your prompts.

    Measures drafters, policies and draft temperatures alternately, and confirms the fastest against plain decoding. If
    none is reliably faster, it recommends plain decoding. From a single prompt, or if the time ends before the fastest
    is confirmed, it recommends nothing. Without --prompts, it uses a few openings from the package.
    """
    _check(minutes, save)
    raced_texts.check()

    from drafttree.evaluation import tune as tuning
    from drafttree.interfaces.cli.decoders import read_token_ids
    from drafttree.interfaces.tuning_display import show_tuning

    candidates = _load_candidates(target, drafters or ["auto"], raced_texts)
    texts = read_token_ids(candidates.decoder, prompts, raced_texts.limit, raced_texts.max_new_tokens)
    results = ResultOptions(out, None, json_)
    store = results.open_store(context, texts)
    run_options: dict[str, Any] = {"minutes": minutes, "left_out": candidates.left_out, "store": store}
    run_options |= raced_texts.text_options
    with progress(tuning.planned_texts(len(texts), len(candidates.drafters) * len(tuning.GRID))) as advance:
        result = tuning.tune(candidates.decoder, candidates.drafters, texts, progress=advance, **run_options)
    usage = _recommend(result, candidates.decoder, target, raced_texts.verifier, save)
    summary = result.summary() | {"python": usage.python, "command": usage.command}
    results.finish(store, summary, lambda: show_tuning(result, usage.python, usage.command, minutes, out))
    if not (result.recommends or result.one_prompt):
        raise typer.Exit(UNFINISHED)


class _Candidates(NamedTuple):
    """A target and the drafters that race on it.

    Attributes:
        decoder: the target, without a drafter.
        drafters: the usable drafters, by name.
        left_out: by name, why the other drafters cannot be used.
    """

    decoder: "Decoder"
    drafters: "dict[str, Drafter]"
    left_out: dict[str, str]


class _Usage(NamedTuple):
    """How to use a recommendation; both are empty without one.

    Attributes:
        python: lines of Python.
        command: options of a command.
    """

    python: list[str]
    command: str


def _check(minutes: float, save: Path | None) -> None:
    """Check the time limit and the file to save before a model is loaded."""
    if not 0 < minutes < float("inf"):
        raise ConfigError(f"--minutes is {minutes:g}; give a number above 0, such as 5")
    if save:
        check_save(save)


def _load_candidates(target: str, drafters: list[str], raced_texts: RacedTexts) -> _Candidates:
    """Load a target and the named drafters; "auto" is the one that `drafttree.load` would choose.

    Raises:
        ModelError: no drafter can be used.
    """
    from drafttree.evaluation.tune import find_drafters
    from drafttree.loading import choose_drafter

    names = [choose_drafter(target).name if name == "auto" else name for name in drafters]
    decoder = raced_texts.load_target(target)
    usable_drafters, left_out = find_drafters(decoder, list(dict.fromkeys(names)))
    return _Candidates(decoder, usable_drafters, left_out)


def _recommend(result: "Tuning", decoder: "Decoder", target: str, verifier: str, save: Path | None) -> _Usage:
    """Save the recommendation of a tuning if there is one, and say how to use it.

    Args:
        result: the finished tuning.
        decoder: the target, without a drafter.
        target: the target as the command line names it.
        verifier: the verifier as the command line names it.
        save: the file to save the recommendation in; None to save nothing.
    """
    from drafttree.evaluation.tune import command_options, python_lines, tuned_policy

    if not result.recommends:
        return _Usage([], "")
    if save:
        tuned_policy(result, decoder, target, verifier).write(save)
    python = python_lines(result, target, save, verifier, _dtype(decoder))
    return _Usage(python, command_options(result, save, verifier))


def _dtype(decoder: "Decoder") -> str:
    return str(getattr(decoder.target, "dtype", "auto")).removeprefix("torch.")
