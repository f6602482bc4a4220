"""Small random models of an architecture whose texts show what a pass leaves out."""

from contextlib import suppress
from copy import deepcopy
from functools import cache
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    AutoModelForCausalLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)

from drafttree_lab.support.overrides import VARIANTS
from drafttree_lab.support.popular_configs import POPULAR
from drafttree_lab.support.small_configs import small_config, text_part

MAX_PARAMETERS = 20_000_000
MATRIX_STD = 0.5
NOISE_STD = 0.2
TIED_SCALE = 0.02


@cache
def architectures() -> list[str]:
    """The model types that transformers has a causal language model for, and variants of some.

    A type of several models, such as `gemma3`, is left out where its language model has a type of its own.
    """
    types = set(map(attrgetter("model_type"), MODEL_FOR_CAUSAL_LM_MAPPING))
    variants = {name for name in VARIANTS if name.partition("+")[0] in types}
    return sorted(types - language_models().keys() | variants)


@cache
def language_models() -> dict[str, str]:
    """The type of the language model by that of the whole, where both have a model.

    Assistants are left out: their configuration holds that of the model they draft for.
    """
    types = {config_class.model_type: _language_type(config_class) for config_class in MODEL_FOR_CAUSAL_LM_MAPPING}
    return {
        name: language_type
        for name, language_type in types.items()
        if not name.endswith("_assistant") and language_type != name and language_type in types
    }


def random_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A small random model of an architecture, in float32 and without generation settings of its own.

    Raises:
        Exception: of any kind, from transformers, where it cannot be made.
    """
    config = small_config(name)
    model_class: Any = MODEL_FOR_CAUSAL_LM_MAPPING[CONFIG_MAPPING[name.partition("+")[0]]]
    with torch.device("meta"):
        size = sum(weight.numel() for weight in model_class(deepcopy(config)).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{size:,} parameters are left of its configuration")
    module = model_class(config).eval()
    randomise(module, seed)
    module.generation_config = GenerationConfig()
    return module


def popular_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A model of `POPULAR` with random weights, in float32, which ends its texts as the model does."""
    config = POPULAR[name].config
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    randomise(module, seed)
    if config.tie_word_embeddings:
        # smaller than what the layers add, or the likeliest token would be the last one again
        module.get_input_embeddings().weight.data.mul_(TIED_SCALE)
    module.generation_config = GenerationConfig(eos_token_id=config.eos_token_id)
    return module


@torch.no_grad()
def randomise(module: nn.Module, seed: int) -> None:
    """Draw weights with which greedy texts vary.

    What begins as ones or zeros (norms, biases, sinks, routing corrections) gets noise, so that leaving it out shows.
    Rows and columns of matrices have mean 0: without that, activations above 0 on average make all hidden states alike
    within a few layers, and the text one repeated token.
    """
    generator = torch.Generator().manual_seed(seed)
    tensors = {id(tensor): tensor for tensor in module.state_dict(keep_vars=True).values()}
    for tensor in filter(torch.is_floating_point, tensors.values()):
        noise = torch.randn(tensor.shape, generator=generator)
        if tensor.ndim < 2:
            tensor.add_(noise, alpha=NOISE_STD)
        else:
            tensor.copy_(_centred(noise) * MATRIX_STD)


def _centred(matrices: Tensor) -> Tensor:
    """Matrices with rows and columns of mean 0; those of a single row or column, such as kernels, as they are."""
    if 1 in matrices.shape[-2:]:
        return matrices
    return matrices - matrices.mean(-1, keepdim=True) - matrices.mean(-2, keepdim=True)


def _language_type(kind: type[PreTrainedConfig]) -> str:
    """The type of the language model in a configuration; its own if transformers cannot make a default one."""
    with suppress(Exception):
        return text_part(kind()).model_type
    return kind.model_type
