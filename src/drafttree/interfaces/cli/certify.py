"""`drafttree certify`: check texts against a reference, or prove pairs of policy and verifier by enumeration."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NoReturn

import typer

from drafttree.core.errors import ConfigError
from drafttree.core.sampling import Sampling
from drafttree.interfaces.cli.live_certificate import NAMES as LIVE
from drafttree.interfaces.cli.live_certificate import LiveOptions, find_pair, write_live
from drafttree.interfaces.cli.option_groups import ShapingOptions, grouped
from drafttree.interfaces.cli.options import (
    Device,
    Drafter,
    Dtype,
    ExactText,
    Files,
    IgnoreEos,
    Length,
    Limit,
    PolicySpecs,
    Quantize,
    QuantizeDrafter,
    Seed,
    Target,
    VerifierNames,
)
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress
from drafttree.loading import parse_policies, parse_verifiers
from drafttree.measure.prompts import read_prompts

EXACT = {"out", "minutes", "exact", "quick", "policies", "verifiers", "models", "json_"}
"""Options that --exact accepts, besides sampling options."""


@dataclass(frozen=True)
class CheckedTexts:
    """Options of the checked texts, and of the models that write them."""

    target: Target = "embedded"
    drafter: Drafter = "auto"
    max_new_tokens: Length = 128
    seed: Seed = 0
    limit: Limit = None
    dtype: Dtype = "auto"
    device: Device = "auto"
    exact_text: ExactText = False
    quantize: Quantize = None
    quantize_drafter: QuantizeDrafter = "auto"
    ignore_eos: IgnoreEos = False

    @property
    def load_options(self) -> dict[str, Any]:
        """Arguments of `drafttree.load`, without policy and verifier."""
        names = ("target", "drafter", "dtype", "device", "exact_text", "quantize", "quantize_drafter")
        return {name: getattr(self, name) for name in names}

    @property
    def text_options(self) -> dict[str, Any]:
        """Options of `Decoder.generate` that are the same for every policy."""
        return {"seed": self.seed, "max_new_tokens": self.max_new_tokens, "ignore_eos": self.ignore_eos}


@grouped
def certify(
    context: typer.Context,
    shaping: ShapingOptions,
    results: ResultOptions,
    live: LiveOptions,
    prompts: Files = None,
    policies: PolicySpecs = ["all"],  # noqa: B006
    *,
    checked_texts: CheckedTexts,
    exact: Annotated[bool, typer.Option("--exact", help="Prove exactness by enumeration. Needs no prompts.")] = False,
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="With --exact: check fewer texts, and skip the checks of random numbers and edited weights."
        ),
    ] = False,
    verifiers: VerifierNames = ["all"],  # noqa: B006
    models: Annotated[
        int | None,
        typer.Option(
            "--models", min=1, metavar="MODELS", help="Number of toy models per pair with --exact.", show_default="6"
        ),
    ] = None,
) -> None:
    """Check texts token by token against a reference.

    The reference is transformers' own generate; above temperature 0 it is decoding without speculation. --exact instead
    proves that policies and verifiers keep the target's distribution, by enumerating every draw and decision of small
    models. --live tests one policy and verifier of your choice statistically, while it generates texts.
    """
    flags = _given(context)
    options = shaping.to_dict()
    if live.live:
        _refuse(flags, {"exact", "quick", "models"}, "does not apply to --live; leave it out")
        policy_verifier = find_pair(flags, policies, verifiers)
        live_options = options | checked_texts.text_options
        write_live(
            context,
            live,
            results,
            policy_verifier,
            checked_texts.load_options,
            prompts,
            checked_texts.limit,
            live_options,
        )
    _refuse(flags, LIVE, "applies only to --live; add --live, or leave it out")
    if exact:
        sampling = _exact_sampling(flags, options)
        _certify_exactly(context, results, policies, verifiers, models, sampling, quick=quick)
    _refuse(flags, {"models", "quick"}, "applies only to --exact; add --exact, or leave it out")
    _refuse(flags, {"verifiers"}, "applies only to --exact and --live; add one of them, or leave it out")
    if not prompts:
        raise ConfigError("certify needs a prompt file: --prompts FILE")
    _certify_texts(context, results, checked_texts, prompts, policies, options)


def _given(context: typer.Context) -> dict[str, str]:
    """The flags on the command line, by the names of their parameters."""
    flags = {}
    for option in context.command.params:
        source = context.get_parameter_source(option.name)
        if source and source.name == "COMMANDLINE":
            flags[option.name] = option.opts[0]
    return flags


def _refuse(flags: Mapping[str, str], names: set[str], reason: str) -> None:
    """Refuse options that another option rules out.

    Args:
        flags: the flags on the command line, by the names of their parameters.
        names: parameters that are refused.
        reason: the end of the message, after the flag.

    Raises:
        ConfigError: one of `names` is given.
    """
    for name, flag in flags.items():
        if name in names:
            raise ConfigError(f"{flag} {reason}")


def _certify_texts(
    context: typer.Context,
    results: ResultOptions,
    checked_texts: CheckedTexts,
    prompts: list[Path],
    policies: list[str],
    options: dict[str, Any],
) -> NoReturn:
    """Compare the texts of each policy with the reference's, and print the certificate.

    Args:
        context: the context of the command.
        results: where finished runs are kept, and how the certificate is printed.
        checked_texts: the models and the length of the texts.
        prompts: prompt files.
        policies: specs of the policies, or "all".
        options: sampling options of the texts.

    Raises:
        typer.Exit: always; the code is 0 if every text passed.
    """
    tree_policies = [*parse_policies(policies).values()]
    texts = read_prompts(prompts, checked_texts.limit)
    sampling = Sampling.from_options(options)

    from drafttree.evaluation.certify import certify
    from drafttree.interfaces.cli.decoders import load_speculative
    from drafttree.interfaces.display import show_certificate

    decoder = load_speculative(**checked_texts.load_options)
    runs = len(texts) * (len(tree_policies) + 1 + sampling.greedy)
    store = results.open_store(context, texts, options)
    text_options = options | checked_texts.text_options
    with progress(runs) as advance:
        certificate = certify(decoder, texts, tree_policies, progress=advance, store=store, **text_options)
    results.finish(store, certificate.summary(), lambda: show_certificate(certificate, decoder))
    raise typer.Exit(0 if certificate.passed else 1)


def _exact_sampling(flags: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling options on the command line, for the toy models.

    Args:
        flags: the flags on the command line, by the names of their parameters.
        options: the values of the sampling options.

    Raises:
        ConfigError: a flag does not apply to toy models, or the temperature is 0.
    """
    from drafttree.evaluation.toy_texts import OPTIONS

    for name, flag in flags.items():
        if name not in EXACT | OPTIONS:
            raise ConfigError(f"{flag} does not apply to --exact, which enumerates toy models; leave it out")
    if "temperature" in flags and not options["temperature"]:
        raise ConfigError(
            "--temperature 0 draws nothing, so there is nothing to enumerate; leave it out for temperature 1"
        )
    return {name: options[name] for name in OPTIONS & flags.keys()}


