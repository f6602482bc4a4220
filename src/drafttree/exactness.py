"""Exact enumeration of texts: the public names of the parts of `drafttree.evaluation` that it is made of."""

from drafttree.evaluation.coupled_text import coupled_text
from drafttree.evaluation.scripted_random import ScriptedRandom, outcomes
from drafttree.evaluation.text_law import TextLaw, Texts, law, text_law
from drafttree.evaluation.toy_models import TabularModel
from drafttree.evaluation.toy_texts import trees

__all__ = [
    "ScriptedRandom",
    "TabularModel",
    "TextLaw",
    "Texts",
    "coupled_text",
    "law",
    "outcomes",
    "text_law",
    "trees",
]
