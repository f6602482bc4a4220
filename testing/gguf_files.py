"""Writes small models as GGUF files, by the names of the package gguf and the rules of llama.cpp's converter."""

import json
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import gguf
import torch
from torch import Tensor
from transformers import (
    Gemma2Config,
    Gemma3TextConfig,
    GraniteConfig,
    LlamaConfig,
    MistralConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from drafttree.loading import load_tokenizer

SIZES = {
    "vocab_size": 4096,  # of the embedded tokenizer
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 131072,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
YARN = {"factor": 4.0, "original_max_position_embeddings": 32768}
LINEAR = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
}
FACTORS = {"short_factor": [1 + 0.01 * i for i in range(12)], "long_factor": [1 + 0.25 * i for i in range(12)]}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SIZES),
    "llama_tied": lambda: LlamaConfig(
        **{**SIZES, "head_dim": 32},
        tie_word_embeddings=True,
        rope_parameters={"rope_type": "llama3", "rope_theta": 5e5, **LLAMA3},
    ),
    "llama_biases": lambda: LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "mistral": lambda: MistralConfig(**SIZES, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**SIZES, rope_parameters={"rope_type": "yarn", "rope_theta": 1e6, **YARN}),
    "qwen3": lambda: Qwen3Config(**{**SIZES, "head_dim": 32}, tie_word_embeddings=True),
    "qwen3_moe": lambda: Qwen3MoeConfig(
        **SIZES, num_experts=8, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True
    ),
    "gemma2": lambda: Gemma2Config(**SIZES, sliding_window=64, query_pre_attn_scalar=16),
    "gemma3": lambda: Gemma3TextConfig(
        **{**SIZES, "num_hidden_layers": 7}, sliding_window=64, query_pre_attn_scalar=16, rope_parameters=LINEAR
    ),
    "phi3": lambda: Phi3Config(
        **{**SIZES, "hidden_size": 128, "head_dim": 32},
        sliding_window=None,
        original_max_position_embeddings=4096,
        rope_parameters={
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "partial_rotary_factor": 0.75,
            "original_max_position_embeddings": 4096,
            **FACTORS,
        },
    ),
    "smollm3": lambda: SmolLM3Config(**{**SIZES, "num_hidden_layers": 5}),
    "olmo2": lambda: Olmo2Config(**{name: value for name, value in SIZES.items() if name != "head_dim"}),
    "olmo3": lambda: Olmo3Config(
        **{name: value for name, value in SIZES.items() if name != "head_dim"}, sliding_window=64
    ),
    "granite": lambda: GraniteConfig(
        **SIZES,
        attention_multiplier=0.0625,
        embedding_multiplier=12.0,
        residual_multiplier=0.25,
        logits_scaling=8.0,
    ),
}
"""A small model of each family that is read, with what its files must carry: scaling, windows, biases, multipliers."""
ARCHITECTURES = {
    "gemma3_text": "gemma3",
    "mistral": "llama",
    "olmo3": "olmo2",
    "qwen3_moe": "qwen3moe",
}
"""llama.cpp's names where transformers has others."""
INTERLEAVED = {"llama", "smollm3", "granite"}
"""Architectures whose queries and keys llama.cpp turns by pairs of neighbours."""


