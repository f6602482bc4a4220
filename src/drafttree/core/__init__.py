"""What all other folders use: trees, distributions, randomness and errors. It does not depend on models."""

from drafttree.core import errors
from drafttree.core.randomness import Randomness, SeededRandomness
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Layer, Proposal, Verdict

__all__ = [
    "DraftTree",
    "Layer",
    "Proposal",
    "Randomness",
    "Sampling",
    "SeededRandomness",
    "Verdict",
    "errors",
]
