"""Drafters: they propose the tokens of a draft tree."""

from drafttree.drafters.assistant import AssistantDrafter
from drafttree.drafters.base import Drafter, Frontier, HiddenStates, Session
from drafttree.drafters.block import BlockDrafter
from drafttree.drafters.head import HeadDrafter
from drafttree.drafters.heads import HydraDrafter, MedusaDrafter
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.drafters.lookup import LookupDrafter, PromptLookupDrafter, SuffixDrafter
from drafttree.drafters.mixed import MixedDrafter
from drafttree.drafters.other_tokenizer import OtherTokenizerDrafter
from drafttree.drafters.session import count_pass
from drafttree.text.vocabulary_map import VocabularyMap

LOOKUPS: dict[str, type[LookupDrafter]] = {"lookup": PromptLookupDrafter, "suffix": SuffixDrafter}
"""Drafters that need no model, by name."""

__all__ = [
    "LOOKUPS",
    "AssistantDrafter",
    "BlockDrafter",
    "Drafter",
    "Frontier",
    "HeadDrafter",
    "HiddenStates",
    "HydraDrafter",
    "LanguageModelDrafter",
    "LookupDrafter",
    "MedusaDrafter",
    "MixedDrafter",
    "OtherTokenizerDrafter",
    "PromptLookupDrafter",
    "Session",
    "SuffixDrafter",
    "VocabularyMap",
    "count_pass",
]
