"""Exact enumeration of a round: the public names of `drafttree.evaluation.exactness`."""

from drafttree.evaluation.exactness import Law, Replay, Table, coupled_round, law, outcomes, trees

__all__ = ["Law", "Replay", "Table", "coupled_round", "law", "outcomes", "trees"]
