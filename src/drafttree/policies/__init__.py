"""Tree policies: how the draft tree grows. One file per method; see `drafttree.policies.base` to write another."""

from drafttree.policies.auto import Auto
from drafttree.policies.base import TreePolicy
from drafttree.policies.chain import Chain
from drafttree.policies.dynatree import DynaTree
from drafttree.policies.dyspec import DySpec
from drafttree.policies.eagle import Eagle
from drafttree.policies.fixed import Fixed
from drafttree.policies.opt_tree import OptTree
from drafttree.policies.talon import Talon
from drafttree.policies.template import Template

POLICIES: dict[str, type[TreePolicy]] = {
    "auto": Auto,
    "chain": Chain,
    "fixed": Fixed,
    "template": Template,
    "dynatree": DynaTree,
    "talon": Talon,
    "eagle": Eagle,
    "opt-tree": OptTree,
    "dyspec": DySpec,
}

__all__ = [
    "POLICIES",
    "Auto",
    "Chain",
    "DySpec",
    "DynaTree",
    "Eagle",
    "Fixed",
    "OptTree",
    "Talon",
    "Template",
    "TreePolicy",
]
