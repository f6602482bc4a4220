"""The configs of popular models, as their repositories on the hub publish them, but for depth and widths.

Contexts, vocabularies, numbers and widths of heads, windows, rotary embeddings, experts, tied heads and EOS tokens are
those of the model, since some errors occur only at true sizes. Numbers are from config.json and generation_config.json
of the named repository, as known on 2026-11-29. Those of a GGUF file were read from it; the others have not been
compared with the hub since.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from transformers import CONFIG_MAPPING, PreTrainedConfig


class PopularModel(NamedTuple):
    """The config of a popular model.

    Attributes:
        model_type: type of the model in transformers.
        values: values of the config other than widths and depth.
        layers: number of layers, enough for one of each kind.
        ends: EOS tokens.
        widths: further widths besides hidden and intermediate size.
    """

    model_type: str
    values: dict[str, Any]
    layers: int = 2
    ends: Sequence[int] = ()
    widths: Mapping[str, int] = MappingProxyType({})

    @property
    def config(self) -> PreTrainedConfig:
        """The config with few layers and small widths."""
        count = self.values["num_attention_heads"]
        hidden_size = (
            -(-HIDDEN // count) * count
        )  # some families need a multiple of the heads, whatever the width of a head
        sizes = {"hidden_size": hidden_size, "intermediate_size": INNER, "num_hidden_layers": self.layers}
        tokens = {"bos_token_id": None, "pad_token_id": None, "eos_token_id": [*self.ends] or None}
        return CONFIG_MAPPING[self.model_type](**{**sizes, **tokens, **self.widths, **self.values})


HIDDEN, INNER = 64, 96
"""Minimum hidden size, and intermediate size."""
FEW = {"moe_intermediate_size": 32}


def heads(count: int, of_keys: int, width: int) -> dict[str, int]:
    """Config values for the numbers of query and key heads, and their width."""
    return {"num_attention_heads": count, "num_key_value_heads": of_keys, "head_dim": width}


def rope(base: float, **parameters: Any) -> dict[str, Any]:
    """Config values for a rotary embedding."""
    return {"rope_parameters": {"rope_type": "default", "rope_theta": base, **parameters}}


def llama3(factor: float) -> dict[str, Any]:
    """Config values for the rotary embedding of Llama 3.1 and later."""
    bounds = {"low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 8192}
    return rope(5e5, rope_type="llama3", factor=factor, **bounds)


def every(period: int, usual_type: str, other_type: str, layers: int) -> list[str]:
    """A list of layer types in which every `period`-th layer is of the other type."""
    return [other_type if (layer + 1) % period == 0 else usual_type for layer in range(layers)]


LLAMA: dict[str, Any] = {"vocab_size": 128_256, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5}
LLAMA_ENDS = (128_001, 128_008, 128_009)
QWEN: dict[str, Any] = {"vocab_size": 151_936, "rms_norm_eps": 1e-6}
QWEN_ENDS = (151_645, 151_643)
QWEN3_MOE = {**FEW, "num_experts": 128, "num_experts_per_tok": 8, "norm_topk_prob": True}
MISTRAL: dict[str, Any] = {"vocab_size": 131_072, "rms_norm_eps": 1e-5}
GEMMA3 = {
    "rope_parameters": {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
    },
    "layer_types": every(6, "sliding_attention", "full_attention", 6),
    "query_pre_attn_scalar": 256,
    "tie_word_embeddings": True,
}
GEMMA3_LINEAR = {
    **GEMMA3["rope_parameters"],
    "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
}
GEMMA4 = {
    "vocab_size": 262_144,
    "layer_types": every(6, "sliding_attention", "full_attention", 6),
    "final_logit_softcapping": 30.0,
    "tie_word_embeddings": True,
}
GRANITE4 = {
    **{"vocab_size": 100_352, "max_position_embeddings": 131_072, "rms_norm_eps": 1e-5, "tie_word_embeddings": True},
    **{"embedding_multiplier": 12, "residual_multiplier": 0.22, "logits_scaling": 10},
}
YARN_OLMO3 = {
    **{"rope_type": "yarn", "factor": 8.0, "original_max_position_embeddings": 8192},
    **{"attention_factor": 1.2079441541679836, "beta_fast": 32.0, "beta_slow": 1.0},
}
YARN_GPT_OSS = {
    **{"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096},
    **{"beta_fast": 32.0, "beta_slow": 1.0, "truncate": False},
}
LONGROPE_PHI4 = {
    **{"rope_type": "longrope", "original_max_position_embeddings": 4096, "partial_rotary_factor": 0.75},
    **{"short_factor": [1.0] * 48, "long_factor": [1.0 + 0.4 * pair for pair in range(48)]},
}
"""The long factors are made up; those of Phi-4-mini rise from 1 to about 47."""

POPULAR: dict[str, PopularModel] = {
    "meta-llama/Llama-3.1-8B-Instruct": PopularModel(
        "llama", {**LLAMA, **heads(32, 8, 128), **llama3(8.0)}, ends=LLAMA_ENDS
    ),
    "meta-llama/Llama-3.2-1B-Instruct": PopularModel(
        "llama", {**LLAMA, **heads(32, 8, 64), **llama3(32.0), "tie_word_embeddings": True}, ends=LLAMA_ENDS
    ),
    "meta-llama/Llama-3.2-3B-Instruct": PopularModel(
        "llama", {**LLAMA, **heads(24, 8, 128), **llama3(32.0), "tie_word_embeddings": True}, ends=LLAMA_ENDS
    ),
    "meta-llama/Llama-3.3-70B-Instruct": PopularModel(
        "llama", {**LLAMA, **heads(64, 8, 128), **llama3(8.0)}, ends=LLAMA_ENDS
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B": PopularModel(
        "qwen2",
        {**QWEN, **heads(12, 2, 128), **rope(1e4), "max_position_embeddings": 131_072},
        ends=(151_643,),
    ),
    "deepseek-ai/DeepSeek-R1-Distill-Llama-8B": PopularModel(
        "llama", {**LLAMA, **heads(32, 8, 128), **llama3(8.0)}, ends=(128_001,)
    ),
    "Qwen/Qwen2.5-0.5B-Instruct": PopularModel(
        "qwen2",
        {**QWEN, **heads(14, 2, 64), **rope(1e6), "max_position_embeddings": 32_768, "tie_word_embeddings": True}
        | {"use_sliding_window": False, "sliding_window": 32_768, "max_window_layers": 21},
        ends=QWEN_ENDS,
    ),
    "Qwen/Qwen2.5-7B-Instruct": PopularModel(
        "qwen2",
        {**QWEN, **heads(28, 4, 128), **rope(1e6), "vocab_size": 152_064, "max_position_embeddings": 32_768}
        | {"use_sliding_window": False, "sliding_window": 131_072, "max_window_layers": 28},
        ends=QWEN_ENDS,
    ),
    "Qwen/Qwen3-0.6B": PopularModel(
        "qwen3",
        {**QWEN, **heads(16, 8, 128), **rope(1e6), "max_position_embeddings": 40_960, "tie_word_embeddings": True},
        ends=QWEN_ENDS,
    ),
    "Qwen/Qwen3-4B-Instruct-2507": PopularModel(
        "qwen3",
        {**QWEN, **heads(32, 8, 128), **rope(5e6), "max_position_embeddings": 262_144, "tie_word_embeddings": True},
        ends=QWEN_ENDS,
    ),
    "Qwen/Qwen3-30B-A3B-Instruct-2507": PopularModel(
        "qwen3_moe",
        {**QWEN, **QWEN3_MOE, **heads(32, 4, 128), **rope(1e7), "max_position_embeddings": 262_144},
        ends=QWEN_ENDS,
    ),
    "google/gemma-3-270m-it": PopularModel(
        "gemma3_text",
        {**GEMMA3, **heads(4, 1, 256), "vocab_size": 262_144, "max_position_embeddings": 32_768, "sliding_window": 512},
        6,
        ends=(1, 106),
    ),
    "google/gemma-3-1b-it": PopularModel(
        "gemma3_text",
        {**GEMMA3, **heads(4, 1, 256), "vocab_size": 262_144, "max_position_embeddings": 32_768, "sliding_window": 512},
        6,
        ends=(1, 106),
    ),
    "google/gemma-3-4b-it": PopularModel(
        "gemma3_text",
        {**GEMMA3, **heads(8, 4, 256), "vocab_size": 262_208, "max_position_embeddings": 131_072}
        | {"sliding_window": 1024, "rope_parameters": GEMMA3_LINEAR},
        6,
        ends=(1, 106),
    ),
    "google/gemma-4-E2B-it": PopularModel(
        "gemma4_text",
        {**GEMMA4, **heads(8, 1, 256), "max_position_embeddings": 131_072, "sliding_window": 512}
        | {"global_head_dim": 512, "num_kv_shared_layers": 4, "use_double_wide_mlp": True}
        | {
            "vocab_size_per_layer_input": 262_144,
            "layer_types": every(3, "sliding_attention", "full_attention", 6) * 2,
        },
        12,
        ends=(1, 106),
        widths={"hidden_size_per_layer_input": 8},
    ),
    "google/gemma-4-26B-A4B-it": PopularModel(
        "gemma4_text",
        {**GEMMA4, **FEW, **heads(16, 8, 256), "max_position_embeddings": 262_144, "sliding_window": 1024}
        | {"global_head_dim": 512, "num_global_key_value_heads": 2, "attention_k_eq_v": True}
        | {"enable_moe_block": True, "num_experts": 128, "top_k_experts": 8},
        6,
        ends=(1, 106),
        widths={"hidden_size_per_layer_input": 0},
    ),
    "google/gemma-4-31B-it": PopularModel(
        "gemma4_text",
        {**GEMMA4, **heads(32, 16, 256), "max_position_embeddings": 262_144, "sliding_window": 1024}
        | {"global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": True},
        6,
        ends=(1, 106),
        widths={"hidden_size_per_layer_input": 0},
    ),
    "mistralai/Mistral-7B-Instruct-v0.1": PopularModel(
        "mistral",
        {**MISTRAL, **heads(32, 8, 128), **rope(1e4), "vocab_size": 32_000}
        | {"max_position_embeddings": 32_768, "sliding_window": 4096},
        ends=(2,),
    ),
    "mistralai/Mistral-Small-24B-Instruct-2501": PopularModel(
        "mistral",
        {**MISTRAL, **heads(32, 8, 128), **rope(1e8), "max_position_embeddings": 32_768, "sliding_window": None},
        ends=(2,),
    ),
    "mistralai/Ministral-8B-Instruct-2410": PopularModel(
        "mistral",
        {**MISTRAL, **heads(32, 8, 128), **rope(1e8), "max_position_embeddings": 32_768, "sliding_window": 32_768},
        ends=(2,),
    ),
    "mistralai/Ministral-3-8B-Instruct-2512": PopularModel(
        "ministral3", {**MISTRAL, **heads(32, 8, 128), "max_position_embeddings": 262_144}, ends=(2,)
    ),
    "microsoft/phi-4": PopularModel(
        "phi3",
        {**heads(40, 10, 128), **rope(250_000.0), "vocab_size": 100_352, "max_position_embeddings": 16_384}
        | {"original_max_position_embeddings": 16_384, "sliding_window": None, "rms_norm_eps": 1e-5},
        ends=(100_265, 100_257),
    ),
    "microsoft/Phi-4-mini-instruct": PopularModel(
        "phi3",
        {**rope(1e4, **LONGROPE_PHI4), "vocab_size": 200_064, "max_position_embeddings": 131_072}
        | {
            "num_attention_heads": 3,
            "num_key_value_heads": 1,
        }  # of 24 and 8, which make up the hidden size
        | {"original_max_position_embeddings": 4096, "sliding_window": 262_144, "tie_word_embeddings": True},
        ends=(200_020, 199_999),
        widths={"hidden_size": 384},
    ),
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": PopularModel(
        "llama",
        {**heads(32, 32, 64), **rope(130_000.0), "vocab_size": 49_152, "max_position_embeddings": 8192}
        | {"tie_word_embeddings": True, "rms_norm_eps": 1e-5},
        ends=(2,),
    ),
    "HuggingFaceTB/SmolLM3-3B": PopularModel(
        "smollm3",
        {**heads(16, 4, 128), **rope(5e6), "vocab_size": 128_256, "max_position_embeddings": 65_536}
        | {"tie_word_embeddings": True, "no_rope_layers": [1, 1, 1, 0]},
        4,
        ends=(128_012,),
    ),
    "allenai/OLMo-2-0425-1B-Instruct": PopularModel(
        "olmo2",
        {**heads(16, 16, 128), **rope(5e5), "vocab_size": 100_352, "max_position_embeddings": 4096},
        ends=(100_257,),
    ),
    "allenai/Olmo-3-7B-Instruct": PopularModel(
        "olmo3",
        {**heads(32, 32, 128), **rope(5e5, **YARN_OLMO3), "vocab_size": 100_278, "max_position_embeddings": 65_536}
        | {"sliding_window": 4096, "layer_types": every(4, "sliding_attention", "full_attention", 4)},
        4,
        ends=(100_265, 100_257),
    ),
    "ibm-granite/granite-4.0-micro": PopularModel(
        "granitemoehybrid",
        {**GRANITE4, **heads(40, 8, 64), **rope(1e7), "position_embedding_type": "rope", "num_local_experts": 0}
        | {"attention_multiplier": 0.015625, "layer_types": ["attention"] * 2},
        ends=(100_257,),
        widths={"shared_intermediate_size": INNER, "mamba_n_heads": 4},
    ),
    "ibm-granite/granite-4.0-h-tiny": PopularModel(
        "granitemoehybrid",
        {**GRANITE4, **heads(12, 4, 128), "position_embedding_type": "nope", "attention_multiplier": 0.0078125}
        | {"num_local_experts": 64, "num_experts_per_tok": 6, "layer_types": ["mamba", "attention"]}
        | {"mamba_n_heads": 4, "mamba_d_head": 36, "mamba_d_state": 128, "mamba_n_groups": 1},
        ends=(100_257,),
        widths={"shared_intermediate_size": INNER},
    ),
    "zai-org/GLM-4.5-Air": PopularModel(
        "glm4_moe",
        {**FEW, **heads(96, 8, 128), **rope(1e6, partial_rotary_factor=0.5), "vocab_size": 151_552}
        | {"max_position_embeddings": 131_072, "attention_bias": True, "n_routed_experts": 128, "num_mtp_layers": 0},
        ends=(151_329, 151_336, 151_338),
    ),
    "openai/gpt-oss-20b": PopularModel(
        "gpt_oss",
        {**heads(64, 8, 64), **rope(150_000.0, **YARN_GPT_OSS), "vocab_size": 201_088}
        | {"max_position_embeddings": 131_072, "sliding_window": 128, "num_local_experts": 32}
        | {"num_experts_per_tok": 4, "layer_types": ["sliding_attention", "full_attention"]},
        ends=(200_002, 199_999, 200_012),
    ),
}
"""The models by repository."""
