"""Finds the parts of a decoder by the names that `load` takes, for `Decoder.with_policy` and the like."""

from typing import Any
from weakref import WeakValueDictionary

from drafttree.core.errors import ConfigError
from drafttree.drafters import Drafter
from drafttree.loading.drafters import check_drafter_exists, find_or_choose, make_drafter
from drafttree.loading.placement import is_auto
from drafttree.loading.pretrained import ModelSource
from drafttree.loading.specs import find_verifier, make_policy
from drafttree.loading.target_options import BY_DEFAULT
from drafttree.models import Model, TargetModel
from drafttree.policies import TreePolicy
from drafttree.verifiers import Verifier


class NamedParts:
    """Finds policies, drafters and verifiers as `drafttree.load` does, with the same errors.

    Args:
        quantize_drafter: how to quantise language models that draft; the `quantize` of `find_drafter`.

    Attributes:
        held: the language models that draft for the decoder's target, by path; entries vanish once unused.
    """

    def __init__(self, quantize_drafter: str | None = BY_DEFAULT) -> None:
        self._quantize = quantize_drafter
        self.held = WeakValueDictionary[str, Drafter]()

    def policy(self, given: Any) -> TreePolicy:
        """The policy of a specification, a class or an object."""
        return make_policy(given)

    def drafter(self, given: Any, target: Model, tokenizer: Any) -> Drafter | None:
        """The drafter for a target, from a name, folder, model, class or object; None for plain decoding."""
        files = None if is_auto(given) else check_drafter_exists(given)
        if not isinstance(target, TargetModel):
            return make_drafter(given, target, tokenizer, _refuse)
        return find_or_choose(given, target.module, target, tokenizer, self._quantize, files, self.held)

    def verifier(self, given: Any) -> type[Verifier] | None:
        """The verifier of a name or a class; None for "auto"."""
        return find_verifier(given)


def _refuse(source: ModelSource) -> Drafter:
    raise ConfigError(
        f"a model drafts for a transformers model, which this target is not; give {source!r} as an object"
    )
