"""Parses specifications: a policy such as "talon:budget=60,margin=0.03", a verifier's name, or lists of them.

A specification is the name of a method, as `drafttree.loading.methods` finds it, then a colon and its parameters. A
policy's preset may come before the parameters: "dynatree:paper,budget=64". The inverse, `policy_spec`, gives the
canonical specification by which results are keyed.
"""

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from drafttree.core.errors import ConfigError, unknown
from drafttree.loading.methods import POLICY_CLASSES, VERIFIER_CLASSES
from drafttree.policies import Auto, Chain, DynaTree, TreePolicy
from drafttree.verifiers import VERIFIERS, Coupled, Greedy, Verifier

if TYPE_CHECKING:
    from drafttree.drafters import Drafter

PolicyLike = str | TreePolicy | type[TreePolicy]
"""A specification, a policy, or a policy's class, which means its default parameters."""
VerifierLike = str | type[Verifier]
"""The name of a verifier, or its class."""
TUNED = ".json"
"""Suffix of files with a tuned policy (see `drafttree.loading.tuned`)."""
POLICY_ENDS = re.compile(r";|,(?=\s*[\w.-]+\s*(?:[:,;]|$))")
"""Separates two specifications: a semicolon, or a comma before a name that is not a parameter."""


def make_policy(policy: PolicyLike) -> TreePolicy:
    """A policy from a specification such as "talon", "talon:budget=60,margin=0.03" or "mypackage.trees.Widest:depth=3".

    Raises:
        ConfigError: the policy, preset or parameter does not exist, or a value is out of range.
    """
    if isinstance(policy, TreePolicy):
        POLICY_CLASSES.check(type(policy), type(policy).__name__)
        return policy
    if isinstance(policy, type):
        return POLICY_CLASSES.check(policy, policy.__name__)()
    if not isinstance(policy, str):
        raise ConfigError(f"a policy is a specification or a TreePolicy object, not {policy!r}")
    if policy.endswith(TUNED):
        raise ConfigError(
            f"{policy!r} is a file of a tuned policy, for load, generate, chat and batch; name a policy here"
        )
    name, _, options = policy.partition(":")
    method = POLICY_CLASSES.find(name)
    first_option, _, other_options = options.partition(",")
    if (preset := first_option.strip()) in method.presets:
        return method(**{**method.presets[preset], **split_spec("policy", f"{name}:{other_options}")[1]})
    if preset and "=" not in preset and method.presets:
        preset_names = ", ".join(method.presets)
        raise ConfigError(
            f"{preset!r} in policy {policy!r} is not of the form parameter=value, nor a preset ({preset_names})"
        )
    return method(**split_spec("policy", policy)[1])


def default_policy(
    verifier: type[Verifier] | None, drafter: "Drafter | None" = None, *, sharded: bool = False
) -> TreePolicy:
    """The policy to use if none is named: `Auto`, which is never much slower than plain decoding.

    It is `DynaTree` for verifiers whose draws depend on the drafts: with trees by measured costs, a seed would not
    repeat a text. It is `DynaTree` for a sharded target too, since clocks differ between processes. If drafts do not
    depend on their path (drafters that are `flat`, such as DFlash), all nodes of a level would get the same children.
    So trees are chains, with at most a second node on the first level.

    Args:
        verifier: the verifier; None for "auto".
        drafter: the drafter; None without one, or before it is known.
        sharded: whether several processes share the target.
    """
    is_flat = getattr(drafter, "flat", False)
    if not sharded and (verifier is None or issubclass(verifier, (Greedy, Coupled))):
        return Auto(flat=is_flat)
    levels = drafter.levels if drafter and is_flat else None
    return Chain(depth=levels) if levels else DynaTree()


def policy_spec(policy: TreePolicy) -> str:
    """The canonical specification of a policy: its name, and the parameters that differ from their defaults.

    `make_policy` reads it back, unless a parameter's value contains a comma.
    """
    name = POLICY_CLASSES.name_of(type(policy))
    fields = type(policy).model_fields.items()
    settings = [(key, getattr(policy, key), field.get_default(call_default_factory=True)) for key, field in fields]
    options = ",".join(f"{key}={_text(value)}" for key, value, default in settings if value != default)
    return f"{name}:{options}" if options else name


