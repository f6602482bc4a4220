"""`drafttree certify --live`: look for evidence against a pair of policy and verifier while it writes texts."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Annotated, Any, NoReturn

import typer

from drafttree.core.errors import ConfigError
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import progress
from drafttree.loading import TunedPolicy, find_policy, find_verifier
from drafttree.policies import TreePolicy
from drafttree.verifiers import Verifier


@dataclass(frozen=True)
class LiveOptions:
    """Whether to test a pair while it writes texts, and how many tokens it writes."""

    live: Annotated[
        bool,
        typer.Option(
            "--live", help="Look for evidence against one policy and verifier, in the sampled texts that they write."
        ),
    ] = False
    tokens: Annotated[
        int, typer.Option("--tokens", min=1, metavar="TOKENS", help="With --live: number of tokens to test.")
    ] = 100_000
    max_batch: Annotated[
        int,
        typer.Option(min=1, metavar="TEXTS", help="With --live: maximum number of texts generated at the same time."),
    ] = 1


NAMES = {field.name for field in fields(LiveOptions)}
"""Names of the fields of `LiveOptions`."""


def find_pair(
    flags: Mapping[str, str], policies: list[str], verifiers: list[str]
) -> tuple[TreePolicy | TunedPolicy | None, type[Verifier] | None]:
    """The policy and the verifier to test; None for each that is not given.

    Args:
        flags: the flags on the command line, by the names of their parameters.
        policies: specs of policies.
        verifiers: names of verifiers.

    Raises:
        ConfigError: several policies or verifiers are given, one does not exist, or the verifier is greedy.
    """
    for name, names in (("policies", policies), ("verifiers", verifiers)):
        if name in flags and (len(names) > 1 or names[0] == "all" or (name == "verifiers" and "," in names[0])):
            raise ConfigError(
                f"{flags[name]} {' '.join(names)}: --live tests one pair of policy and verifier; name one of them"
            )
    policy = find_policy(policies[0]) if "policies" in flags else None
    verifier = find_verifier(verifiers[0]) if "verifiers" in flags else None
    if verifier and verifier.__name__ == "Greedy":
        raise ConfigError(
            "greedy draws nothing, so its tokens are not evidence; compare its texts with transformers' own (certify "
            "without --live), or name another verifier"
        )
    return policy, verifier


def write_live(
    context: typer.Context,
    live: LiveOptions,
    results: ResultOptions,
    policy_verifier: tuple[TreePolicy | TunedPolicy | None, type[Verifier] | None],
    models: Mapping[str, Any],
    prompts: Any,
    limit: int | None,
    options: Mapping[str, Any],
) -> NoReturn:
    """Write texts with a pair, and print the evidence against it.

    Args:
        context: the context of the command.
        live: how much to write.
        results: where finished runs are stored, and how the evidence is printed.
        policy_verifier: the policy and the verifier; None for the default ones.
        models: the other arguments of `drafttree.load`.
        prompts: prompt files; None for the shipped prompts.
        limit: the most prompts; None for all.
        options: options of the texts.

    Raises:
        typer.Exit: always; the code is 0 if there is no evidence against the pair.
    """
    from drafttree.evaluation.live_certificate import certify_live
    from drafttree.interfaces.cli.decoders import load_named, read_token_ids
    from drafttree.interfaces.live_display import show_live_certificate

    form = dict(models)
    decoder = load_named(form.pop("target"), form.pop("drafter"), *policy_verifier, **form)
    texts = read_token_ids(decoder, prompts, limit, options["max_new_tokens"])
    store = results.open_store(context, texts, options)
    with progress(live.tokens) as advance:
        run_options = {"tokens": live.tokens, "max_batch": live.max_batch, "tell": _tell, "progress": advance}
        certificate = certify_live(decoder, texts, **run_options, store=store, **options)
    results.finish(store, certificate.summary(), lambda: show_live_certificate(certificate))
    raise typer.Exit(0 if certificate.passed else 1)


def _tell(line: str) -> None:
    print(f"drafttree: {line}", file=sys.stderr, flush=True)