def _certify_exactly(
    context: typer.Context,
    results: ResultOptions,
    policies: list[str],
    verifiers: list[str],
    models: int | None,
    sampling: Mapping[str, Any],
    *,
    quick: bool,
) -> NoReturn:
    """Enumerate the texts of toy models for each pair of policy and verifier, and print the table.

    Args:
        context: the context of the command.
        results: where finished runs are kept, and how the table is printed.
        policies: specs of the policies, or "all".
        verifiers: names of the verifiers, or "all".
        models: number of toy models per pair; None for the default.
        sampling: sampling options of the toy models.
        quick: whether to enumerate fewer texts, and skip the tests of random numbers and of edited weights.

    Raises:
        typer.Exit: always; the code is 0 if every pair passed.
    """
    tree_policies = [*parse_policies(policies).values()]
    verifier_classes = [*parse_verifiers(verifiers).values()]
    store = results.open_store(context)

    import torch

    from drafttree.evaluation.pair_sweep import MODELS, sweep_pairs
    from drafttree.interfaces.display import show_enumeration

    torch.set_num_threads(1)  # toy models are too small to gain from more
    with progress(len(tree_policies) * len(verifier_classes)) as advance:
        model_count = models or MODELS
        sweep_options: dict[str, Any] = {"models": model_count, "quick": quick, "checks_serving": not quick}
        sweep_options["processes"] = os.cpu_count() or 1
        table = sweep_pairs(tree_policies, verifier_classes, progress=advance, store=store, **sweep_options, **sampling)
    results.finish(store, table.summary(), lambda: show_enumeration(table))
    raise typer.Exit(0 if table.passed else 1)
