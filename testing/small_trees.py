"""A target and a drafter of a few tokens, and a small tree of every policy."""

from drafttree.policies import POLICIES
from testing.toy import Table

VOCAB, LENGTH = 8, 40
PROMPT = [3, 1, 4, 1, 5]
TARGET = Table(VOCAB, order=3, seed=18)
DRAFT = TARGET.blurred(0.6)

SMALL = {
    "auto": {"children": 4, "budget": 12},
    "chain": {"depth": 4},
    "fixed": {"depth": 3, "breadth": 2, "threshold": 0.05},
    "template": {"tree": "eagle-sparse"},
    "dynatree": {},
    "talon": {"width": 4, "budget": 16},
    "eagle": {"depth": 4, "top_k": 3, "budget": 16},
    "opt-tree": {"threshold": 0.3, "budget": 12},
    "dyspec": {"budget": 12},
}


def small(name: str):
    return POLICIES[name](**SMALL[name])
