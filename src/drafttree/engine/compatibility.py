"""Checks that policy, verifier, drafter and target work together, and that the result is lossless.

What policy and verifier declare decides whether they are lossless together. A lossy verifier says so in its name and in
`lossless`. Every other pair that passes the checks is exact.
"""

import logging

from drafttree.core.counts import check_count
from drafttree.core.errors import ConfigError, ModelError
from drafttree.core.sampling import Sampling
from drafttree.core.tree import Proposal
from drafttree.models import Model, TargetModel
from drafttree.models.module.module_checks import recurrent_layers
from drafttree.policies.base import TreePolicy
from drafttree.verifiers import Coupled, Greedy, Verifier

logger = logging.getLogger("drafttree")


def default_verifier(sampling: Sampling) -> type[Verifier]:
    """The verifier of a text if none was named: `Greedy` at temperature 0, `Coupled` above it.

    Both are lossless with every policy, including a user's own, and a seed repeats a text whatever its trees were. So
    the choice depends neither on the policy nor on the seed. On chains only, `Traversal` accepts more: 3.6 tokens per
    round instead of 2.8 at depth 8 and temperature 1 (docs/log.md).
    """
    return Greedy if sampling.greedy else Coupled


def is_text_of_seed(verifier: type[Verifier]) -> bool:
    """Whether prompt and seed alone determine a text; the draws of all other verifiers depend on the drafts as well."""
    return issubclass(verifier, (Greedy, Coupled))


def precision_of(target: Model) -> str:
    """The dtype that a target computes in and, if its weights are quantised, their format."""
    return getattr(target, "precision", "unknown")


def keeps_text(target: Model) -> bool:
    """Whether texts equal plain decoding token for token; in reduced precision, rounding decides ties."""
    return precision_of(target).startswith("float32") or getattr(target, "exact_text", False)


def check_kinds(policy: object, drafter: object, verifier: object) -> None:
    """Check that the arguments are a policy, a drafter or None, and a verifier class or None.

    Raises:
        ConfigError: if one of them is not. The message says what to give instead.
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
        ConfigError: if the pair breaks a rule. The message has the rule and the nearest pair that keeps it.
    """
    if reason := incompatibility(policy, verifier):
        raise ConfigError(f"{type(policy).__name__} with {verifier.__name__} is not lossless: {reason}")


def is_sharded(target: Model) -> bool:
    """Whether a target's weights are sharded over processes, each of which runs the whole loop."""
    return getattr(target, "tensor_parallel_size", 1) > 1


def hides_state(target: Model) -> bool:
    """Whether a target has a hook or a replaced `forward` with state that the fingerprint cannot see."""
    return getattr(target, "unseen", None) is not None


def log_hidden_state(target: Model) -> None:
    """If a target may hide state, warn that rows could be reused although it has changed."""
    if hides_state(target):
        logger.warning(
            "reuse_prefix=True: %s may have state that cannot be compared, and the KV cache of earlier texts is reused "
            "even if this state has changed; pass reuse_prefix=False after a change",
            getattr(target, "unseen", None),
        )


def check_sharded(target: Model, verifier: type[Verifier] | None) -> None:
    """Refuse a verifier with which the processes of a sharded target could decide differently.

    Verifiers for which `is_text_of_seed` holds use only the target's logits, which are the same bits in all processes.
    The others also use the drafter's logits, which each process computes by itself.

    Raises:
        ConfigError: if the target is sharded and the verifier is one of the others. The message says what to give.
    """
    if verifier and is_sharded(target) and not is_text_of_seed(verifier):
        raise ConfigError(
            f"{verifier.__name__} cannot verify for a sharded target: it uses the drafter's probabilities, which may "
            "round differently in each process; use 'greedy' or 'coupled'"
        )


def refuse_sharded(target: Model, subject: str) -> None:
    """Refuse a feature that depends on a clock if the target is sharded, since every process has its own clock.

    Args:
        target: the target.
        subject: the feature, as the beginning of the message.

    Raises:
        ConfigError: if the target is sharded.
    """
    if is_sharded(target):
        raise ConfigError(f"{subject} by a clock, which the processes of a sharded target do not share")


def check_reuse(verifier: type[Verifier]) -> None:
    """Refuse to reuse rows of earlier texts if a seed then might not repeat its text.

    Rows of another pass differ in the last bits, which can change a verifier's draws.

    Raises:
        ConfigError: if the draws of the verifier depend on the drafts.
    """
    if not is_text_of_seed(verifier):
        raise ConfigError(
            f"reuse_prefix=True with {verifier.__name__}: rounding in the reused prefix may change its draws, so a "
            "seed would not repeat its text; leave reuse_prefix out, or use 'coupled'"
        )


def check_budget(budget: int | None, verifier: type[Verifier] | None) -> None:
    """Check the budget of a batch, to which its trees are cut.

    Args:
        budget: drafted nodes per request and round; None for no fixed number.
        verifier: the verifier of the trees; None for those of `default_verifier`, whose trees may be cut.

    Raises:
        ConfigError: if the budget is not a whole number of at least 1, or the children of the trees are drawn.
    """
    if budget is None:
        return
    check_count("budget", budget, ", or None for as many nodes as pay")
    if verifier is not None and verifier.proposal is not Proposal.TOP_K:
        raise ConfigError(
            f"a budget of {budget} nodes is not possible with {verifier.__name__}: its trees are drawn, and a drawn "
            "node must stay in its tree; leave the budget out, since the levels of such trees are limited before "
            "they are drawn"
        )


def incompatibility(policy: TreePolicy, verifier: type[Verifier]) -> str | None:
    """The rule that a pair breaks, and the nearest pair that keeps it, as text; None for a lossless pair."""
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


def check_images(target: TargetModel) -> None:
    """Check that a prompt with images can be read by this target.

    Raises:
        ConfigError: the target has a lossy window, is sharded, or changes its frequencies in long texts (LongRoPE).
        ModelError: it has recurrent layers, or layers that attend to images and not to the text.
    """
    if target.lossy_window:
        raise ConfigError("lossy_window does not work with images; leave it out")
    if target.tensor_parallel_size > 1:
        raise ConfigError("images do not work with a target that is sharded over processes")
    if target.rope_switch is not None:
        raise ConfigError("images do not work with LongRoPE; give text alone")
    if recurrent_layers(target.module):
        raise ModelError(f"images do not work with the recurrent layers of {type(target.module).__name__}")
    if getattr(target.module.config.get_text_config(), "cross_attention_layers", None):
        raise ModelError(f"images do not work with the cross-attention layers of {type(target.module).__name__}")
