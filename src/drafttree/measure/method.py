"""Methods of decoding, given as specifications: a drafter, a tree policy and a verifier."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

from drafttree.core.errors import ConfigError
from drafttree.loading import VERIFIER_CLASSES, find_verifier, make_policy, policy_spec
from drafttree.loading.specs import default_policy
from drafttree.policies import TreePolicy
from drafttree.verifiers import Verifier

PLAIN = "plain"
"""The name of plain decoding among other ways of decoding."""
NO_DRAFTER = "none"
"""The specification of plain decoding."""
AUTO = "auto"
SEPARATOR = "|"
FORM = "DRAFTER|POLICY|VERIFIER"


@dataclass(frozen=True)
class Method:
    """A drafter, a tree policy and a verifier.

    Attributes:
        drafter: the drafter as `drafttree.load` takes it, except "auto"; None for plain decoding.
        policy: the tree policy.
        verifier: the verifier; None for that of the decoder that the method is given to.
    """

    drafter: str | None
    policy: TreePolicy
    verifier: type[Verifier] | None = None

    @classmethod
    def parse(cls, spec: str) -> "Method":
        """Parse a specification such as "embedded-eagle3|talon:budget=60|rrsw"; "none" is plain decoding.

        If the policy is missing, it is the default one; if the verifier is missing or "auto", it is the decoder's.

        Raises:
            ConfigError: the specification has another form, or a policy, parameter or verifier is unknown.
        """
        fields = list(map(str.strip, spec.split(SEPARATOR)))
        if not fields[0] or len(fields) > 3:
            raise ConfigError(f"method {spec!r} is not of the form {FORM}; the last two may be left out")
        drafter, policy, verifier = [*fields, "", ""][:3]
        if drafter == NO_DRAFTER and (policy or verifier):
            raise ConfigError(
                f"method {spec!r} drafts nothing, so it has no policy and no verifier; write {NO_DRAFTER!r}"
            )
        if drafter == AUTO:
            raise ConfigError(f"method {spec!r}: {AUTO!r} is not a drafter; name one")
        verifier_class = find_verifier(verifier or AUTO)
        tree_policy = make_policy(policy) if policy else default_policy(verifier_class)
        return cls(None if drafter == NO_DRAFTER else drafter, tree_policy, verifier_class)

    @property
    def policy_spec(self) -> str:
        """The canonical specification of the policy; "plain" for plain decoding."""
        return policy_spec(self.policy) if self.drafter else PLAIN

    @property
    def verifier_name(self) -> str:
        """The name of the verifier; "auto" if it is the decoder's."""
        return VERIFIER_CLASSES.name_of(self.verifier) if self.verifier else AUTO

    @property
    def spec(self) -> str:
        """The canonical specification, which `parse` reads back."""
        if self.drafter is None:
            return NO_DRAFTER
        fields = [self.drafter, self.policy_spec, *([self.verifier_name] if self.verifier else [])]
        return SEPARATOR.join(fields)


def parse_methods(methods: Sequence[str | Method]) -> dict[str, Method]:
    """Parse methods; return them by their canonical specifications.

    A string may hold several, separated by semicolons: "lookup|chain;embedded-draft|talon:budget=60,width=4|rrsw".

    Raises:
        ConfigError: there is no method; or as in `Method.parse`.
    """
    parsed_methods = list(chain.from_iterable(map(_methods, methods)))
    if not parsed_methods:
        raise ConfigError(f"no method in {', '.join(map(repr, methods)) or 'an empty list'}; name one as {FORM}")
    return {method.spec: method for method in parsed_methods}


def _methods(method: str | Method) -> list[Method]:
    if isinstance(method, Method):
        return [method]
    return [Method.parse(spec) for spec in method.split(";") if spec.strip()]
