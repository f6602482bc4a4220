"""The norms of transformers' layers, as functions and as the numbers that define them."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Norm(NamedTuple):
    """The numbers that define a norm.

    Attributes:
        scale: float32 `[width]`.
        shift: float32 `[width]`, None for none.
        epsilon: added to the mean square.
        centred: whether the mean is subtracted first.
    """

    scale: Tensor
    shift: Tensor | None
    epsilon: float
    centred: bool


def norm_of(norm: Any, width: int = 0) -> Norm | None:
    """The numbers that define a norm, None for a norm that does nothing.

    Args:
        norm: the module, or its numbers.
        width: size of the normed dimension, for norms without a scale (Gemma 4).

    Raises:
        AttributeError: the kind of norm is not known.
    """
    if norm is None or isinstance(norm, Norm):
        return norm
    if isinstance(norm, nn.Identity):
        return None
    scale = getattr(norm, "weight", None)
    scale = torch.ones(width, dtype=torch.float32, device="cpu") if scale is None else scale.detach()
    weight = scale.float()
    if isinstance(norm, nn.LayerNorm):
        return Norm(weight, None if norm.bias is None else norm.bias.detach().float(), float(norm.eps), True)
    offset = _offset(norm, scale)
    epsilon = _epsilon(norm)
    if offset is None or epsilon is None:
        raise AttributeError(f"{type(norm).__name__} is not a known norm")
    return Norm(weight + offset, None, float(epsilon), False)


def norm_call(norm: Any) -> Callable[[Tensor], Tensor]:
    """A function for an RMS norm of transformers; norms of other kinds are returned as they are.

    On a CPU, `F.rms_norm` runs nine small operations. The function divides by a length that includes epsilon, which
    takes four. It has a copy of the scale, which does not follow changes of the weight.
    """
    if getattr(norm, "weight", None) is None or isinstance(norm, nn.LayerNorm):
        return norm
    weight = norm.weight.detach()
    epsilon = _epsilon(norm)
    offset = _offset(norm, weight)
    if epsilon is None or offset is None:
        return norm
    if weight.is_cuda or weight.dtype != torch.float32:
        return norm if offset else lambda x: F.rms_norm(x, weight.shape, weight, epsilon)
    scale = (weight + offset) * math.sqrt(len(weight))
    length_floor = torch.tensor(math.sqrt(len(weight) * epsilon))
    return lambda x: (x / torch.linalg.vector_norm(x, dim=-1, keepdim=True).hypot_(length_floor)).mul_(scale)


def _epsilon(norm: Any) -> float | None:
    return getattr(norm, "variance_epsilon", getattr(norm, "eps", None))


@torch.inference_mode()
def _offset(norm: Any, weight: Tensor) -> int | None:
    """The number that an RMS norm adds to its weight (1 in Gemma, else 0), None for a norm of another kind."""
    scale = norm(torch.full_like(weight, 64.0))  # so large that epsilon has no effect
    return next((offset for offset in (0, 1) if torch.allclose(scale, weight + offset, rtol=1e-2, atol=1e-3)), None)
