"""Tuning: the drafter and the policy that write a user's prompts fastest, or that it is faster not to speculate."""

from drafttree.evaluation.tune.arms import GRID, find_drafters
from drafttree.evaluation.tune.engine_flags import ENGINES, EngineFlags, engine_flags
from drafttree.evaluation.tune.tuning import Tuning, tune

__all__ = ["ENGINES", "GRID", "EngineFlags", "Tuning", "engine_flags", "find_drafters", "tune"]
