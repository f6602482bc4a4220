"""Exact enumeration of texts: the public names of `drafttree.evaluation.exactness` and of what it is made of."""

from drafttree.evaluation.exactness import RoundLaw, law, trees
from drafttree.evaluation.scripted_random import ScriptedRandom, outcomes
from drafttree.evaluation.text_law import TextLaw, Texts, coupled_text, text_law
from drafttree.evaluation.toy_models import TabularModel

__all__ = [
    "RoundLaw",
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