def find_verifier(verifier: VerifierLike | None) -> type[Verifier] | None:
    """The class of a verifier, from its name or the class itself; None for "auto".

    Raises:
        ConfigError: the verifier does not exist.
    """
    if isinstance(verifier, type):
        return VERIFIER_CLASSES.check(verifier, verifier.__name__)
    if not isinstance(verifier, str | None):
        raise unknown("verifier", verifier, [*VERIFIERS, "auto"])
    return None if verifier in (None, "auto") else VERIFIER_CLASSES.find(verifier)


def parse_policies(policies: Sequence[PolicyLike]) -> dict[str, TreePolicy]:
    """Policies by their canonical specifications, from a list in which a string may hold several.

    Semicolons separate specifications, and so do commas before a policy's name: "chain,talon:budget=60;eagle". "all"
    means every policy with its default parameters.

    Raises:
        ConfigError: a policy or parameter does not exist, a value is out of range, or no policy is named.
    """
    policy_objects = [make_policy(spec) for policy in policies for spec in _policies(policy)]
    if not policy_objects:
        raise ConfigError(f"no policy in {', '.join(map(repr, policies)) or 'an empty list'}; name one, or all")
    return {policy_spec(policy): policy for policy in policy_objects}


def parse_verifiers(verifiers: Sequence[VerifierLike]) -> dict[str, type[Verifier]]:
    """Verifiers by name, from a list in which a string may hold several, separated by commas; "all" is every verifier.

    Raises:
        ConfigError: a verifier does not exist, or none is named.
    """
    verifier_classes = [verifier_class for verifier in verifiers for verifier_class in _verifiers(verifier)]
    if not verifier_classes:
        raise ConfigError("no verifier is named; name one, or all")
    return {VERIFIER_CLASSES.name_of(verifier): verifier for verifier in verifier_classes}


def split_spec(method_kind: str, spec: str) -> tuple[str, dict[str, str | None]]:
    """The name and the parameters of a specification such as "talon:budget=60,depth=none".

    Args:
        method_kind: kind of method, for messages.
        spec: the specification as the user wrote it.

    Raises:
        ConfigError: a parameter has no value, or has two.
    """
    name, _, options = spec.partition(":")
    parameters: dict[str, str | None] = {}
    for option in filter(None, options.split(",")):
        key, equals, value = (piece.strip() for piece in option.partition("="))
        if not equals:
            raise ConfigError(f"{option!r} in {method_kind} {spec!r} is not of the form parameter=value")
        if key in parameters:
            raise ConfigError(f"{method_kind} {spec!r} gives {key} twice")
        parameters[key] = None if value.lower() == "none" else value
    return name, parameters


def _policies(policy: PolicyLike) -> list[PolicyLike]:
    if not isinstance(policy, str):
        return [policy]
    policies: list[PolicyLike] = []
    for spec in map(str.strip, POLICY_ENDS.split(policy)):
        if spec == "all":
            policies += POLICY_CLASSES.all().values()
        elif spec:
            policies.append(spec)
    return policies


def _verifiers(verifier: VerifierLike) -> list[type[Verifier]]:
    if not isinstance(verifier, str):
        return [VERIFIER_CLASSES.check(verifier, repr(verifier))]
    verifier_classes: list[type[Verifier]] = []
    for name in map(str.strip, re.split("[,;]", verifier)):
        if name == "all":
            verifier_classes += VERIFIER_CLASSES.all().values()
        elif name:
            verifier_classes.append(VERIFIER_CLASSES.find(name))
    return verifier_classes


def _text(value: Any) -> str:
    """A parameter's value as a specification has it; a path of a template is 0.1, and its list of paths 0+0.1."""
    if isinstance(value, tuple | list):
        is_nested = any(isinstance(element, tuple | list) for element in value)
        return ("+" if is_nested else ".").join(map(_text, value))
    return str(value).lower() if value is None or isinstance(value, bool) else str(value)
