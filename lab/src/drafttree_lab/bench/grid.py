"""The settings `auto` is compared with: every other policy at its defaults, and some sizes of the adaptive ones."""

TALON, DYNATREE = "talon", "dynatree"
"""The two adaptive policies at their defaults."""
GRID = (
    *(f"chain:depth={depth}" for depth in (1, 2, 3)),
    "chain",
    "chain:depth=8",
    *(f"talon:width={width},budget={budget}" for budget in (8, 16) for width in (3, 4)),
    "talon:budget=16",
    "talon:width=4,budget=30",
    "talon:budget=30",
    "talon:width=4",
    TALON,
    DYNATREE,
    "dynatree:base_depth=3,max_depth=4",
    "dynatree:budget=16",
    "eagle",
    "eagle:depth=4,budget=16",
    "opt-tree",
    "opt-tree:budget=16",
    "dyspec",
    "fixed",
    "template",
)
