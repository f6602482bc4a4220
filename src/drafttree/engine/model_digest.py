"""A digest that identifies a model across processes and versions of drafttree."""

import hashlib
from collections.abc import Iterator
from typing import Any

from torch import Tensor, nn

from drafttree.models import TargetModel

DEPTH = 3
"""Levels of an object's attributes that are searched for modules."""


def model_digest(model: Any) -> str:
    """A digest of a target or a drafter, from its class and the name, shape, dtype and first number of every weight.

    One number of each weight is cheap to read, and enough to tell a model from one that was trained further. Neither
    the backend that runs the model nor the versions of libraries change the digest.
    """
    weights = sorted({_weight(name, tensor) for module in _modules(model, 0) for name, tensor in _tensors(module)})
    return hashlib.sha256(repr([type(model).__name__, weights]).encode()).hexdigest()[:16]


def _modules(model: Any, depth: int) -> Iterator[nn.Module]:
    if isinstance(model, TargetModel):
        yield model.module
    elif isinstance(model, nn.Module):
        yield model
    elif depth < DEPTH:
        for attribute in getattr(model, "__dict__", {}).values():
            yield from _modules(attribute, depth + 1)


def _tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    return ((name, tensor) for name, tensor in module.state_dict().items() if isinstance(tensor, Tensor))


def _weight(name: str, tensor: Tensor) -> str:
    first_number = "" if tensor.is_meta or not tensor.numel() else tensor[(0,) * tensor.dim()].item()
    return f"{name} {list(tensor.shape)} {tensor.dtype} {first_number}"
