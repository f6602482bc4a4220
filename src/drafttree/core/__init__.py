"""The shared language: trees, distributions, randomness, time and errors. It knows nothing of models."""

from drafttree.core import errors
from drafttree.core.randomness import Randomness, RoundRandomness, SeededRandomness
from drafttree.core.sampling import Sampling
from drafttree.core.tree import DraftTree, Layer, Proposal, Verdict

__all__ = [
    "DraftTree",
    "Layer",
    "Proposal",
    "Randomness",
    "RoundRandomness",
    "Sampling",
    "SeededRandomness",
    "Verdict",
    "errors",
]
