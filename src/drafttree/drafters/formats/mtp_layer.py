"""The decoder layer of an MTP layer, which transformers itself builds and fills: a language model of one layer.

So what is particular about a family, such as its attention or how it stores experts, is left to its own class.
"""

from collections.abc import Collection, Mapping
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor, nn
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, PreTrainedConfig, PreTrainedModel

from drafttree.core.errors import ModelError
from drafttree.drafters.formats.head_checkpoint import listed, misshapen
from drafttree.models import lay_out_for_cpu
from drafttree.models.module.module_backend import own_attention

RENAMED = {"mimo_v2_flash": {"pre_mlp_layernorm.": "post_attention_layernorm."}}
"""What MTP layers of a model type call otherwise than its decoder layers."""
DEEPSEEKS = ("bailing_hybrid", "deepseek_v3", "glm4_moe", "mimo_v2_flash", "nemotron_h")
QWENS = ("exaone_moe", "llama", "mellum", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next")
TRIED = frozenset((*DEEPSEEKS, *QWENS, "ernie4_5_moe", "mimo", "qwen2"))
"""Model types whose MTP layers were compared with transformers' own layers; others are run where they are asked for."""
ATTENTION = {"mimo_v2_flash": "sliding_attention"}
"""The attention of the MTP layers of model types whose config does not tell; others attend to everything."""


def decoder_layer(
    tensors: Mapping[str, Tensor], norm: Tensor, index: int, target: PreTrainedModel
) -> tuple[PreTrainedModel, nn.Module]:
    """A language model of the target's class with one layer, for a vocabulary of one token, and its final norm.

    Args:
        tensors: of the decoder layer, by the names that they have in a list of layers, such as "0.self_attn...";
            families whose layers only attend or only mix experts (Nemotron-H) have several.
        norm: the weight of the norm after it.
        index: number of the MTP layer.
        target: the model it belongs to.

    Raises:
        ModelError: transformers has no such layer, or the tensors do not fit it.
    """
    family = target.config.get_text_config()
    title = f"an MTP layer of {family.model_type}"
    renamed = RENAMED.get(family.model_type, {})
    try:
        config = layer_config(family, tensors.keys(), index)
        config._attn_implementation = own_attention(target)
        mapping: Any = MODEL_FOR_CAUSAL_LM_MAPPING
        make: Any = mapping[type(config)] if type(config) in mapping else type(target)
        with torch.device("meta"):
            layers, last = names_in(make(config))
        state = {layers + _replaced(name, renamed): tensor for name, tensor in tensors.items()} | {last: norm}
        module, found = make.from_pretrained(
            None,
            config=config,
            state_dict=state,
            dtype=target.dtype,
            output_loading_info=True,
            ignore_mismatched_sizes=True,
        )
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ModelError(f"transformers cannot build {title}: {reason}") from error
    borrowed = [module.get_input_embeddings().weight, module.get_output_embeddings().weight]
    given = {name for name, weight in module.named_parameters() if any(weight is each for each in borrowed)}
    missing = {*found["missing_keys"]} - given
    problems = [*listed("missing", missing), *listed("unexpected", found["unexpected_keys"])]
    problems += [flaw for sizes in sorted(found["mismatched_keys"]) for flaw in misshapen(*sizes)]
    if problems:
        told = "; ".join(problems).replace(f"{layers}0.", "")
        raise ModelError(f"the tensors make no {title.partition(' ')[2]}: in MTP layer {index} {told}")
    module = module.to(target.device).eval()
    if target.device.type == "cpu" and target.dtype == torch.float32:
        lay_out_for_cpu(module)
    return module, module.get_submodule(last.rpartition(".")[0])


def layer_config(family: PreTrainedConfig, names: Collection[str], index: int) -> PreTrainedConfig:
    """The config of a language model whose layers have tensors of these names."""
    config: Any = deepcopy(family)
    sparse = any(".experts." in name for name in names)
    blocks = block_types(family)
    attention = [*(getattr(family, "mtp_layer_types", None) or ()), *[None] * (index + 1)][index]
    changes = {
        "num_hidden_layers": len(blocks or [0]),
        "layer_types": blocks or [attention or ATTENTION.get(family.model_type, "full_attention")],
        "mlp_layer_types": ["sparse" if sparse else "dense"],
        "first_k_dense_replace": 0 if sparse else 1,
        "mlp_only_layers": [] if sparse else [0],
        "num_nextn_predict_layers": 0,
        "vocab_size": 1,
        "tie_word_embeddings": False,
        **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id")),
    }
    for name, value in changes.items():
        if getattr(config, name, None) is not None:
            setattr(config, name, value)
    vars(config).pop("quantization_config", None)  # the layer's own tensors are as they were saved
    return config


def block_types(family: PreTrainedConfig) -> list[str] | None:
    """The kinds of the several layers that make one MTP layer (Nemotron-H), None for families where one does."""
    return getattr(family, "mtp_layers_block_type", None)


def names_in(module: PreTrainedModel) -> tuple[str, str]:
    """What a model calls its layers, and the weight of its final norm."""
    decoder: Any = module.get_decoder()
    path = next(name for name, part in module.named_modules() if part is decoder)
    children, count = [*decoder.named_children()], decoder.config.num_hidden_layers
    layers = [name for name, part in children if isinstance(part, nn.ModuleList) and len(part) == count]
    norms = [name for name, part in children if "norm" in name and getattr(part, "weight", None) is not None]
    if not layers or not norms:
        raise LookupError(f"{type(decoder).__name__} has no list of {count} layers with a norm behind it")
    return f"{path}.{layers[0]}.", f"{path}.{norms[-1]}.weight"


def _replaced(name: str, renamed: Mapping[str, str]) -> str:
    for other, own in renamed.items():
        name = name.replace(other, own)
    return name
