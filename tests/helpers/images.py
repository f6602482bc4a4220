"""Small random models of images and text, for prompts of text alone."""

from collections.abc import Callable

import torch
from transformers import (
    AutoModelForImageTextToText,
    LlavaConfig,
    Mistral3Config,
    PPChart2TableConfig,
    PreTrainedConfig,
    PreTrainedModel,
    Qwen2_5_VLConfig,
    Qwen3VLConfig,
)

from testing import tiny

WIDTHS = {"hidden_size": 16, "intermediate_size": 16}
ENCODER = {**WIDTHS, "num_hidden_layers": 1, "num_attention_heads": 2, "image_size": 8, "patch_size": 4}
QWEN_ENCODER = {**WIDTHS, "depth": 1, "num_heads": 2, "out_hidden_size": 32, "patch_size": 4}
QWEN_TOKENS = {"image_token_id": 90, "video_token_id": 91, "vision_start_token_id": 92, "vision_end_token_id": 93}
ROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [1, 1, 2]}

CONFIGS: dict[str, Callable[[], PreTrainedConfig]] = {
    "mistral3": lambda: Mistral3Config(
        text_config={**tiny.GROUPED, "model_type": "mistral", "sliding_window": None, "head_dim": 8},
        vision_config={**ENCODER, "model_type": "pixtral"},
    ),
    "qwen2_5_vl": lambda: Qwen2_5_VLConfig(
        text_config={**tiny.GROUPED, "rope_parameters": ROPE}, vision_config=QWEN_ENCODER, **QWEN_TOKENS
    ),
    "qwen3_vl": lambda: Qwen3VLConfig(
        text_config={**tiny.GROUPED, "head_dim": 8, "rope_parameters": {**ROPE, "mrope_interleaved": True}},
        vision_config={**QWEN_ENCODER, "num_position_embeddings": 4, "deepstack_visual_indexes": [0]},
        **QWEN_TOKENS,
    ),
    "pp_chart2table": lambda: PPChart2TableConfig(  # attends eagerly to images, whatever the text part does
        text_config={**tiny.GROUPED, "model_type": "qwen2"},
        vision_config={**ENCODER, "output_channels": 8, "mlp_dim": 16, "window_size": 2, "global_attn_indexes": [0]},
    ),
    "llava": lambda: LlavaConfig(
        text_config={**tiny.GROUPED, "model_type": "llama"},
        vision_config={**ENCODER, "model_type": "clip_vision_model"},
    ),
}


@torch.no_grad()
def build(name: str) -> PreTrainedModel:
    """A random model, whose text has no end."""
    module = AutoModelForImageTextToText.from_config(CONFIGS[name](), dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(0)
    for parameter in module.parameters():
        parameter.normal_(float(parameter.mean().round()), 0.2, generator=generator)
    module.generation_config.eos_token_id = None
    return module
