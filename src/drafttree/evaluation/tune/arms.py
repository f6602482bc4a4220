"""What a tuning chooses from: drafters, and settings of policies."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from drafttree.core.errors import ConfigError, DraftTreeError, ModelError
from drafttree.drafters import Drafter
from drafttree.engine import compatibility
from drafttree.engine.decoder import Decoder
from drafttree.loading import PolicyLike, find_drafter, parse_policies
from drafttree.measure.reference import transformers_model

GRID = (
    "auto",
    "chain:depth=2",
    "talon:budget=16,width=4",
    "chain",
    "dynatree",
    "eagle:depth=5,top_k=4,budget=16",
    "chain:depth=1",
    "opt-tree:budget=16",
    "chain:depth=3",
    "talon",
    "chain:depth=8",
    "eagle",
    "opt-tree",
)
"""The settings of each drafter, in the order in which they are tried if time is short."""


@dataclass(frozen=True)
class Arm:
    """A drafter with a policy.

    Attributes:
        drafter: the name of the drafter.
        policy: the canonical specification of the policy.
        decoder: a decoder with both.
        draft_temperature: divides the drafter's logits; the decoder has it as its default.
    """

    drafter: str
    policy: str
    decoder: Decoder
    draft_temperature: float = 1.0


def find_drafters(decoder: Decoder, names: Sequence[str]) -> tuple[dict[str, Drafter], dict[str, str]]:
    """The drafters of some names, and those that are left out, with the reason.

    Args:
        decoder: the decoder, for its target and tokenizer.
        names: drafters as `drafttree.load` takes them, but not "auto" and "none".

    Raises:
        ConfigError: "auto" or "none" is among them.
        ModelError: none of them can be used; the message names every one with its reason.
    """
    if wrong := {"none", "auto"}.intersection(names):
        raise ConfigError(f"{wrong.pop()!r} is not a drafter; plain decoding is run in any case")
    target, found, left_out = transformers_model(decoder), {}, {}
    for name in names:
        try:
            found[name] = find_drafter(name, target, decoder.tokenizer)
        except DraftTreeError as error:
            left_out[name] = str(error)
    if not found:
        raise no_drafter(left_out)
    return found, left_out


def no_drafter(left_out: Mapping[str, str]) -> ModelError:
    """The error where all drafters are left out, with the reason of each."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items()) or "none was named"
    return ModelError(f"no drafter can be used for this target ({reasons}); name another")


def make_arms(decoders: Mapping[str, Decoder], policies: Sequence[PolicyLike]) -> dict[str, Arm]:
    """Every drafter with every policy that is lossless with the decoders' verifier, by name.

    Args:
        decoders: the decoders, by the name of their drafter.
        policies: policies as `parse_policies` takes them.

    Raises:
        ConfigError: no policy is lossless with the verifier.
    """
    verifier = next(iter(decoders.values())).verifier
    grown = {
        spec: policy
        for spec, policy in parse_policies(policies).items()
        if verifier is None or not compatibility.incompatibility(policy, verifier)
    }
    if not grown:
        raise ConfigError(f"none of the policies is lossless with {verifier and verifier.__name__}; name another")
    return {
        f"{name}, {spec}": Arm(name, spec, decoder.with_policy(policy))
        for spec, policy in grown.items()
        for name, decoder in decoders.items()
    }
