"""Tuning: the drafter and policy that write a user's prompts fastest, with a draft temperature, or plain decoding."""

from drafttree.evaluation.tune.recommendation import Tuning, command_options, python_lines, tuned_policy
from drafttree.evaluation.tune.tuning import DRAFT_TEMPERATURES, GRID, find_drafters, planned_texts, tune

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
