"""Models that score trees: the protocol, the KV cache, tree attention, and the backends of a target model."""

from drafttree.models.base import Model
from drafttree.models.cache.kv_cache import CacheLayout, TreeCache
from drafttree.models.segment import Output, Segment
from drafttree.models.target_model import TargetModel
from drafttree.models.windows import LossyWindow

__all__ = ["CacheLayout", "LossyWindow", "Model", "Output", "Segment", "TargetModel", "TreeCache"]
