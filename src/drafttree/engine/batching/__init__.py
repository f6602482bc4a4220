"""Many requests at once: continuous batching in which the trees of all requests share one target pass."""

from drafttree.engine.batching.engine import Engine
from drafttree.engine.batching.handle import Handle

__all__ = ["Engine", "Handle"]
