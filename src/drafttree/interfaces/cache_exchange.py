"""`past_key_values`: a text goes on from a cache of transformers, and leaves one to go on from."""

import torch
from torch import Tensor
from transformers import Cache, DynamicCache

from drafttree.constraints.refusals import refusal
from drafttree.engine.request import Request
from drafttree.models import TreeCache


def check_cache(cache: Cache | None, input_ids: Tensor, padding: list[int], reads_hidden: bool) -> None:
    """Refuse a cache that a text cannot go on from.

    Args:
        cache: of transformers, None for none.
        input_ids: `[batch, length]` the whole prompts, those of the cached tokens included.
        padding: left padding of each prompt.
        reads_hidden: whether the drafter needs the target's hidden states of every token.

    Raises:
        ConfigError: names what is wrong with it.
    """
    if cache is None or not (rows := cache.get_seq_length()):
        return
    if type(cache) is not DynamicCache:
        raise refusal(f"past_key_values of {type(cache).__name__}", "give a DynamicCache")
    if len(input_ids) > 1 or any(padding):
        raise refusal("past_key_values with several or padded prompts", "call generate once per prompt")
    if rows >= input_ids.shape[1]:
        raise refusal(f"past_key_values of {rows} tokens", f"the prompt of {input_ids.shape[1]} must be longer")
    if any(layer.keys is None or layer.keys.shape[-2] != rows for layer in cache.layers):
        raise refusal("past_key_values without the rows before a sliding window", "leave it out")
    if reads_hidden:
        raise refusal("past_key_values with a drafter that reads the target's hidden states", "leave it out")


@torch.inference_mode()
def read_cache(source: Cache, cache: TreeCache) -> None:
    """Commit the rows of a checked cache to an empty one."""
    rows = source.get_seq_length()
    if not rows:
        return
    for index, layer in enumerate(source.layers):
        cache.update(layer.keys, layer.values, index)  # pyright: ignore[reportArgumentType]
    cache.grow(torch.arange(rows)[None])
    cache.commit(range(rows))


def write_cache(request: Request, target: Cache) -> None:
    """Append to a cache the rows of a finished text that it lacks: all but the last token's, as stock `generate`."""
    known, end = target.get_seq_length(), len(request.tokens) - 1
    for index, (keys, values) in enumerate(request.cache.committed()):
        target.update(keys[:, :, known:end], values[:, :, known:end], index)
