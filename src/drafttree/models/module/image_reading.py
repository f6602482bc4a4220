"""Reads a prompt with images by the module itself, which merges, masks and places the images in its own way.

Behind such a prompt every token is text, so the passes of any backend go on from its rows.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.module.hidden_states import capturing
from drafttree.models.module.module_checks import input_device
from drafttree.models.module.module_inputs import as_cache

ROPE_DELTAS = "rope_deltas"
"""The attribute in which models with positions in several dimensions keep how far those of a text are from its rows."""


def image_token_of(module: PreTrainedModel) -> int | None:
    """The token id that stands for a part of an image; None if the model reads no images."""
    config = module.config
    for name in ("image_token_id", "image_token_index"):
        if (token := getattr(config, name, None)) is not None and hasattr(config, "vision_config"):
            return token
    return None


def read_images(
    module: PreTrainedModel,
    cache: TreeCache,
    tokens: Sequence[int],
    inputs: Mapping[str, Any],
    prompt_length: int,
    hidden_layers: tuple[int, ...] = (),
) -> tuple[Tensor, ...]:
    """Read a prompt with images in one pass of the module, and take over its keys and values.

    Args:
        module: the target.
        cache: an empty KV cache, to which the rows are committed.
        tokens: the token ids to read, the first ones of the prompt.
        inputs: the inputs that the module's processor made of the images.
        prompt_length: number of tokens of the whole prompt, which inputs with a number for each token have.
        hidden_layers: hidden states to return, counted as in `Scorer.forward`.

    Returns:
        The hidden states asked for, each `[1, tokens, hidden]`.

    Raises:
        ModelError: the module does not keep a row of keys and values for each token.
    """
    device = input_device(module)
    module_cache = DynamicCache()  # without a config, so that no layer drops the rows before its window
    prompt = torch.tensor([tokens], device=device)
    arguments = {
        "input_ids": prompt,
        "attention_mask": torch.ones_like(prompt),
        "use_cache": True,
        "is_first_iteration": True,
        **as_cache(module, module_cache),
        **{name: _first(value, len(tokens), prompt_length, device) for name, value in inputs.items()},
    }
    positions = arguments.get("position_ids")  # of time, height and width, behind those of the text if there are four
    with _keeping_deltas(module) as owner, capturing(module, hidden_layers) as states:
        prepare: Any = module.prepare_inputs_for_generation
        prepared: dict[str, Any] = prepare(**arguments)
        prepared["logits_to_keep"] = 1
        module(**prepared)
        cache.first_position = _delta(owner) if positions is None else int(positions[-3:].max()) + 1 - len(tokens)
    _take_rows(cache, module_cache, len(tokens))
    return tuple(states[layer] for layer in hidden_layers)


def _first(value: Any, count: int, prompt_length: int, device: torch.device) -> Any:
    """An input of the model on its device, cut to the prompt's first tokens if it has a number for each token."""
    if not isinstance(value, Tensor):
        return value  # encoded images, which are where the model put them
    is_by_token = not value.is_floating_point() and value.shape[-2:] == (1, prompt_length)
    return value[..., :count].to(device) if is_by_token else value.to(device)


@contextmanager
def _keeping_deltas(module: PreTrainedModel) -> Iterator[Any]:
    """Context manager: leave the module as it was, though it keeps the positions of the text that it read last."""
    owner = next((model for model in (module, getattr(module, "model", None)) if hasattr(model, ROPE_DELTAS)), None)
    old_deltas = getattr(owner, ROPE_DELTAS, None)
    if owner is not None:
        setattr(owner, ROPE_DELTAS, None)
    try:
        yield owner
    finally:
        if owner is not None:
            setattr(owner, ROPE_DELTAS, old_deltas)


def _delta(owner: Any) -> int:
    """How far the next position is from the number of rows."""
    deltas = getattr(owner, ROPE_DELTAS, None)
    return 0 if deltas is None else int(deltas.reshape(-1)[0])


def _take_rows(cache: TreeCache, source: DynamicCache, count: int) -> None:
    """Commit the keys and values of all layers that have their own."""
    layers: list[Any] = [layer for layer in source.layers if getattr(layer, "keys", None) is not None]
    slots = list(cache.layout.slots)
    if len(layers) != len(slots) or any(layer.keys.shape[-2] != count for layer in layers):
        raise ModelError(
            "a prompt with images cannot be read: the model's cache has other layers or rows than its texts"
        )
    for index, layer in zip(slots, layers, strict=True):
        cache.update(layer.keys, layer.values, index)
    cache.grow(np.arange(count))
    cache.commit(range(count))
