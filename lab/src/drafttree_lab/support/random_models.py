"""Small random models of an architecture, whose texts change if a pass leaves anything out."""

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
    """The model types of transformers' causal language models, and variants of some.

    A multimodal type, such as `gemma3`, is left out if its language model has a type of its own.
    """
    types = set(map(attrgetter("model_type"), MODEL_FOR_CAUSAL_LM_MAPPING))
    variants = {name for name in VARIANTS if name.partition("+")[0] in types}
    return sorted(types - language_models().keys() | variants)


@cache
def language_models() -> dict[str, str]:
    """By multimodal type, the type of its language model, if that is another type with a causal language model.

    Assistants are left out, since their configuration holds that of the model they draft for.
    """
    types = {config_class.model_type: _language_type(config_class) for config_class in MODEL_FOR_CAUSAL_LM_MAPPING}
    return {
        name: language_type
        for name, language_type in types.items()
        if not name.endswith("_assistant") and language_type != name and language_type in types
    }


def random_model(name: str, seed: int = 0) -> PreTrainedModel:
    """A small random model of an architecture, in float32 and with default generation settings.

    Raises:
        Exception: transformers cannot make the model; it may raise any kind.
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
    """A model of `POPULAR` with random weights, in float32, and with the EOS tokens of the original."""
    config = POPULAR[name].config
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    randomise(module, seed)
    if config.tie_word_embeddings:
        # embeddings must be smaller than what the layers add, or every text would repeat its last token
        module.get_input_embeddings().weight.data.mul_(TIED_SCALE)
    module.generation_config = GenerationConfig(eos_token_id=config.eos_token_id)
    return module


@torch.no_grad()
def randomise(module: nn.Module, seed: int) -> None:
    """Draw weights with which greedy texts vary.

    Weights that start as ones or zeros (norms, biases, sinks, routing corrections) get noise, so that their omission
    shows. Rows and columns of matrices have mean 0. Otherwise activations with a positive mean make all hidden states
    alike within a few layers, and the text repeats one token.
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
    """Matrices with rows and columns of mean 0; those of a single row or column, such as kernels, stay unchanged."""
    if 1 in matrices.shape[-2:]:
        return matrices
    return matrices - matrices.mean(-1, keepdim=True) - matrices.mean(-2, keepdim=True)


def _language_type(config_class: type[PreTrainedConfig]) -> str:
    """The type of the language model in a default configuration; the class's own type if that cannot be made."""
    with suppress(Exception):
        return text_part(config_class()).model_type
    return config_class.model_type
