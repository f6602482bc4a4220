"""Exact enumeration of a round: the public names of `drafttree.evaluation.exactness`."""

from drafttree.evaluation.exactness import (
    RoundLaw,
    ScriptedRandom,
    TabularModel,
    coupled_round,
    law,
    outcomes,
    trees,
)

__all__ = ["RoundLaw", "ScriptedRandom", "TabularModel", "coupled_round", "law", "outcomes", "trees"]
