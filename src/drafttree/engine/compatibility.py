"""Check that a policy and a verifier are lossless together, from what each declares.

A verifier that is lossy says so in its name and in `lossless`; every other pair that is let through is exact.
"""

from drafttree.core.errors import ConfigError
from drafttree.core.tree import Proposal
from drafttree.policies.base import TreePolicy
from drafttree.verifiers import Coupled, Traversal, Verifier


def default_verifier(policy: TreePolicy) -> type[Verifier]:
    """The verifier that accepts most above temperature 0, where nobody asks for a text that its seed alone decides.

    As measured (docs/log.md): `Traversal` on chains; `Coupled` on adaptive trees, whose policies trust a drafter that
    sees the noise; on static trees the two are level, and `Coupled` serves every policy.
    """
    return Coupled if policy.branches else Traversal


def check(policy: TreePolicy, verifier: type[Verifier]) -> None:
    """Refuse a pair that is not proven lossless.

    Raises:
        ConfigError: names the rule the pair breaks and the nearest pair that keeps it.
    """
    if reason := incompatibility(policy, verifier):
        raise ConfigError(f"{type(policy).__name__} with {verifier.__name__} is not lossless: {reason}")


def incompatibility(policy: TreePolicy, verifier: type[Verifier]) -> str | None:
    """The rule a pair breaks, with the nearest pair that keeps it; None for a lossless pair."""
    other = "'point-mass' or 'coupled'" if policy.reranks else "'traversal'"
    if verifier.chains_only and policy.branches:
        return f"{verifier.__name__} judges chains only; use it with 'chain', or {other} with {type(policy).__name__}"
    if verifier.proposal is not Proposal.TOP_K and policy.reranks:
        name = type(policy).__name__
        return (
            f"{name} exists in selected form only, as it drops nodes in the end, and a drawn node must stay in the "
            f"tree; use {other} with {name}, or {verifier.__name__} with 'talon' or 'dynatree'"
        )
    return None