@torch.no_grad()
def write(
    model: PreTrainedModel,
    path: Path,
    kind: str = "F32",
    tokenizer: Any = None,
    metadata: Mapping[str, Any] | None = None,
    without: Collection[str] = (),
    kinds: Mapping[str, str] | None = None,
    tensors: Mapping[str, Tensor] | None = None,
) -> Path:
    """Write a model.

    Args:
        model: of a family of `CONFIGS`.
        path: where to write.
        kind: of the matrices, as gguf calls it; vectors are "F32".
        tokenizer: what merges bytes; the embedded one where it is None.
        metadata: values besides, or instead.
        without: the tensors to leave out.
        kinds: of matrices that are of another kind.
        tensors: those that are written instead of the model's.
    """
    architecture = ARCHITECTURES.get(model.config.model_type, model.config.model_type)
    values = _model_metadata(model.config, architecture) | _tokenizer_metadata(tokenizer) | dict(metadata or {})
    writer = gguf.GGUFWriter(path, architecture)
    for key, value in values.items():
        if value is not None:
            put(writer, key, value)
    for name, weight in _tensors(model, architecture):
        if name in without:
            continue
        weight = (tensors or {}).get(name, weight)
        own_kind = (kinds or {}).get(name, kind) if weight.ndim > 1 else "F32"
        matrix_kind = gguf.GGMLQuantizationType[own_kind]
        packed = gguf.quants.quantize(weight.float().contiguous().numpy(), matrix_kind)
        writer.add_tensor(name, packed, raw_dtype=matrix_kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def put(writer: Any, key: str, value: Any) -> None:
    """Write a value of metadata by its type."""
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


def _model_metadata(config: Any, architecture: str) -> dict[str, Any]:
    own = {
        "context_length": config.max_position_embeddings,
        "block_count": config.num_hidden_layers,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "vocab_size": config.vocab_size,
        **_rope_metadata(config),
    }
    if hasattr(config, "head_dim") and architecture != "phi3":
        own |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    names = {
        "gemma2": ("attn_logit_softcapping", "final_logit_softcapping"),
        "granite": ("embedding_multiplier", "residual_multiplier", "logits_scaling", "attention_multiplier"),
    }
    keys = {
        "embedding_multiplier": "embedding_scale",
        "residual_multiplier": "residual_scale",
        "logits_scaling": "logit_scale",
        "attention_multiplier": "attention.scale",
    }
    own |= {keys.get(name, name): getattr(config, name) for name in names.get(architecture, ())}
    if config.model_type in {"gemma2", "gemma3_text", "olmo3"}:
        own["attention.sliding_window"] = config.sliding_window
    if config.model_type == "olmo3":
        own["attention.sliding_window_pattern"] = [kind == "sliding_attention" for kind in config.layer_types]
    if config.model_type == "phi3":
        own["attention.sliding_window"] = 0
    if config.model_type == "qwen3_moe":
        own |= {
            "expert_count": config.num_experts,
            "expert_used_count": config.num_experts_per_tok,
            "expert_feed_forward_length": config.moe_intermediate_size,
        }
    return {f"{architecture}.{key}": value for key, value in own.items()}


def _rope_metadata(config: Any) -> dict[str, Any]:
    rope = config.rope_parameters.get("full_attention", config.rope_parameters)
    found: dict[str, Any] = {"rope.freq_base": float(rope["rope_theta"])}
    if config.model_type == "phi3":
        found["rope.dimension_count"] = int(rope["partial_rotary_factor"] * config.head_dim)
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    if rope["rope_type"] in {"linear", "yarn"}:
        found |= {"rope.scaling.type": rope["rope_type"], "rope.scaling.factor": rope["factor"]}
    if rope["rope_type"] == "yarn":
        found["rope.scaling.original_context_length"] = rope["original_max_position_embeddings"]
    return found


def _tokenizer_metadata(tokenizer: Any) -> dict[str, Any]:
    tokenizer = tokenizer or load_tokenizer("embedded")
    merges = json.loads(tokenizer.backend_tokenizer.to_str())["model"]["merges"]
    by_id = {index: token for token, index in tokenizer.get_vocab().items()}
    special = set(tokenizer.all_special_ids)
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": [by_id[index] for index in range(len(by_id))],
        "tokenizer.ggml.token_type": [3 if index in special else 1 for index in range(len(by_id))],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in merges],
        "tokenizer.ggml.eos_token_id": tokenizer.eos_token_id,
        "tokenizer.ggml.bos_token_id": tokenizer.bos_token_id,
        "tokenizer.chat_template": tokenizer.chat_template,
    }


def _tensors(model: PreTrainedModel, architecture: str) -> list[tuple[str, Tensor]]:
    config: Any = model.config
    (number,) = (each for each, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    tensors = _rope_tables(model, config)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        own, part = name.split(".")[-2:]
        if architecture in INTERLEAVED and own in heads:
            weight = weight.unflatten(0, (heads[own], 2, -1)).transpose(1, 2).flatten(0, 2)
        if architecture.startswith("gemma") and own.endswith("norm"):
            weight = weight + 1
        if part == "gate_up_proj":  # of experts
            gate, up = weight.chunk(2, dim=1)
            stem = name.removesuffix("gate_up_proj")
            tensors += [
                (f"{names.get_name(stem + 'gate_proj')}.weight", gate),
                (f"{names.get_name(stem + 'up_proj')}.weight", up),
            ]
        elif part == "down_proj":
            tensors.append((f"{names.get_name(name)}.weight", weight))
        else:
            tensors.append((names.get_name(name, try_suffixes=(".weight", ".bias")), weight))
    return tensors


def _rope_tables(model: PreTrainedModel, config: Any) -> list[tuple[str, Tensor]]:
    rope = config.rope_parameters
    if rope.get("rope_type") == "longrope":
        return [(f"rope_factors_{name}.weight", torch.tensor(rope[f"{name}_factor"])) for name in ("long", "short")]
    if rope.get("rope_type") != "llama3":
        return []
    plain = rope["rope_theta"] ** -(torch.arange(0, config.head_dim, 2).float() / config.head_dim)
    scaled = model.get_decoder().rotary_emb.inv_freq  # transformers' own
    return [("rope_freqs.weight", plain / scaled)]
