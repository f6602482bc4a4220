"""Tuning: the drafter and the policy that write a user's prompts fastest, or that it is faster not to speculate."""

from drafttree.evaluation.tune.arms import GRID, find_drafters
from drafttree.evaluation.tune.engine_flags import EngineFlags, check_engine, engine_flags
from drafttree.evaluation.tune.recommendation import python_lines, tuned_policy
from drafttree.evaluation.tune.tuning import Tuning, planned_texts, tune

__all__ = [
    "GRID",
    "EngineFlags",
    "Tuning",
    "check_engine",
    "engine_flags",
    "find_drafters",
    "planned_texts",
    "python_lines",
    "tune",
    "tuned_policy",
]
