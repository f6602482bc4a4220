"""Drafters propose the tokens of a draft tree."""

from drafttree.drafters.assistant import AssistantDrafter
from drafttree.drafters.base import Drafter, DraftSession, HiddenStates
from drafttree.drafters.eagle import EagleDrafter
from drafttree.drafters.eagle3 import Eagle3Drafter
from drafttree.drafters.hydra import HydraDrafter
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.drafters.lookup import PromptLookupDrafter
from drafttree.drafters.match_index import LookupDrafter
from drafttree.drafters.medusa import MedusaDrafter
from drafttree.drafters.mixed import MixedDrafter
from drafttree.drafters.suffix import SuffixDrafter

LOOKUPS: dict[str, type[LookupDrafter]] = {"lookup": PromptLookupDrafter, "suffix": SuffixDrafter}
"""Drafters that need no model, by name."""

__all__ = [
    "LOOKUPS",
    "AssistantDrafter",
    "DraftSession",
    "Drafter",
    "Eagle3Drafter",
    "EagleDrafter",
    "HiddenStates",
    "HydraDrafter",
    "LanguageModelDrafter",
    "LookupDrafter",
    "MedusaDrafter",
    "MixedDrafter",
    "PromptLookupDrafter",
    "SuffixDrafter",
]
