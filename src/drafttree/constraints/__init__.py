"""Generation options, logits processors and grammars, applied along every path of a draft tree."""

from drafttree.constraints import grammar
from drafttree.constraints.processors import Constraint, ConstraintState, PathConstraints

__all__ = ["Constraint", "ConstraintState", "PathConstraints", "grammar"]
