"""Drafters: who proposes the tokens of a tree."""

from drafttree.drafters.base import Draft, Drafter, Features
from drafttree.drafters.language_model import LanguageModelDrafter

__all__ = ["Draft", "Drafter", "Features", "LanguageModelDrafter"]
