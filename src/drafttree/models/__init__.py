"""How logits are computed: the model protocol, its cache and its implementations."""

from drafttree.models.base import Model, Output
from drafttree.models.cache import TreeCache
from drafttree.models.huggingface import HuggingFaceModel

__all__ = ["HuggingFaceModel", "Model", "Output", "TreeCache"]
