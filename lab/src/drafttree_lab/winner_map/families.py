"""The policies that are compared: families of settings, most of them as their papers have them."""

import functools
from collections.abc import Mapping

from drafttree.loading import make_policy, policy_spec
from drafttree_lab.replay.paper import read_paper

PLAIN, AUTO = "plain", "auto"
"""Plain decoding, whose R is 1, and the policy that weighs the costs themselves."""


def published_policy(paper: str, method: str) -> str:
    """The specification of a paper's method."""
    return canonical(read_paper(paper).methods[method].policy)


@functools.cache
def canonical(spec: str) -> str:
    """A specification as the results are kept by it."""
    return policy_spec(make_policy(spec))


def families() -> Mapping[str, list[str]]:
    """Specifications by the name of their family; a family's R is that of its best setting."""
    return {
        "chain": [canonical(f"chain:depth={depth}") for depth in (2, 5, 8)],
        "fixed tree": [
            published_policy("dynatree-v1", "DynaTree"),
            published_policy("dynatree-v2", "Fixed Tree D=5 B=2"),
        ],
        "DynaTree": [published_policy("dynatree-v2", name) for name in ("DynaTree", "DynaTree without history")],
        "EAGLE": [published_policy("talon", "EAGLE-3"), canonical("eagle:depth=4,top_k=4,budget=16")],
        "OPT-Tree": [published_policy("talon", "OPT-Tree"), canonical("opt-tree:budget=16")],
        "TALON": [published_policy("talon", "TALON"), canonical("talon:budget=16,width=4")],
    }
