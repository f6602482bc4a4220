"""Verifiers: which drafted tokens are accepted. One file per method."""

from drafttree.verifiers.base import Verifier
from drafttree.verifiers.coupled import Coupled
from drafttree.verifiers.greedy import Greedy

VERIFIERS: dict[str, type[Verifier]] = {"greedy": Greedy, "coupled": Coupled}

__all__ = ["VERIFIERS", "Coupled", "Greedy", "Verifier"]
