"""LongRoPE: rotary embeddings with two sets of frequencies, the long ones for texts beyond the original context.

A pass uses the long frequencies if one of its positions is beyond that context (Ding et al. 2024, as in transformers).
Then all keys of the text have to be computed anew. Only the Phi models do that, so other models are used up to the
original context.
"""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

RECOMPUTING = {"phi3", "phimoe", "phi4_multimodal"}
"""Model types whose `generate` computes the KV cache anew when a text outgrows the original context."""


def rope_switch(module: PreTrainedModel) -> int | None:
    """The position from which a module uses the long frequencies for all keys of a text, None if it never does."""
    original_length = original_context(module.config.get_text_config())
    return original_length if module.config.model_type in RECOMPUTING else None


def context_limit(module: PreTrainedModel) -> int | None:
    """The largest number of positions of a text, None for no limit."""
    config = module.config.get_text_config()
    original_length = original_context(config)
    if original_length is not None and module.config.model_type not in RECOMPUTING:
        return original_length
    return getattr(config, "max_position_embeddings", None)


def original_context(config: Any) -> int | None:
    """The original context of a model with LongRoPE, None for any other."""
    for rope in ropes(config):
        if rope.get("rope_type") == "longrope":
            return rope.get("original_max_position_embeddings")
    return None


def long_frequencies_of(rotary: Any) -> Tensor | None:
    """The long frequencies `[pairs]` of a rotary embedding of LongRoPE, None for others."""
    if getattr(rotary, "rope_type", None) != "longrope":
        return None
    inv_freq = rotary.inv_freq
    seq_len = (original_context(rotary.config) or 0) + 1
    frequencies, _ = ROPE_INIT_FUNCTIONS["longrope"](rotary.config, inv_freq.device, seq_len=seq_len)
    return frequencies.to(inv_freq.dtype)  # as in the module's own buffer, to which it copies them


def short_frequencies_of(rotary: Any, layer_type: str | None = None) -> Tensor:
    """The frequencies `[pairs]` of a rotary embedding; for LongRoPE, the short ones.

    Args:
        rotary: the embedding.
        layer_type: type of the layers, for an embedding that has frequencies for several (Gemma 3).
    """
    if getattr(rotary, "rope_type", None) == "longrope":
        return rotary.original_inv_freq  # inv_freq has those of the latest pass
    attribute_name = f"{layer_type}_inv_freq"
    return getattr(rotary, attribute_name if hasattr(rotary, attribute_name) else "inv_freq")


def ropes(config: Any) -> list[dict]:
    """The parameters of the rotary embeddings: one dict for all layers, or one for each type of layer."""
    rope = getattr(config, "rope_parameters", None) or {}
    return [layer_rope for layer_rope in rope.values() if isinstance(layer_rope, dict)] or [rope]


@contextmanager
def long_frequencies(module: PreTrainedModel, switch: int) -> Iterator[None]:
    """Context manager: passes use the long frequencies. A hook adds a position beyond the original context."""

    def add(_: nn.Module, args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        x, *arguments = args
        positions = arguments[0] if arguments else kwargs["position_ids"]
        long_position = torch.full_like(positions[..., :1], switch)
        return (x,), {**kwargs, "position_ids": torch.cat((positions, long_position), -1)}

    def drop(_: nn.Module, __: tuple, angles: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        return tuple(angle[..., :-1, :] for angle in angles)

    with ExitStack() as undo:
        for submodule in module.modules():
            if getattr(submodule, "rope_type", None) == "longrope":
                undo.callback(submodule.register_forward_pre_hook(add, with_kwargs=True).remove)
                undo.callback(submodule.register_forward_hook(drop).remove)
        yield
