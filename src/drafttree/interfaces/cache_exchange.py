"""`past_key_values`: a text continues from a KV cache of transformers, and its rows are written back to one."""

from typing import Any, TypeGuard

import numpy as np
import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig, PreTrainedConfig

from drafttree.constraints.refusals import refusal
from drafttree.core.errors import ConfigError
from drafttree.engine.request import Request
from drafttree.models.cache.kv_cache import CacheLayout


def check_cache(cache: Cache | None, input_ids: Tensor, padding: list[int], reads_hidden: bool) -> None:
    """Refuse a cache from the caller if a text cannot continue from it or be written to it.

    Args:
        cache: the cache that transformers passes; if transformers has made it itself, nothing is checked.
        input_ids: `[batch, length]` the whole prompts, cached tokens included.
        padding: left padding of each prompt.
        reads_hidden: whether the drafter needs the target's hidden states of every token.

    Raises:
        ConfigError: the cache is not a DynamicCache, belongs to several or padded prompts, is not shorter than the
            prompt, or lacks the hidden states that the drafter needs.
    """
    if not _is_given(cache):
        return
    if type(cache) is not DynamicCache:
        raise refusal(f"past_key_values of {type(cache).__name__}", "give a DynamicCache")
    if len(input_ids) > 1 or any(padding):
        raise refusal("past_key_values with several or padded prompts", "call generate once per prompt")
    try:
        rows = cache.get_seq_length()
    except ValueError:  # a cache of recurrent layers only, which `read_cache` refuses
        rows = 0
    if rows >= input_ids.shape[1]:
        raise refusal(f"past_key_values of {rows} tokens", f"the prompt of {input_ids.shape[1]} must be longer")
    if rows and reads_hidden:
        raise refusal("past_key_values with a drafter that reads the target's hidden states", "leave it out")


def cache_to_fill(cache: Cache | None, padding: list[int], config: GenerationConfig) -> Cache | None:
    """The cache to write the text's rows to; None if none is wanted, and for several or padded prompts."""
    needs_cache = config.return_dict_in_generate or _is_given(cache)
    return cache if needs_cache and type(cache) is DynamicCache and padding == [0] else None


def holds_rows(cache: Cache | None) -> bool:
    """Whether the caller gave a cache that has rows."""
    return _is_given(cache) and cache.get_seq_length() > 0


def _layers(cache: Cache) -> list[Any]:
    """The layers of a cache, untyped because their classes have no common fields."""
    return list(cache.layers)


def _is_given(cache: Cache | None) -> TypeGuard[Cache]:
    """Whether the caller gave the cache; otherwise it is an empty one that transformers made, or None."""
    return getattr(cache, "_is_user_defined", False)


@torch.inference_mode()
def read_cache(source: Cache | None, request: Request, switch: int | None) -> None:
    """Copy the rows of a checked cache, if they are valid for this text, to the empty KV cache of a new request.

    Args:
        source: the checked cache.
        request: a request that has read nothing yet.
        switch: `rope_switch` of the target. A longer text cannot use rows of a shorter one, and is read again.

    Raises:
        ConfigError: the cache belongs to another model, lacks rows, or the target has recurrent layers.
    """
    cache = request.cache
    if _is_given(source) and not cache.has_only_rows:
        raise refusal("past_key_values of models with recurrent layers", "leave it out")
    if source is None or not cache.has_only_rows or not (rows := source.get_seq_length()):
        return
    layers = _checked_layers(source, cache.layout, rows)
    if switch is not None and rows <= switch < len(request.tokens):
        return
    for index, layer in enumerate(layers):
        cache.update(layer.keys, layer.values, index)
    cache.grow(np.arange(rows))
    cache.commit(range(rows))


def _checked_layers(source: Cache, layout: CacheLayout, rows: int) -> list[Any]:
    """The layers of a cache that have keys and values; layers that share those of others (Gemma 4) have none.

    Raises:
        ConfigError: their number or shapes differ from `layout`, or they have fewer than `rows` rows.
    """
    layers = [layer for layer in _layers(source) if getattr(layer, "keys", None) is not None]
    if len(layers) != len(layout.slots):
        raise _foreign_cache(f"{len(layers)} layers with keys", str(len(layout.slots)))
    for index, (layer, slots) in enumerate(zip(layers, layout.slots.values(), strict=True)):
        for name, states, slot in zip(("keys", "values"), (layer.keys, layer.values), slots, strict=True):
            batch, heads, length, width = states.shape
            expected_shape = (1, *layout.buffers[slot.buffer][:2])
            if (batch, heads, width) != expected_shape:
                shape = "texts x heads x width ="
                raise _foreign_cache(
                    f"{name} of layer {index} with {shape} {batch}x{heads}x{width}", "{}x{}x{}".format(*expected_shape)
                )
            if length != rows:
                raise refusal("past_key_values without the rows before a sliding window", "leave it out")
    return layers


def _foreign_cache(cache_layout: str, model_layout: str) -> ConfigError:
    return refusal(
        f"past_key_values of another model: {cache_layout}, the model's own has {model_layout}", "leave it out"
    )


def write_cache(request: Request, target: Cache | None, switch: int | None, config: PreTrainedConfig) -> Cache | None:
    """Append the missing rows of a finished text to a cache: all but the last token's, as stock `generate` does.

    If the text has grown beyond `switch` since the cache was filled, all rows have changed, so a new cache is returned,
    also as stock `generate` does.

    Args:
        request: the finished request.
        target: the cache to fill; None for none.
        switch: `rope_switch` of the target model.
        config: the config of the target model.

    Returns:
        The filled cache; None without `target`, and for models with recurrent layers.
    """
    if target is None or not request.cache.has_only_rows:
        return None
    if switch is not None and request.cache.long_rope and 0 < target.get_seq_length() <= switch:
        target = DynamicCache(config=config)
    cached_rows = target.get_seq_length()
    end = len(request.tokens) - 1
    for index, (keys, values) in enumerate(request.cache.committed()):
        target.update(keys[:, :, cached_rows:end], values[:, :, cached_rows:end], index)
    return target
