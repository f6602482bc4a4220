"""`past_key_values`: a text goes on from a cache of transformers, and leaves one to go on from."""

from typing import Any, TypeGuard

import torch
from torch import Tensor
from transformers import Cache, DynamicCache, GenerationConfig

from drafttree.constraints.refusals import refusal
from drafttree.engine.request import Request
from drafttree.models import TreeCache


def check_cache(cache: Cache | None, input_ids: Tensor, padding: list[int], reads_hidden: bool) -> None:
    """Refuse a cache of the caller's that a text cannot go on from or be written to.

    Args:
        cache: of transformers; one that it has made itself is not looked at.
        input_ids: `[batch, length]` the whole prompts, those of the cached tokens included.
        padding: left padding of each prompt.
        reads_hidden: whether the drafter needs the target's hidden states of every token.

    Raises:
        ConfigError: names what is wrong with it.
    """
    if not _is_given(cache):
        return
    if type(cache) is not DynamicCache:
        raise refusal(f"past_key_values of {type(cache).__name__}", "give a DynamicCache")
    if len(input_ids) > 1 or any(padding):
        raise refusal("past_key_values with several or padded prompts", "call generate once per prompt")
    rows, layers = cache.get_seq_length(), _layers(cache)
    if rows >= input_ids.shape[1]:
        raise refusal(f"past_key_values of {rows} tokens", f"the prompt of {input_ids.shape[1]} must be longer")
    if rows and any(layer.keys is None or layer.keys.shape[-2] != rows for layer in layers):
        raise refusal("past_key_values without the rows before a sliding window", "leave it out")
    if rows and reads_hidden:
        raise refusal("past_key_values with a drafter that reads the target's hidden states", "leave it out")


def cache_to_fill(cache: Cache | None, padding: list[int], config: GenerationConfig) -> Cache | None:
    """The cache that the text's rows are wanted in, None for none and for several or padded prompts."""
    wanted = config.return_dict_in_generate or _is_given(cache)
    return cache if wanted and type(cache) is DynamicCache and padding == [0] else None


def _layers(cache: Cache) -> list[Any]:
    """The layers of a cache, which differ in class and so have no common fields."""
    return list(cache.layers)


def _is_given(cache: Cache | None) -> TypeGuard[Cache]:
    """Whether the caller gave the cache; else it is an empty one of transformers, or there is none."""
    return getattr(cache, "_is_user_defined", False)


@torch.inference_mode()
def read_cache(source: Cache | None, cache: TreeCache) -> None:
    """Commit the rows of a checked cache, if there are any, to an empty one.

    Raises:
        ConfigError: the target's layers keep more than rows, which the caller's cache cannot be given.
    """
    if _is_given(source) and not cache.has_only_rows:
        raise refusal("past_key_values of models with recurrent layers", "leave it out")
    if source is None or not (rows := source.get_seq_length()):
        return
    for index, layer in enumerate(_layers(source)):
        cache.update(layer.keys, layer.values, index)
    cache.grow(torch.arange(rows)[None])
    cache.commit(range(rows))


def write_cache(request: Request, target: Cache | None) -> Cache | None:
    """A cache after appending the rows of a finished text that it lacks: all but the last token's, as stock `generate`.

    None where none is wanted, and for models with recurrent layers.
    """
    if target is None or not request.cache.has_only_rows:
        return None
    known, end = target.get_seq_length(), len(request.tokens) - 1
    for index, (keys, values) in enumerate(request.cache.committed()):
        target.update(keys[:, :, known:end], values[:, :, known:end], index)
    return target
