"""Models that score trees: the protocol, the KV cache, tree attention, and a target model with one of its backends."""

from drafttree.models.base import Model, Output, append, prefill, prefill_and_score
from drafttree.models.cache_layout import CacheLayout
from drafttree.models.kv_cache import TreeCache
from drafttree.models.lossy_window import LossyWindow
from drafttree.models.module_backend import lay_out_for_cpu
from drafttree.models.module_checks import input_device
from drafttree.models.packed import forward_packed, shares_passes
from drafttree.models.segment import Segment
from drafttree.models.target_model import TargetModel
from drafttree.models.tree_attention import NAME, TreePlan
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
    "forward_packed",
    "input_device",
    "lay_out_for_cpu",
    "prefill",
    "prefill_and_score",
    "select_backend",
    "select_exact_text",
    "select_windowed",
    "shares_passes",
    "verify_once",
]
