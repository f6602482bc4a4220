"""Tuning: the drafter and policy that write a user's prompts fastest, with a draft temperature, or plain decoding."""

from drafttree.evaluation.tune.arms import GRID, find_drafters
from drafttree.evaluation.tune.draft_temperatures import DRAFT_TEMPERATURES
from drafttree.evaluation.tune.recommendation import command_options, python_lines, tuned_policy
from drafttree.evaluation.tune.tuning import Tuning, planned_texts, tune

__all__ = [
    "DRAFT_TEMPERATURES",
    "GRID",
    "Tuning",
    "command_options",
    "find_drafters",
    "planned_texts",
    "python_lines",
    "tune",
    "tuned_policy",
]
