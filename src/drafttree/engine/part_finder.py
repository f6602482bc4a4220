"""What stands behind the names that `Decoder.with_policy`, `with_drafter` and `with_verifier` take.

The engine knows no names. `drafttree.load` hands its decoders a finder that does (`drafttree.loading.part_finder`).
"""

from typing import Any, Protocol

from drafttree.drafters.base import Drafter
from drafttree.models import Model
from drafttree.policies.base import TreePolicy
from drafttree.verifiers import Verifier


class PartFinder(Protocol):
    """Finds the parts of a decoder by what a user gives; raises what `drafttree.load` raises of the same."""

    def policy(self, given: Any) -> TreePolicy:
        """The policy of a specification, a class or an object."""
        ...

    def drafter(self, given: Any, target: Model, tokenizer: Any) -> Drafter | None:
        """The drafter of a name, a folder, a model, a class or an object for a target; None for plain decoding."""
        ...

    def verifier(self, given: Any) -> type[Verifier] | None:
        """The verifier of a name or a class; None for "auto"."""
        ...


class ObjectsOnly:
    """Takes objects as they are, for a decoder that was made of objects; the decoder refuses what is no part."""

    def policy(self, given: Any) -> TreePolicy:
        return given

    def drafter(self, given: Any, target: Model, tokenizer: Any) -> Drafter | None:
        return given

    def verifier(self, given: Any) -> type[Verifier] | None:
        return given
