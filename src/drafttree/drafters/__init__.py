"""Drafters: who proposes the tokens of a tree."""

from drafttree.drafters.base import Draft, Drafter, Features
from drafttree.drafters.eagle3 import Eagle3Drafter
from drafttree.drafters.hydra import HydraDrafter
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.drafters.lookup import PromptLookup
from drafttree.drafters.match_index import LookupDrafter
from drafttree.drafters.medusa import MedusaDrafter
from drafttree.drafters.mixed import Mixed
from drafttree.drafters.suffix import SuffixAutomaton

LOOKUPS: dict[str, type[LookupDrafter]] = {"lookup": PromptLookup, "suffix": SuffixAutomaton}
"""Drafters that need no model, by name."""

__all__ = [
    "LOOKUPS",
    "Draft",
    "Drafter",
    "Eagle3Drafter",
    "Features",
    "HydraDrafter",
    "LanguageModelDrafter",
    "LookupDrafter",
    "MedusaDrafter",
    "Mixed",
    "PromptLookup",
    "SuffixAutomaton",
]
