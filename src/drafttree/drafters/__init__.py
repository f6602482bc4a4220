"""Drafters: who proposes the tokens of a tree."""

from drafttree.drafters.base import Draft, Drafter, Features
from drafttree.drafters.eagle3 import Eagle3Drafter
from drafttree.drafters.hydra import HydraDrafter
from drafttree.drafters.language_model import LanguageModelDrafter
from drafttree.drafters.medusa import MedusaDrafter

__all__ = ["Draft", "Drafter", "Eagle3Drafter", "Features", "HydraDrafter", "LanguageModelDrafter", "MedusaDrafter"]
