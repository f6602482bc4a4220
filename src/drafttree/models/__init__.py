"""Models that score trees: the protocol, the KV cache, tree attention, and a target model with one of its backends."""

from drafttree.models.attention.tree_attention import NAME, TreePlan
from drafttree.models.base import Model, Output, append, prefill, prefill_and_score
from drafttree.models.cache.cache_layout import CacheLayout
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.cache.lossy_window import LossyWindow
from drafttree.models.module.module_checks import input_device
from drafttree.models.module_backend import lay_out_for_cpu
from drafttree.models.segment import Segment
from drafttree.models.target_model import TargetModel
from drafttree.models.validation import select_backend, select_exact_text, select_windowed, verify_once

__all__ = [
    "NAME",
    "CacheLayout",
    "LossyWindow",
    "Model",
    "Output",
    "Segment",
    "TargetModel",
    "TreeCache",
    "TreePlan",
    "append",
    "input_device",
    "lay_out_for_cpu",
    "prefill",
    "prefill_and_score",
    "select_backend",
    "select_exact_text",
    "select_windowed",
    "verify_once",
]
