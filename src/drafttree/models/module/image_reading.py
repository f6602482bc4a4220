"""Reads a prompt with images by the module itself, which merges, masks and places the images in its own way.

Behind such a prompt every token is text, so the passes of any backend go on from its rows. A trial shows that they do.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers import DynamicCache, PreTrainedModel

from drafttree.core.errors import InputError, ModelError
from drafttree.core.machine_memory import is_out_of_memory
from drafttree.models.base import Backend
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.module.hidden_states import capturing
from drafttree.models.module.module_checks import input_device
from drafttree.models.module.module_inputs import as_cache
from drafttree.models.module.probe import REDUCED_TOLERANCE, relative_gap, tolerance
from drafttree.models.quantization.quantized_linear import quantized_layers
from drafttree.models.segment import Segment

MOST_REASON = 300
"""The most characters of torch's error in ours."""
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
    trial: Backend | None = None,
) -> tuple[Tensor, ...]:
    """Read a prompt with images in one pass of the module, and take over its keys and values.

    Args:
        module: the target.
        cache: an empty KV cache, to which the rows are committed.
        tokens: the token ids to read, the first ones of the prompt.
        inputs: the inputs that the module's processor made of the images.
        prompt_length: number of tokens of the whole prompt, which inputs with a number for each token have.
        hidden_layers: hidden states to return, counted as in `Scorer.forward`.
        trial: the backend that goes on from the rows. Its logits for one more token are compared with those of the
            module, which reads that token in its own pass. None for no trial.

    Returns:
        The hidden states asked for, each `[1, tokens, hidden]`.

    Raises:
        ModelError: the module does not keep a row of keys and values for each token, or the trial failed.
    """
    module_cache = DynamicCache()  # without a config, so that no layer drops the rows before its window
    read_tokens = [*tokens, _text_token(tokens, image_token_of(module))] if trial else [*tokens]
    arguments = _arguments(module, read_tokens, inputs, prompt_length)
    positions = arguments.get("position_ids")  # of time, height and width, behind those of the text if there are four
    with _keeping_deltas(module) as owner, capturing(module, hidden_layers) as states:
        # an index, not a number, by which layers that share keys (Gemma 4) would leave out states
        scored = torch.tensor([len(read_tokens) - 1]) if hidden_layers else 1
        logits = _last_logits(module, {**arguments, **as_cache(module, module_cache)}, scored)
        delta = _delta(owner) if positions is None else int(positions[-3:].max()) + 1 - len(read_tokens)
    cache.first_position = delta
    if not _take_rows(cache, module_cache, len(read_tokens), len(tokens)):
        raise _refusal(module, "its cache has other layers or rows for them than for text")
    if trial:
        _check_trial(module, trial, cache, read_tokens[-1], logits)
    return tuple(states[layer][:, : len(tokens)] for layer in hidden_layers)


def _last_logits(module: PreTrainedModel, arguments: Mapping[str, Any], scored: Tensor | int) -> Tensor:
    """The logits `[vocab]` of the last token of a pass of the module.

    Args:
        module: the target.
        arguments: those of its `prepare_inputs_for_generation`.
        scored: the module's `logits_to_keep`.

    Raises:
        InputError: the images do not fit the placeholders of the prompt, or the module refuses them otherwise.
    """
    prepare: Any = module.prepare_inputs_for_generation
    try:
        inputs: dict[str, Any] = prepare(**arguments)
        return module(**inputs | {"logits_to_keep": scored}).logits[0, -1]
    except (ValueError, RuntimeError) as error:
        if is_out_of_memory(error):
            raise
        reason = " ".join(str(error).split())[:MOST_REASON]
        raise InputError(f"{type(module).__name__} cannot read the images of the prompt: {reason}") from error


def _text_token(tokens: Sequence[int], image_token: int | None) -> int:
    """A token of text in a prompt; not one before an image, with which models mark where images begin."""
    token_pairs = pairwise(tokens)
    return next((token for token, next_token in token_pairs if image_token not in (token, next_token)), 0)


def _arguments(
    module: PreTrainedModel, tokens: Sequence[int], inputs: Mapping[str, Any], prompt_length: int
) -> dict[str, Any]:
    """The arguments of `prepare_inputs_for_generation` without a KV cache."""
    prompt = torch.tensor([tokens], device=input_device(module))
    arguments: dict[str, Any] = {
        "input_ids": prompt,
        "attention_mask": torch.ones_like(prompt),
        "use_cache": True,
        "is_first_iteration": True,
    }
    for name, value in inputs.items():
        if not isinstance(value, Tensor):
            arguments[name] = value  # encoded images, which are where the model put them
        elif not value.is_floating_point() and value.shape[-2:] == (1, prompt_length):
            arguments[name] = _of_tokens(value, len(tokens), is_position=name == "position_ids").to(prompt.device)
        else:
            arguments[name] = value.to(prompt.device)
    return arguments


def _of_tokens(value: Tensor, count: int, is_position: bool) -> Tensor:
    """The first numbers of an input `[..., prompt]` that has one for each token, and that of text beyond the prompt."""
    text_count = max(count - value.shape[-1], 0)
    if not is_position:
        return functional.pad(value, (0, text_count))[..., :count]
    next_positions = value.amax(-1, keepdim=True) + 1
    next_positions[-3:] = next_positions[-3:].max()
    return torch.cat((value, *[next_positions] * text_count), -1)[..., :count]


def _check_trial(module: PreTrainedModel, backend: Backend, cache: TreeCache, token: int, logits: Tensor) -> None:
    """Compare a backend's logits for a token behind the prompt with those of the module, which read it with the prompt.

    Raises:
        ModelError: they differ by more than rounding explains.
    """
    (output,) = backend.forward([Segment.of_text(cache, [token])])
    cache.commit([])
    gap = relative_gap(output.logits[0, -1].float(), logits.float())
    allowed_gap = REDUCED_TOLERANCE if quantized_layers(module) else tolerance(module.dtype)
    if not gap <= allowed_gap:
        raise _refusal(module, f"behind them its logits differ by {gap:.3g} from its own")


def _refusal(module: PreTrainedModel, reason: str) -> ModelError:
    return ModelError(f"images do not work with {type(module).__name__}: {reason}; give text alone")


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


def _take_rows(cache: TreeCache, source: DynamicCache, read_count: int, count: int) -> bool:
    """Commit the first `count` of `read_count` keys and values of all layers that have their own.

    Returns:
        False if there are other layers or rows than the cache expects; then nothing is committed.
    """
    layers: list[Any] = [layer for layer in source.layers if getattr(layer, "keys", None) is not None]
    slots = list(cache.layout.slots)
    if len(layers) != len(slots) or any(layer.keys.shape[-2] != read_count for layer in layers):
        return False
    for index, layer in zip(slots, layers, strict=True):
        cache.update(layer.keys[..., :count, :], layer.values[..., :count, :], index)
    cache.grow(np.arange(count))
    cache.commit(range(count))
    return True
