"""`drafttree certify`: check texts against the reference's, or prove pairs by enumeration."""

import os
from collections.abc import Mapping
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
from drafttree.measure.run_store import RunStore
from drafttree.policies import TreePolicy
from drafttree.verifiers import Verifier

EXACT = {"out", "minutes", "exact", "quick", "policies", "verifiers", "models", "json_"}


@grouped
def certify(
    context: typer.Context,
    shaping: ShapingOptions,
    results: ResultOptions,
    live: LiveOptions,
    prompts: Files = None,
    policies: PolicySpecs = ["all"],  # noqa: B006
    target: Target = "embedded",
    drafter: Drafter = "auto",
    max_new_tokens: Length = 128,
    seed: Seed = 0,
    limit: Limit = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    exact_text: ExactText = False,
    quantize: Quantize = None,
    quantize_drafter: QuantizeDrafter = "auto",
    ignore_eos: IgnoreEos = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Prove exactness by enumeration instead. Needs no prompts.")
    ] = False,
    quick: Annotated[
        bool, typer.Option("--quick", help="With --exact: fewer texts, and neither numbers nor edits.")
    ] = False,
    verifiers: VerifierNames = ["all"],  # noqa: B006
    models: Annotated[
        int | None, typer.Option(min=1, help="Number of toy models per pair with --exact. Default: 6.")
    ] = None,
) -> None:
    """Check texts token by token against a reference.

    The reference is transformers' own generate; above temperature 0 it is decoding without speculation. With --exact,
    prove instead that policies and verifiers keep the target's distribution, by enumerating every draw and decision.
    With --live, bet against one pair of your own: any verifier that draws, at the speed of its texts.
    """
    flags = _given(context)
    options = shaping.to_dict()
    models_given: dict[str, Any] = {"target": target, "drafter": drafter, "dtype": dtype, "device": device}
    models_given |= {"exact_text": exact_text, "quantize": quantize, "quantize_drafter": quantize_drafter}
    text_options = {"seed": seed, "max_new_tokens": max_new_tokens, "ignore_eos": ignore_eos}
    if live.live:
        _refuse(flags, {"exact", "quick", "models"}, "is not for --live, which looks at texts; leave it out")
        policy_verifier = find_pair(flags, policies, verifiers)
        write_live(context, live, results, policy_verifier, models_given, prompts, limit, options | text_options)
    _refuse(flags, LIVE, "is for --live alone; give --live, or leave it out")
    if exact:
        sampling = _exact_sampling(flags, options)
        sweep_axes = [*parse_policies(policies).values()], [*parse_verifiers(verifiers).values()]
        _certify_exactly(*sweep_axes, models, sampling, results.open_store(context), results, quick=quick)
    _refuse(flags, {"models", "quick"}, "is for --exact alone; give --exact, or leave it out")
    _refuse(flags, {"verifiers"}, "is for --exact and --live; give one of them, or leave it out")
    if not prompts:
        raise ConfigError("certify needs a prompt file: --prompts FILE")
    tree_policies = [*parse_policies(policies).values()]
    texts = read_prompts(prompts, limit)
    sampling = Sampling.from_options(options)

    from drafttree.evaluation.certify import certify
    from drafttree.interfaces.cli.decoders import load_speculative
    from drafttree.interfaces.display import show_certificate

    decoder = load_speculative(**models_given)
    runs = len(texts) * (len(tree_policies) + 1 + sampling.greedy)
    store = results.open_store(context, texts, options)
    with progress(runs) as advance:
        certificate = certify(decoder, texts, tree_policies, progress=advance, store=store, **options, **text_options)
    results.finish(store, certificate.summary(), lambda: show_certificate(certificate, decoder))
    raise typer.Exit(0 if certificate.passed else 1)


def _refuse(given: Mapping[str, str], names: set[str], reason: str) -> None:
    """Refuse options that are on the command line.

    Raises:
        ConfigError: names one, and the reason.
    """
    for flag in (flag for name, flag in given.items() if name in names):
        raise ConfigError(f"{flag} {reason}")


def _given(context: typer.Context) -> dict[str, str]:
    """The flags on the command line, by the names of their parameters."""
    sources = {option.name: context.get_parameter_source(option.name) for option in context.command.params}
    flags = {option.name: option.opts[0] for option in context.command.params}
    return {name: flags[name] for name, source in sources.items() if source and source.name == "COMMANDLINE"}


def _exact_sampling(given: Mapping[str, str], options: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling of toy models.

    Raises:
        ConfigError: a flag that says nothing of them, or nothing is drawn.
    """
    from drafttree.evaluation.toy_texts import OPTIONS

    for name, flag in given.items():
        if name not in EXACT | OPTIONS:
            raise ConfigError(f"{flag} does not apply to --exact, which enumerates toy models; leave it out")
    if "temperature" in given and not options["temperature"]:
        raise ConfigError("--temperature 0 draws nothing, so there is nothing to enumerate; leave it out for 1")
    return {name: options[name] for name in OPTIONS & given.keys()}


def _certify_exactly(
    policies: list[TreePolicy],
    verifiers: list[type[Verifier]],
    models: int | None,
    sampling: Mapping[str, Any],
    store: RunStore,
    results: ResultOptions,
    *,
    quick: bool,
) -> NoReturn:
    import torch

    from drafttree.evaluation.pair_sweep import MODELS, sweep_pairs
    from drafttree.interfaces.display import show_enumeration

    torch.set_num_threads(1)  # toy models are too small to gain from more
    with progress(len(policies) * len(verifiers)) as advance:
        model_count = models or MODELS
        sweep_options: dict[str, Any] = {"models": model_count, "quick": quick, "checks_serving": not quick}
        sweep_options["processes"] = os.cpu_count() or 1
        table = sweep_pairs(policies, verifiers, progress=advance, store=store, **sweep_options, **sampling)
    results.finish(store, table.summary(), lambda: show_enumeration(table))
    raise typer.Exit(0 if table.passed else 1)
