"""Checks the arguments that transformers' `generate` has prepared, and reads options from them."""

import math
import sys
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EpsilonLogitsWarper,
    EtaLogitsWarper,
    GenerationConfig,
    LogitsProcessorList,
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinPLogitsWarper,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
    TopHLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)
from transformers.generation.logits_process import LogitNormalization, LogitsProcessor
from transformers.generation.streamers import BaseStreamer

from drafttree.constraints.refusals import REFUSED, refusal, show_option
from drafttree.images.prompt_images import media_inputs
from drafttree.models.module.module_inputs import CACHE_NAMES

SERVED = {"num_return_sequences", "output_scores", "output_logits", "streamer", "tokenizer", "attention_mask"}
SERVED |= {*CACHE_NAMES, "input_ids", "inputs"}
"""Options that `custom_generate` supports although `Decoder.generate` refuses them."""
INPUTS = {"attention_mask", "position_ids", *CACHE_NAMES, "use_cache", "logits_to_keep", "cache_position"}
"""Inputs of the model that are accepted besides the prompt."""
WARPERS: dict[type, tuple[str, str] | None] = {
    TemperatureLogitsWarper: ("temperature", "temperature"),
    TopHLogitsWarper: ("top_h", "top_h"),
    TopKLogitsWarper: ("top_k", "top_k"),
    TopPLogitsWarper: ("top_p", "top_p"),
    MinPLogitsWarper: ("min_p", "min_p"),
    TypicalLogitsWarper: ("typical_p", "mass"),
    EpsilonLogitsWarper: ("epsilon_cutoff", "epsilon"),
    EtaLogitsWarper: ("eta_cutoff", "epsilon"),
    LogitNormalization: None,
}
"""Warpers in transformers' order: the equivalent option of `Decoder.new_request`, and the attribute with its value."""


def check_config(config: GenerationConfig) -> None:
    """Refuse options of the generation config that drafttree does not support."""
    for name, refused_field in REFUSED.items():
        value = getattr(config, name, None)
        if name not in SERVED and not refused_field.accepts(value):
            raise refusal(show_option(name, value))


def check_inputs(input_ids: Tensor, model_kwargs: Mapping[str, object]) -> None:
    """Refuse an empty prompt, and inputs of the model other than tokens."""
    for name, value in model_kwargs.items():
        is_empty = value is None or (isinstance(value, dict) and not value)
        if name not in INPUTS and not is_empty:
            raise refusal(name, "pass the prompt as input_ids alone")
    if not input_ids.shape[1]:
        raise refusal("an empty prompt", "give at least one token")


