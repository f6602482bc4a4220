"""Small configs of every family that fused layers and drafttree-native know."""

from collections.abc import Callable
from typing import Any

from transformers import (
    Gemma4TextConfig,
    GPTNeoXConfig,
    GraniteConfig,
    LlamaConfig,
    Olmo2Config,
    Olmo3Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen3MoeConfig,
    SmolLM3Config,
)

from testing import tiny

EXPERTS: Any = {"num_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 24, "norm_topk_prob": True}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]
LONGROPE = {"rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": 32}
LONGROPE |= {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.0, 2.0, 4.0, 8.0]}
LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "rope_theta": 1e4}
LLAMA3["original_max_position_embeddings"] = 32
GEMMA4: Any = {
    **{**tiny.GROUPED, "num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2},
    **{"head_dim": 8, "global_head_dim": 12, "sliding_window": tiny.WINDOW, "final_logit_softcapping": 3.0},
}
KEYS_AS_VALUES: Any = {"attention_k_eq_v": True, "num_global_key_value_heads": 1}
SHARED_KEYS: Any = {
    **{"num_hidden_layers": 6, "layer_types": ["sliding_attention", "full_attention"] * 3},
    "num_kv_shared_layers": 2,
}
LAYER_INPUTS: Any = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": tiny.VOCAB}
EXPERTS_BESIDE: Any = {"enable_moe_block": True, "num_experts": 8, "top_k_experts": 3, "moe_intermediate_size": 24}
CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    name: tiny.CONFIGS[name] for name in ("gpt_neox", "llama", "qwen2", "qwen3", "mistral")
} | {
    **{name: tiny.CONFIGS[name] for name in ("gemma3", "mistral_sliding")},
    "gemma4": lambda: Gemma4TextConfig(**GEMMA4, hidden_size_per_layer_input=0),
    "gemma4_keys_as_values": lambda: Gemma4TextConfig(**GEMMA4, **KEYS_AS_VALUES, hidden_size_per_layer_input=0),
    "gemma4_shared_keys": lambda: Gemma4TextConfig(
        **{**GEMMA4, **SHARED_KEYS, **LAYER_INPUTS}, use_double_wide_mlp=True
    ),
    "gemma4_experts": lambda: Gemma4TextConfig(**GEMMA4, **EXPERTS_BESIDE, hidden_size_per_layer_input=0),
    "granite": lambda: GraniteConfig(**tiny.GROUPED, **GRANITE),
    "olmo2": lambda: Olmo2Config(**tiny.GROUPED),
    "olmo3": lambda: Olmo3Config(**tiny.GROUPED, sliding_window=tiny.WINDOW, layer_types=MIXED),
    "qwen3_moe": lambda: Qwen3MoeConfig(**tiny.GROUPED, head_dim=12, **EXPERTS, mlp_only_layers=[1]),
    "smollm3": lambda: SmolLM3Config(**tiny.GROUPED, no_rope_layers=[1, 0, 1]),
    "phi3": lambda: Phi3Config(**{**tiny.GROUPED, "pad_token_id": 0}, sliding_window=tiny.WINDOW),
    "phi3_longrope": lambda: Phi3Config(**{**tiny.GROUPED, "pad_token_id": 0}, rope_parameters=LONGROPE),
    "gpt_neox_in_turn": lambda: GPTNeoXConfig(**tiny.SIZES, **IN_TURN),
    "llama_biased": lambda: LlamaConfig(**tiny.GROUPED, attention_bias=True, mlp_bias=True),
    "llama_tied": lambda: LlamaConfig(**tiny.GROUPED, tie_word_embeddings=True),
    "llama3_rope": lambda: LlamaConfig(**tiny.GROUPED, rope_parameters=LLAMA3),
}
IN_TURN: Any = {"use_parallel_residual": False, "rotary_pct": 1.0}
GRANITE: Any = {
    "embedding_multiplier": 3.0,
    "residual_multiplier": 0.4,
    "logits_scaling": 6.0,
    "attention_multiplier": 0.2,
}
