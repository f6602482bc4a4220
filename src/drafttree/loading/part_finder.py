"""Finds the parts of a decoder by the names that `load` takes, for `Decoder.with_policy` and the like."""

from typing import Any
from weakref import WeakValueDictionary

from drafttree.drafters import Drafter
from drafttree.loading.drafters import parse_drafter
from drafttree.loading.specs import find_verifier, make_policy
from drafttree.loading.target_options import BY_DEFAULT
from drafttree.loading.targets import GivenTarget, LoadedTarget, TargetSpec
from drafttree.models import Model, TargetModel
from drafttree.policies import TreePolicy
from drafttree.verifiers import Verifier


class NamedParts:
    """Finds policies, drafters and verifiers as `drafttree.load` does, with the same errors.

    Args:
        quantize_drafter: how to quantise language models that draft; the `quantize` of `LoadedTarget`.

    Attributes:
        held: the language models that draft for the decoder's target, by path; entries vanish once unused.
    """

    def __init__(self, quantize_drafter: str | None = BY_DEFAULT) -> None:
        self._quantize = quantize_drafter
        self.held = WeakValueDictionary[str, Drafter]()

    def policy(self, spec: Any) -> TreePolicy:
        """The policy of a specification, a class or an object."""
        return make_policy(spec)

    def drafter(self, spec: Any, target: Model, tokenizer: Any) -> Drafter | None:
        """The drafter for a target, from a name, folder, model, class or object; None for plain decoding."""
        drafter_spec = parse_drafter(spec)
        target_spec = GivenTarget(target.module) if isinstance(target, TargetModel) else None
        drafter_spec.check(target_spec)
        return drafter_spec.build(self.loaded(target, tokenizer, target_spec))

    def loaded(self, target: Model, tokenizer: Any, spec: TargetSpec | None) -> LoadedTarget:
        """A target, with the quantisation of its drafters and the language models that draft for it."""
        return LoadedTarget(target, tokenizer, self._quantize, self.held, spec)

    def verifier(self, spec: Any) -> type[Verifier] | None:
        """The verifier of a name or a class; None for "auto"."""
        return find_verifier(spec)