def image_inputs(input_ids: Tensor, model_kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The inputs of the model for images; empty without images.

    Raises:
        ConfigError: there are several prompts.
        InputError: there is video or audio.
    """
    model_inputs = {name: value for name, value in model_kwargs.items() if name not in INPUTS}
    images = media_inputs({"input_ids": input_ids, **model_inputs}) or {}
    if images and (positions := model_kwargs.get("position_ids")) is not None and positions.ndim > 2:
        images["position_ids"] = positions  # of the images, whose sizes `generate` passes no more
    if images and len(input_ids) > 1:
        raise refusal("images with several prompts", "call generate once per prompt")
    return images


def check_batch(size: int, criteria: StoppingCriteriaList, streamer: BaseStreamer | None) -> None:
    """For several prompts, which run one after another, refuse a streamer, and custom criteria without EOS tokens."""
    if size == 1:
        return
    if streamer is not None:
        raise refusal("a streamer with several prompts", "call generate once per prompt")
    has_eos = any(hasattr(criterion, "eos_token_id") for criterion in criteria)
    if not has_eos and not all(isinstance(criterion, MaxLengthCriteria | MaxTimeCriteria) for criterion in criteria):
        raise refusal("stopping criteria for several prompts without eos_token_id", "call generate once per prompt")


def eos_ids(config: GenerationConfig) -> list[int]:
    """The token ids that end a text."""
    tensor = getattr(config, "_eos_token_tensor", None)
    return [] if tensor is None else tensor.flatten().tolist()


def split_processors(processors: LogitsProcessorList, do_sample: bool) -> tuple[list[LogitsProcessor], dict[str, Any]]:
    """Split off the warpers at the end: return the other processors, and sampling options that replace the warpers.

    The options are those of `Decoder.new_request`; without `do_sample` there are none. A warper stays a processor if it
    is not in transformers' order, or does not set excluded tokens to -inf. Then the scores are the same, but the warper
    runs once per level of a draft tree.
    """
    logits_processors = list(processors)
    if not do_sample:
        return logits_processors, {}
    options: dict[str, Any] = {"temperature": 1.0}
    warper_index = len(WARPERS)
    while logits_processors and _warper_index(logits_processors[-1]) < warper_index:
        warper = logits_processors.pop()
        warper_index = _warper_index(warper)
        if names := WARPERS[type(warper)]:
            option, attribute = names
            value = getattr(warper, attribute)
            options[option] = value.item() if isinstance(value, Tensor) else value
    return logits_processors, options


def _warper_index(processor: LogitsProcessor) -> int:
    """The index of a processor in `WARPERS`; the largest integer for other processors."""
    is_plain_warper = type(processor) in WARPERS and _is_plain_warper(processor)
    return list(WARPERS).index(type(processor)) if is_plain_warper else sys.maxsize


def _is_plain_warper(warper: LogitsProcessor) -> bool:
    """Whether a warper sets excluded tokens to -inf, and may exclude all tokens but one."""
    return getattr(warper, "filter_value", -math.inf) == -math.inf and getattr(warper, "min_tokens_to_keep", 1) == 1


def left_padding(input_ids: Tensor, mask: Tensor | None, positions: Tensor | None) -> list[int]:
    """The number of padding tokens on the left of each prompt.

    If every entry of the mask is 1, transformers passes no mask, only the position_ids made from it.

    Args:
        input_ids: `[batch, length]` token ids.
        mask: `[batch, length]` attention mask; None for all ones.
        positions: position ids, see `_positions_agree`; None for the default.

    Raises:
        ConfigError: the shape of the mask or the positions does not fit, the mask has padding that is not on the left,
            or the positions do not follow from the mask.
    """
    tokens = input_ids.shape[1]
    if mask is not None and mask.shape != input_ids.shape:
        mismatch = f"an attention_mask of {list(mask.shape)} for input_ids of {list(input_ids.shape)}"
        raise refusal(mismatch, "give an entry for each token")
    if positions is not None and positions.shape[-1] != tokens:
        mismatch = (
            f"an attention_mask, or position_ids, of {positions.shape[-1]} entries for prompts of {tokens} tokens"
        )
        raise refusal(mismatch, "give an entry for each token")
    if positions is not None and positions.ndim > 1 and positions.shape[-2] not in (1, len(input_ids)):
        mismatch = f"an attention_mask, or position_ids, of {positions.shape[-2]} rows for {len(input_ids)} prompts"
        raise refusal(mismatch, "give a row for each prompt")
    mask = torch.ones_like(input_ids) if mask is None else (mask != 0).long()
    if (mask[:, -1] == 0).any() or (mask.diff(dim=1) < 0).any():
        raise refusal("an attention_mask with padding inside or right of a prompt", "pad on the left")
    expected_positions = mask.cumsum(-1) - 1
    if positions is not None and not _positions_agree(positions, expected_positions, mask == 1):
        raise refusal("position_ids of your own")
    return (mask == 0).sum(1).tolist()


def _positions_agree(positions: Tensor, expected_positions: Tensor, token_mask: Tensor) -> bool:
    """Whether position ids are as expected, except at padding. They have one row for all prompts, or a row for each.

    Multimodal models have positions in several dimensions, `[dimensions, batch, tokens]`, which are equal for text.
    """
    return positions.ndim in (2, 3) and bool(((positions == expected_positions) | ~token_mask).all())
