"""Configs of families whose attention differs from Llama's: sinks, bounded scores, several widths, chunks, masks."""

from collections.abc import Mapping
from typing import Any

import transformers
from transformers import PreTrainedConfig

from helpers import tiny

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
    "stablelm": ("StableLmConfig", {**GROUPED, "partial_rotary_factor": 0.5}),
    "gptj": ("GPTJConfig", {**OLD_SIZES, **NO_IDS, "rotary_dim": 4}),
    "codegen": ("CodeGenConfig", {**OLD_SIZES, **NO_IDS, "rotary_dim": 4}),
    "gpt_neox_japanese": ("GPTNeoXJapaneseConfig", SIZES),
    "nemotron": ("NemotronConfig", {**GROUPED, "head_dim": 8}),
    "phi3": ("Phi3Config", {**GROUPED, **NO_IDS, "pad_token_id": 0, "sliding_window": WINDOW}),
}


def known() -> list[str]:
    """The families that the installed transformers has."""
    return [name for name, (kind, _) in FAMILIES.items() if hasattr(transformers, kind)]


def config(name: str) -> PreTrainedConfig:
    """A small config of a family."""
    kind, options = FAMILIES[name]
    return getattr(transformers, kind)(**options)
