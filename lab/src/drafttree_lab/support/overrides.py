"""Settings that small configurations need beyond the rules of `small_configs`, and variants of model types."""

from typing import Any

MIXED = {"num_hidden_layers": 4, "layer_types": ["conv", "full_attention", "conv", "full_attention"]}
MAMBA_HEADS = {"mamba_n_heads": 4, "mamba_d_head": 16}
ROPE = {"rope_type": "default", "rope_theta": 10000.0}
MROPE = ROPE | {"mrope_section": [2, 1, 1]}
LONGROPE = {"rope_type": "longrope", "rope_theta": 10000.0, "short_factor": [1.0] * 4, "long_factor": [2.0] * 4}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = YARN | {"rope_type": "llama3", "low_freq_factor": 1.0, "high_freq_factor": 4.0}
WINDOW = {"sliding_window": 8}
ATTENTIONS = ["sliding_attention", "full_attention"]
MIXED_WINDOW = WINDOW | {"layer_types": ATTENTIONS * 2}
WINDOWED = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2, "layer_types": None}

OVERRIDES: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3], **MAMBA_HEADS},
    "cohere_compass_text": {"rope_parameters": {"full_attention": MROPE}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"ffn_hidden_size": 48, "moe_num_experts": 4, "moe_top_k": 2},
    },
    "deepseek_v2": {"num_experts_per_tok": 2, "first_k_dense_replace": 1},
    "dots1": {"n_routed_experts": 8, "num_experts_per_tok": 2, "n_shared_experts": 1, "first_k_dense_replace": 1},
    "dots3_note_text": {
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 4,
        "swa_q_lora_rank": 16,
        "swa_kv_lora_rank": 16,
        "swa_head_dim": 16,
        "swa_qk_nope_head_dim": 8,
        "swa_v_head_dim": 8,
        "head_dim": 16,
    },
    "ernie4_5_moe": {"moe_layer_end_index": 3},
    "gemma3n_text": {"num_kv_shared_layers": 2},
    "gemma4_text": {"global_head_dim": 16},
    "gemma4_unified_text": {"global_head_dim": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {"layer_types": ["linear_attention", "full_attention"] * 2, **MAMBA_HEADS},
    "hrm_text": {"num_hidden_layers": 1},
    "hunyuan_v1_dense": {"head_dim": 8},
    "hunyuan_v1_moe": {"head_dim": 8},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {**MIXED, "full_attn_idxs": [1, 3], "block_multiple_of": 16},
    "lfm2_moe": {**MIXED, "num_dense_layers": 1},
    "llama4_text": {
        "num_hidden_layers": 4,
        "layer_types": ["chunked_attention", "full_attention"] * 2,
        "no_rope_layers": [1, 0, 1, 0],
        "moe_layers": [1, 2],
        "floor_scale": 16,
    },
    "longcat_flash": {"zero_expert_num": 2},
    "mamba2": {"num_heads": 4, "head_dim": 16},
    "minimax_m3_vl_text": {"layer_types": ["full_attention", "minimax_m3_sparse"] * 2, "index_n_heads": 2},
    "ministral": {"head_dim": 8},
    "ministral3": {"rope_parameters": {**YARN, "llama_4_scaling_beta": 0.5}},
    "nemotron": {"head_dim": 8, "num_key_value_heads": 2},
    "qwen4_exp_text": {
        "indexer_n_heads": 2,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 8,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "reformer": {"axial_pos_shape": (16, 32), "axial_pos_embds_dim": (16, 16), "lsh_num_chunks_before": 1},
    "roc_bert": {"pronunciation_vocab_size": 64, "shape_vocab_size": 64, "pronunciation_embed_dim": 8}
    | {"shape_embed_dim": 8},
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"attention_hidden_size": 64, "attention_head_dim": 16},
}
"""The settings of model types."""

VARIANTS: dict[str, dict[str, Any]] = {
    "cohere_compass_text+window": MIXED_WINDOW | {"rope_parameters": dict.fromkeys(ATTENTIONS, MROPE)},
    "deepseek_v3+no_q_lora": {"q_lora_rank": None},
    "dots1+window": MIXED_WINDOW,
    "falcon+alibi": {"alibi": True},
    "falcon+grouped": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "gemma4_text+moe+shared": {"num_kv_shared_layers": 2, "enable_moe_block": True, "num_experts": 4}
    | {"top_k_experts": 2, "moe_intermediate_size": 16, "attention_k_eq_v": True, "global_head_dim": 16}
    | {"layer_types": ATTENTIONS * 2},
    "gpt2+scaled": {"scale_attn_by_inverse_layer_idx": True},
    "granitemoehybrid+attention": {"layer_types": ["full_attention"] * 4},
    "laguna+window": MIXED_WINDOW | {"num_attention_heads_per_layer": [4, 8, 4, 8]},
    "llama+dynamic": {
        "rope_parameters": {**ROPE, "rope_type": "dynamic", "factor": 2.0},
        "max_position_embeddings": 32,
    },
    "llama+llama3": {"rope_parameters": LLAMA3},
    "llama+yarn": {"rope_parameters": YARN},
    "mellum+window": MIXED_WINDOW,
    "mixtral+window": WINDOW,
    "phi3+longrope": {"rope_parameters": LONGROPE, "original_max_position_embeddings": 32},
    "phi3+window": WINDOW,
    "qwen2+window": WINDOWED,
    "qwen3+window": WINDOWED,
    "smollm3+window": MIXED_WINDOW | {"use_sliding_window": True},
    "starcoder2+window": WINDOW,
    "stablelm+parallel": {"use_parallel_residual": True, "qk_layernorm": True, "use_qkv_bias": True},
}
"""Further published configurations of model types that attend differently."""
