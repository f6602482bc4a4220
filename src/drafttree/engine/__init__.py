"""The decoding loop: every round drafts, scores, verifies and commits."""

from drafttree.engine.batching import Engine, Handle
from drafttree.engine.decoder import Decoder
from drafttree.engine.drafting.tree_growth import grow
from drafttree.engine.generation import Chunk, Generation
from drafttree.engine.metrics import EngineMetrics, Metrics
from drafttree.engine.request import Request

__all__ = [
    "Chunk",
    "Decoder",
    "Engine",
    "EngineMetrics",
    "Generation",
    "Handle",
    "Metrics",
    "Request",
    "grow",
]
