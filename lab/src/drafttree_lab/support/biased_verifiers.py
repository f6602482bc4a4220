"""Verifiers with a known bias, to measure how much bias `certify --live` detects.

Example: `drafttree certify --live --verifier drafttree_lab.support.biased_verifiers.RRSw5`.
"""

from typing import Any, ClassVar

from drafttree.core.tree import DraftTree, Verdict
from drafttree.evaluation.biased_numbers import BiasedNumbers
from drafttree.verifiers import RRSw, Traversal, Verifier


class Biased(Verifier):
    """Mixin that makes a verifier accept too often.

    Attributes:
        bias: share by which the probability of acceptance is too large.
    """

    bias: ClassVar[float]

    def verify(self, tree: DraftTree, logits: Any, randomness: Any) -> Verdict:
        return super().verify(tree, logits, BiasedNumbers(randomness, self.bias))


class RRSw2(Biased, RRSw):
    bias = 0.02


class RRSw5(Biased, RRSw):
    bias = 0.05


class RRSw10(Biased, RRSw):
    bias = 0.1


class Traversal2(Biased, Traversal):
    bias = 0.02


class Traversal5(Biased, Traversal):
    bias = 0.05


class Traversal10(Biased, Traversal):
    bias = 0.1
