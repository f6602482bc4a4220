"""Constraints on a text along every path of its trees: generation options, processors, grammars."""

from drafttree.constraints import grammar
from drafttree.constraints.processors import Constraint, ConstraintState, PathConstraints

__all__ = ["Constraint", "ConstraintState", "PathConstraints", "grammar"]
