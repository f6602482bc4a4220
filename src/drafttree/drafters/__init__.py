"""Drafters: who proposes the tokens of a tree."""

from drafttree.drafters.base import Draft, Drafter
from drafttree.drafters.language_model import LanguageModelDrafter

__all__ = ["Draft", "Drafter", "LanguageModelDrafter"]
