"""Models that score trees: the protocol, the KV cache, tree attention, and the backends of a target model."""

from drafttree.models.attention.tree_attention import NAME, TreePlan
from drafttree.models.backend_choice import Wants, choose_backend
from drafttree.models.base import Model, append, prefill, prefill_and_score
from drafttree.models.cache.kv_cache import CacheLayout, TreeCache
from drafttree.models.module.module_backend import lay_out_for_cpu
from drafttree.models.module.module_checks import input_device
from drafttree.models.segment import Output, Segment
from drafttree.models.target_model import TargetModel
from drafttree.models.validation import verify_once
from drafttree.models.windows import LossyWindow

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
    "Wants",
    "append",
    "choose_backend",
    "input_device",
    "lay_out_for_cpu",
    "prefill",
    "prefill_and_score",
    "verify_once",
]
