"""Small configurations of every causal architecture that transformers knows.

A configuration is shrunk by the names of its attributes. Lists with an entry per layer are cut to a few layers, in
order, which include every kind of layer.
"""

import dataclasses
import re
from collections.abc import Sequence
from itertools import chain, zip_longest
from operator import attrgetter
from typing import Any

from transformers import CONFIG_MAPPING, PreTrainedConfig

from drafttree_lab.support.overrides import OVERRIDES, VARIANTS

VOCAB = 128
LAYERS = 4

SIZES: dict[str, int] = {
    r"(\w+_)?vocab_size(_per_layer_input)?|\w+_group_vocab": VOCAB,
    r"\w+_token_id": VOCAB - 1,
    r"max_(target_|source_)?positions|max_position_embeddings|n_positions|n_ctx|max_seq_len|model_max_length": 512,
    r"(attention_)?(sliding_)?window(_size)?|sliding_window_size|keep_window_size|local_attention(_window_len)?": 8,
    r"attention_chunk_size|(local|lsh)_attn_chunk_length": 8,
    r"hidden_size|d_model|n_embd|(emb|embedding|word_embed_proj)_(dim|size)|lru_width": 32,
    r"(input|output)_embedding_size|(attention|router)_hidden_size": 32,
    r"(\w+_)?intermediate_size(_mlp)?|(\w+_)?ffn_(dim|hidden_size)|n_inner|dff|dim_ff|d_inner|feed_forward_size": 48,
    r"num_key_value_heads|num_kv_heads|num_query_groups|swa_num_key_value_heads": 2,
    r"(\w+_)?(attention_heads|n_heads|num_heads|mamba_heads|index_n_heads)|n_heads?|linear_num_\w+heads": 4,
    r"mamba_head_?dim|mamba_d_head": 16,
    r"mamba_d_ssm": 64,
    r"qk_head_dim": 16,
    r"(\w+_)?head_dim|attention_head_size|kv_channels|d_head|dim_head": 8,
    r"((n_routed|num|num_local|moe_num)_)?experts": 8,
    r"num_experts_per_tok(en)?|moe_topk|moe_k|top_k_experts|n_group|num_expert_group|n_groups": 2,
    r"topk_group|first_k_dense_replace|num_dense_layers": 1,
    r"(\w+_)?lora_rank|laurel_rank|gated_norm_rank|hc_lowrank|hidden_size_per_layer_input|d_rel": 16,
    r"mamba_d_state|ssm_state_size|state_size|mamba_dt_rank|time_step_rank": 8,
    r"rotary_dim": 4,
    r"(\w+_)?channels?": 16,
    r"index_topk": 8,
    r"index_block_size": 4,
    r"index_topk_blocks": 2,
}
"""Upper bounds of attributes, by a pattern of their name; the first pattern that matches counts."""

SETTINGS = {"is_decoder": True, "tie_word_embeddings": False}
"""Encoders are run as decoders. A head that shares its weights with the embedding makes random texts repeat tokens."""

LAYER_COUNTS = re.compile(r"(num_|n_)?(hidden_|encoder_|decoder_)?layers?|num_blocks")


def small_config(name: str) -> PreTrainedConfig:
    """A small configuration of an architecture, for several models that of the language model.

    Args:
        name: one of `architectures`.

    Raises:
        Exception: transformers rejects the shrunk values; it may raise any kind.
    """
    model_type = name.partition("+")[0]
    default = text_part(CONFIG_MAPPING[model_type]())
    return _small(default, OVERRIDES.get(model_type, {}) | VARIANTS.get(name, {}))


def _small(default: PreTrainedConfig, overrides: dict[str, Any]) -> PreTrainedConfig:
    """A default configuration with shrunk values; overrides come last."""
    fields = _fields(default)
    values: dict[str, Any] = {}
    for name, value in fields.items():
        values[name] = _shrink(name, value)
    values |= _few_layers(default)
    if "kv_lora_rank" in fields:
        values["num_key_value_heads"] = values["num_attention_heads"]
    for name, value in SETTINGS.items():
        if name in fields:
            values[name] = value
    changed_values = {name: value for name, value in values.items() if value != fields[name]}
    return type(default)(**changed_values | overrides)


def text_part(config: PreTrainedConfig) -> PreTrainedConfig:
    """The configuration of the language model within a configuration of several models, or the configuration itself."""
    return getattr(config, "text_config", None) or getattr(config, "decoder", None) or config


def _fields(config: PreTrainedConfig) -> dict[str, Any]:
    """The values that a configuration's constructor takes, without those that all configurations share."""
    common_names = set(map(attrgetter("name"), dataclasses.fields(PreTrainedConfig)))
    stored_values = vars(config)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        stored_name = config.attribute_map.get(field.name, field.name)
        if field.init and field.name not in common_names and stored_name in stored_values:
            values[field.name] = stored_values[stored_name]
    return values


def _shrink(name: str, value: Any) -> Any:
    """A value of a configuration, shrunk by the name of its attribute; lists and nested configurations too."""
    if isinstance(value, PreTrainedConfig):
        return _small(value, {})
    if isinstance(value, list):
        return [_shrink(name, element) for element in value]
    if isinstance(value, bool) or not isinstance(value, int):
        return value
    for pattern, size in SIZES.items():
        if re.fullmatch(pattern, name):
            return min(value, size)
    return value


def _few_layers(config: PreTrainedConfig) -> dict[str, Any]:
    """Layer counts and lists with an entry per layer, cut down to a few layers of every kind."""
    fields = _fields(config)
    counts = {name: value for name, value in fields.items() if LAYER_COUNTS.fullmatch(name) and value}
    lists = {
        name: value
        for name, value in fields.items()
        if isinstance(value, list | tuple) and len(value) > 1 and len(value) in counts.values()
    }
    layer_kinds = [*zip(*lists.values(), strict=False)] or [()] * max(counts.values(), default=LAYERS)
    layers = _choose_layers(layer_kinds)
    for name, value in lists.items():
        lists[name] = [_shrink(name, value[layer]) for layer in layers]
    return dict.fromkeys(counts, len(layers)) | lists


def _choose_layers(layer_kinds: Sequence[tuple]) -> list[int]:
    """Indices of the layers to keep: one of every kind, then a second of each, and so on, up to `LAYERS`."""
    layers_by_kind: dict[str, list[int]] = {}
    for layer, layer_kind in enumerate(layer_kinds):
        layers_by_kind.setdefault(repr(layer_kind), []).append(layer)
    turns = zip_longest(*layers_by_kind.values())
    order = [layer for layer in chain.from_iterable(turns) if layer is not None]
    return sorted(order[: max(LAYERS, len(layers_by_kind))])
