"""Small random models that read images, of the families that people use, and the inputs of a prompt with an image."""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

IMAGE, BEGIN, END, VIDEO = 199, 198, 197, 196
"""Token ids: a placeholder of an image, the marks around it, and a placeholder of a video."""
VOCAB = 200
MROPE = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}
TEXT = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
}
VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "num_channels": 3,
}
QWEN_VISION = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "depth": 3,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "out_hidden_size": 32,
    "temporal_patch_size": 2,
}
QWEN_TOKENS = {"image_token_id": IMAGE, "video_token_id": VIDEO}
QWEN_TOKENS |= {"vision_start_token_id": BEGIN, "vision_end_token_id": END}


class ImageModel(NamedTuple):
    """A model and a prompt.

    Attributes:
        module: the model.
        inputs: what its processor would return for a prompt with an image.
    """

    module: PreTrainedModel
    inputs: dict[str, Tensor]

    def other_image(self) -> dict[str, Tensor]:
        """The inputs of the same prompt with another image."""
        return {name: value + 1.5 if name == "pixel_values" else value for name, value in self.inputs.items()}

    def generate(self, inputs: dict[str, Tensor], tokens: int, **options: Any) -> list[int]:
        """The new tokens of transformers' `generate`."""
        length = inputs["input_ids"].shape[1]
        ended = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None} | options
        return self.module.generate(**inputs, max_new_tokens=tokens, **ended)[0, length:].tolist()


def _prompt(placeholders: int) -> list[int]:
    return [2, 5, 6, BEGIN, *[IMAGE] * placeholders, END, 7, 8, 9]


def _gemma3() -> tuple[Any, int, dict[str, Tensor]]:
    text = TEXT | {
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 8,
    }
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=VISION | {"image_size": 56},
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        boi_token_index=BEGIN,
        eoi_token_index=END,
    )
    return config, 4, {"pixel_values": torch.randn(1, 3, 56, 56)}


def _of_patches(config: Any) -> tuple[Any, int, dict[str, Tensor]]:
    """The inputs of the Qwen and GLM families: patches of an image of 8 by 4 of them."""
    return config, 8, {"pixel_values": torch.randn(32, 3 * 2 * 14 * 14), "image_grid_thw": torch.tensor([[1, 8, 4]])}


def _qwen2_5_vl() -> tuple[Any, int, dict[str, Tensor]]:
    vision = QWEN_VISION | {"window_size": 56, "fullatt_block_indexes": [1]}
    text = TEXT | {"rope_parameters": MROPE}
    return _of_patches(transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **QWEN_TOKENS))


def _qwen3_vl() -> tuple[Any, int, dict[str, Tensor]]:
    vision = QWEN_VISION | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}
    text = TEXT | {"rope_parameters": MROPE}
    return _of_patches(transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **QWEN_TOKENS))


def _glm4v() -> tuple[Any, int, dict[str, Tensor]]:
    text = TEXT | {"rope_parameters": MROPE | {"partial_rotary_factor": 1.0}}
    tokens = {"image_token_id": IMAGE, "image_start_token_id": BEGIN, "image_end_token_id": END}
    tokens |= {"video_token_id": VIDEO, "video_start_token_id": 195, "video_end_token_id": 194}
    vision = QWEN_VISION | {"depth": 2, "image_size": 56}
    return _of_patches(transformers.Glm4vConfig(text_config=text, vision_config=vision, **tokens))


def _llava() -> tuple[Any, int, dict[str, Tensor]]:
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=transformers.CLIPVisionConfig(**VISION),
        image_token_index=IMAGE,
        image_seq_length=4,
        vision_feature_layer=-1,
    )
    return config, 4, {"pixel_values": torch.randn(1, 3, 28, 28)}


def _smolvlm() -> tuple[Any, int, dict[str, Tensor]]:
    config = transformers.SmolVLMConfig(
        text_config=transformers.LlamaConfig(**TEXT), vision_config=VISION, image_token_id=IMAGE, scale_factor=1
    )
    return config, 4, {"pixel_values": torch.randn(1, 1, 3, 28, 28)}


def _mistral3() -> tuple[Any, int, dict[str, Tensor]]:
    config = transformers.Mistral3Config(
        text_config=transformers.MistralConfig(**TEXT, sliding_window=None),
        vision_config=transformers.PixtralVisionConfig(**VISION | {"image_size": 56, "head_dim": 16}),
        image_token_index=IMAGE,
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    return config, 4, {"pixel_values": torch.randn(1, 3, 56, 56), "image_sizes": torch.tensor([[56, 56]])}


def _internvl() -> tuple[Any, int, dict[str, Tensor]]:
    vision = VISION | {"image_size": [28, 28], "patch_size": [14, 14]}
    config = transformers.InternVLConfig(
        text_config=transformers.Qwen2Config(**TEXT),
        vision_config=transformers.InternVLVisionConfig(**vision),
        image_token_id=IMAGE,
        image_seq_length=1,
        downsample_ratio=0.5,
    )
    return config, 1, {"pixel_values": torch.randn(1, 3, 28, 28)}


FAMILIES: dict[str, Callable[[], tuple[Any, int, dict[str, Tensor]]]] = {
    "gemma3": _gemma3,
    "glm4v": _glm4v,
    "internvl": _internvl,
    "llava": _llava,
    "mistral3": _mistral3,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen3_vl": _qwen3_vl,
    "smolvlm": _smolvlm,
}
"""By name, what makes the config of a family, the number of placeholders of an image, and the inputs of one."""


def image_model(family: str) -> ImageModel:
    """A small random model of a family, whose texts are not all one token."""
    torch.manual_seed(0)
    config, placeholders, image_inputs = FAMILIES[family]()
    module = transformers.AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    tokens = torch.tensor([_prompt(placeholders)])
    inputs = {"input_ids": tokens, **image_inputs}
    names = inspect.signature(module.forward).parameters
    for name in ("mm_token_type_ids", "token_type_ids"):
        if name in names:
            inputs[name] = (tokens == IMAGE).long()
    return ImageModel(module, inputs)
