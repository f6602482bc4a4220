"""Configs of families unlike Llama: sinks, bounded scores, several widths, chunks, masks, recurrent layers."""

from collections.abc import Mapping
from typing import Any

import transformers
from transformers import Cache, PreTrainedConfig

from testing import tiny

SIZES, GROUPED, WINDOW = tiny.SIZES, tiny.GROUPED, tiny.WINDOW
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 4, "v_head_dim": 6}
EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
OLD_SIZES = {"vocab_size": tiny.VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
NO_IDS = {"bos_token_id": None, "eos_token_id": None, "pad_token_id": None}
GEMMA4_LAYERS = ["sliding_attention", "full_attention"] * 2
GEMMA4 = {
    "hidden_size_per_layer_input": 4,
    "vocab_size_per_layer_input": tiny.VOCAB,
    "head_dim": 8,
    "global_head_dim": 12,
    "layer_types": GEMMA4_LAYERS,
    "sliding_window": WINDOW,
}

FAMILIES: dict[str, tuple[str, Mapping[str, Any]]] = {
    "gpt_oss": (
        "GptOssConfig",
        {**GROUPED, "head_dim": 8, "num_local_experts": 4, "layer_types": MIXED, "sliding_window": WINDOW},
    ),
    "mimo_v2_flash": (
        "MiMoV2FlashConfig",
        {**GROUPED, **EXPERTS, "head_dim": 8, "v_head_dim": 6, "layer_types": MIXED, "sliding_window": WINDOW},
    ),
    "granite_swa": ("GraniteSWAConfig", {**GROUPED, "layer_types": MIXED, "sliding_window": WINDOW}),
    "gemma2": (
        "Gemma2Config",
        {
            **GROUPED,
            "head_dim": 8,
            "query_pre_attn_scalar": 8,
            "attn_logit_softcapping": 0.5,
            "layer_types": MIXED,
            "sliding_window": WINDOW,
        },
    ),
    "gemma4": ("Gemma4TextConfig", {**GROUPED, **GEMMA4, "num_hidden_layers": 4}),
    "gemma4 sharing keys": (
        "Gemma4TextConfig",
        {
            **GROUPED,
            **GEMMA4,
            "layer_types": GEMMA4["layer_types"] * 2,
            "num_hidden_layers": 8,
            "num_kv_shared_layers": 4,
        },
    ),
    "deepseek_v2": (
        "DeepseekV2Config",
        {**SIZES, **LATENT, **EXPERTS, "first_k_dense_replace": 1, "n_shared_experts": 1, "topk_method": "greedy"},
    ),
    "deepseek_v3": (
        "DeepseekV3Config",
        {**SIZES, **LATENT, **EXPERTS, "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1},
    ),
    "glm4_moe_lite": (
        "Glm4MoeLiteConfig",
        {**SIZES, **LATENT, **EXPERTS, "first_k_dense_replace": 1, "n_group": 1, "topk_group": 1},
    ),
    "minicpm3": ("MiniCPM3Config", {**SIZES, **LATENT}),
    "llama4": (
        "Llama4TextConfig",
        {
            **GROUPED,
            "head_dim": 8,
            "intermediate_size_mlp": 48,
            "num_local_experts": 2,
            "num_hidden_layers": 4,
            "attention_chunk_size": WINDOW,
            "floor_scale": 4,
            "no_rope_layers": [1, 1, 0, 1],
        },
    ),
    "falcon": (
        "FalconConfig",
        {"vocab_size": tiny.VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": False},
    ),
    "bloom": ("BloomConfig", {"vocab_size": tiny.VOCAB, "hidden_size": 32, "n_layer": 2, "n_head": 4, **NO_IDS}),
    "mpt": ("MptConfig", {"vocab_size": tiny.VOCAB, "d_model": 32, "n_layers": 2, "n_heads": 4, **NO_IDS}),
    "stablelm": ("StableLmConfig", {**GROUPED, "partial_rotary_factor": 0.5}),
    "gptj": ("GPTJConfig", {**OLD_SIZES, **NO_IDS, "rotary_dim": 4}),
    "codegen": ("CodeGenConfig", {**OLD_SIZES, **NO_IDS, "rotary_dim": 4}),
    "gpt_neox_japanese": ("GPTNeoXJapaneseConfig", SIZES),
    "nemotron": ("NemotronConfig", {**GROUPED, "head_dim": 8}),
    "phi3": ("Phi3Config", {**GROUPED, **NO_IDS, "pad_token_id": 0, "sliding_window": WINDOW}),
}
DELTA = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8, "linear_value_head_dim": 8}
MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 16, "mamba_d_state": 8, "mamba_chunk_size": 8}
STATES = {name: SIZES[name] for name in ("vocab_size", "hidden_size", "num_hidden_layers")} | NO_IDS | {"state_size": 8}
INNER = {"mamba_d_state": 8, "mamba_dt_rank": 4, "pad_token_id": None}
DELTA_LAYERS = ["linear_attention", "full_attention", "linear_attention"]
HYBRIDS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "lfm2": ("Lfm2Config", {**GROUPED, "layer_types": ["conv", "full_attention", "conv"]}),
    "qwen3_5": ("Qwen3_5TextConfig", {**GROUPED, **DELTA, "head_dim": 8, "layer_types": DELTA_LAYERS}),
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            **{**GROUPED, **DELTA, "head_dim": 8, "layer_types": DELTA_LAYERS, "shared_expert_intermediate_size": 16},
            **{"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16},
        },
    ),
    "olmo_hybrid": ("OlmoHybridConfig", {**GROUPED, **DELTA, "layer_types": DELTA_LAYERS}),
    "falcon_h1": ("FalconH1Config", {**GROUPED, **MAMBA, "head_dim": 8, "mamba_d_ssm": 64}),
    "bamba": ("BambaConfig", {**GROUPED, **MAMBA, "attn_layer_indices": [1]}),
    "granitemoehybrid": (
        "GraniteMoeHybridConfig",
        {
            **{**GROUPED, **MAMBA, "layer_types": ["mamba", "attention", "mamba"], "shared_intermediate_size": 16},
            **{"num_local_experts": 2, "num_experts_per_tok": 1},
        },
    ),
    "nemotron_h": (
        "NemotronHConfig",
        {
            **{**GROUPED, "num_hidden_layers": 4, "layers_block_type": ["mamba", "attention", "mlp", "mamba"]},
            **{"mamba_num_heads": 4, "mamba_head_dim": 8, "ssm_state_size": 8, "chunk_size": 8, "n_groups": 2},
            "head_dim": 8,
        },
    ),
    "mamba": ("MambaConfig", STATES),
    "mamba2": ("Mamba2Config", {**STATES, "num_heads": 4, "head_dim": 16, "n_groups": 2, "chunk_size": 8}),
    "falcon_mamba": ("FalconMambaConfig", STATES),
    "jamba": (
        "JambaConfig",
        {**GROUPED, **INNER, "attn_layer_period": 2, "attn_layer_offset": 1, "num_experts": 4},
    ),
    "zamba": (
        "ZambaConfig",
        {
            **{**GROUPED, **INNER, "attention_hidden_size": 64, "attention_head_dim": 16},
            "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
        },
    ),
}
"""Families with recurrent layers. They need a transformers whose recurrent layers share one cache."""


def hybrids() -> list[str]:
    """The families with recurrent layers that the installed transformers has."""
    return [name for name, (kind, _) in HYBRIDS.items() if hasattr(transformers, kind)]


def known() -> list[str]:
    """The families that the installed transformers has and drafttree runs with it."""
    found = [name for name, (kind, _) in FAMILIES.items() if hasattr(transformers, kind)]
    return [*found, *hybrids()] if hasattr(Cache, "get_conv_state") else found


def config(name: str) -> PreTrainedConfig:
    """A small config of a family."""
    kind, options = (FAMILIES | HYBRIDS)[name]
    made = getattr(transformers, kind)(**options)
    if "attn_logit_softcapping" in options:
        made._attn_implementation = "eager"
    return made
