"""Check that a policy and a verifier are lossless together, from what each declares.

A verifier that is lossy says so in its name and in `lossless`; every other pair that is let through is exact.
"""

import logging

from drafttree.core.counts import check_count
from drafttree.core.errors import ConfigError
from drafttree.core.sampling import Sampling
from drafttree.core.tree import Proposal
from drafttree.models import Model
from drafttree.policies.base import TreePolicy
from drafttree.verifiers import Coupled, Greedy, Verifier

logger = logging.getLogger("drafttree")


def default_verifier(sampling: Sampling) -> type[Verifier]:
    """The verifier of a text for which none is named.

    It depends neither on the policy nor on whether a seed was given, and both are lossless with every policy, those of
    a user included: a text's seed repeats it, with any tree. On chains alone another accepts more: `Traversal`, 3.6
    tokens per round against 2.8 at depth 8 and temperature 1 (docs/log.md).
    """
    return Greedy if sampling.greedy else Coupled


def is_text_of_seed(verifier: type[Verifier]) -> bool:
    """Whether prompt and seed alone decide a text; the draws of all other verifiers depend on the drafts as well."""
    return issubclass(verifier, (Greedy, Coupled))


def precision_of(target: Model) -> str:
    """The dtype that a target computes in, and how its weights are quantised if they are."""
    return getattr(target, "precision", "unknown")


def keeps_text(target: Model) -> bool:
    """Whether a target's texts are plain decoding's token for token; in reduced precision rounding decides ties."""
    return precision_of(target).startswith("float32") or getattr(target, "exact_text", False)


def check_kinds(policy: object, drafter: object, verifier: object) -> None:
    """Refuse what is no policy, drafter or class of a verifier.

    Raises:
        ConfigError: names it and what to give instead.
    """
    if not isinstance(policy, TreePolicy):
        raise ConfigError(
            f"policy is {policy!r}; give an object such as drafttree.policies.Talon(), or its name to load"
        )
    try:
        hash(policy)
    except TypeError as error:
        raise ConfigError(f"{policy!r} cannot be a key of a dict: {error}; use tuples for its fields") from None
    if isinstance(drafter, type) or not (drafter is None or hasattr(drafter, "start")):
        raise ConfigError(f"drafter is {drafter!r}; give an object of drafttree.drafters, or its name to load")
    if not (verifier is None or (isinstance(verifier, type) and issubclass(verifier, Verifier))):
        raise ConfigError(f"verifier is {verifier!r}; give a class of drafttree.verifiers, or its name to load")


def check(policy: TreePolicy, verifier: type[Verifier]) -> None:
    """Refuse a pair that is not proven lossless.

    Raises:
        ConfigError: names the rule the pair breaks and the nearest pair that keeps it.
    """
    if reason := incompatibility(policy, verifier):
        raise ConfigError(f"{type(policy).__name__} with {verifier.__name__} is not lossless: {reason}")


def is_sharded(target: Model) -> bool:
    """Whether a target's weights are sharded over processes, each of which runs the whole loop."""
    return getattr(target, "tensor_parallel_size", 1) > 1


def hides_state(target: Model) -> bool:
    """Whether a target has a hook or a replaced `forward` whose state is not compared before rows are reused."""
    return getattr(target, "unseen", None) is not None


def log_hidden_state(target: Model) -> None:
    """Say that rows may be reused which a state that is not compared has decided, if the target may have one."""
    if hides_state(target):
        logger.warning(
            "reuse_prefix=True: %s may have a state that cannot be compared, and rows of earlier texts are reused even "
            "if it has changed; pass reuse_prefix=False after a change",
            getattr(target, "unseen", None),
        )


def check_sharded(target: Model, verifier: type[Verifier] | None) -> None:
    """Refuse a verifier by which the processes of a sharded target might decide differently.

    Those of `is_text_of_seed` compare nothing but the target's logits, which are the same bits in all processes; the
    others also weigh the drafter's, which each process computes for itself.

    Raises:
        ConfigError: names it and what to give instead.
    """
    if verifier and is_sharded(target) and not is_text_of_seed(verifier):
        raise ConfigError(
            f"{verifier.__name__} cannot judge for a target that is sharded over processes: it weighs the drafter's "
            "probabilities, which may round differently in each; use 'greedy' or 'coupled'"
        )


def refuse_sharded(target: Model, what: str) -> None:
    """Refuse what goes by a clock, which is another one in every process.

    Args:
        target: the target which may be sharded.
        what: cannot be served; the beginning of the message.

    Raises:
        ConfigError: the target is sharded.
    """
    if is_sharded(target):
        raise ConfigError(f"{what} by a clock, which the processes of a sharded target do not share")


def check_reuse(verifier: type[Verifier]) -> None:
    """Refuse to go on from a kept beginning where a seed is to repeat the text.

    Rows that were read in another pass differ in the last bits, which can change what a verifier draws.

    Raises:
        ConfigError: the draws of the verifier depend on the drafts.
    """
    if not is_text_of_seed(verifier):
        raise ConfigError(
            f"reuse_prefix=True with {verifier.__name__}: rounding in the kept beginning may change its draws, so that "
            "the seed would not repeat the text; leave reuse_prefix out, or use 'coupled'"
        )


def check_budget(budget: int | None, verifier: type[Verifier] | None) -> None:
    """Refuse a number of nodes to which the trees of a batch would have to be cut.

    Args:
        budget: drafted nodes of a request and round, None for no such number.
        verifier: the verifier of the trees, None for `default_verifier`, which may be cut.

    Raises:
        ConfigError: it is no whole number of at least 1, or the children of the trees are drawn at random.
    """
    if budget is None:
        return
    check_count("budget", budget, ", or None for as many nodes as pay")
    if verifier is not None and verifier.proposal is not Proposal.TOP_K:
        raise ConfigError(
            f"a budget of {budget} nodes cannot hold with {verifier.__name__}: its trees are drawn, and a drawn node "
            "must stay in its tree; leave the budget out, and their levels are limited before they are drawn"
        )


def incompatibility(policy: TreePolicy, verifier: type[Verifier]) -> str | None:
    """The rule a pair breaks, with the nearest pair that keeps it; None for a lossless pair."""
    if policy.form_for(verifier.proposal, chain=verifier.chains_only):
        return None
    choices = "'point-mass' or 'coupled'" if policy.reranks else "'traversal'"
    if verifier.chains_only and policy.branches:
        return f"{verifier.__name__} judges chains only; use it with 'chain', or {choices} with {type(policy).__name__}"
    name = type(policy).__name__
    return (
        f"{name} exists in selected form only, as it drops nodes in the end, and a drawn node must stay in the "
        f"tree; use {choices} with {name}, or {verifier.__name__} with 'talon' or 'dynatree'"
    )
