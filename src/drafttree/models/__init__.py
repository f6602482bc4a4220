"""How logits are computed: the model protocol, its cache and its implementations."""

from drafttree.models.base import Model, Output
from drafttree.models.huggingface import HuggingFaceModel
from drafttree.models.kv_cache import TreeCache

__all__ = ["HuggingFaceModel", "Model", "Output", "TreeCache"]
