"""Small configurations of model families that read images, and what their processors would make of an image."""

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers
from torch import Tensor

IMAGE, BEGIN, END, VIDEO = 199, 198, 197, 196
"""Token ids: a placeholder of an image, the marks around it, and a placeholder of a video."""
FIRST_MARK = 194
"""The first of the token ids that are not text."""
VOCAB = 200
MROPE: dict[str, Any] = {"rope_type": "default", "mrope_section": [2, 1, 1], "rope_theta": 1e4}
TEXT: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "vocab_size": VOCAB,
    "max_position_embeddings": 512,
}
VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "num_channels": 3,
}
PIXTRAL: dict[str, Any] = VISION | {"image_size": 56, "head_dim": 16}
SIGLIP: dict[str, Any] = VISION | {"vision_use_head": False}
MIXED_ATTENTION: dict[str, Any] = {
    "sliding_window": 8,
    "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
}
QWEN_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "depth": 3,
    "num_heads": 2,
    "patch_size": 14,
    "spatial_merge_size": 2,
    "out_hidden_size": 32,
    "temporal_patch_size": 2,
}
QWEN_TOKENS: dict[str, Any] = {"image_token_id": IMAGE, "video_token_id": VIDEO}
QWEN_TOKENS |= {"vision_start_token_id": BEGIN, "vision_end_token_id": END}
GLM_TOKENS: dict[str, Any] = {
    "image_token_id": IMAGE,
    "image_start_token_id": BEGIN,
    "image_end_token_id": END,
    "video_token_id": VIDEO,
    "video_start_token_id": 195,
    "video_end_token_id": 194,
}


class ImageFamily(NamedTuple):
    """A small configuration of a model family, and an image for it.

    Attributes:
        config: the configuration.
        placeholders: number of tokens that stand for the image.
        inputs: what a processor would make of the image, by name.
        axis: axis along which the inputs of several images are joined.
        marks_images: whether token types are 1 for images and 0 for text; if not, they are 0 for the whole prompt.
    """

    config: Any
    placeholders: int
    inputs: dict[str, Tensor]
    axis: int = 0
    marks_images: bool = True


def _gemma3() -> ImageFamily:
    text = TEXT | MIXED_ATTENTION | {"query_pre_attn_scalar": 8}
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=VISION | {"image_size": 56},
        mm_tokens_per_image=4,
        image_token_index=IMAGE,
        boi_token_index=BEGIN,
        eoi_token_index=END,
    )
    return ImageFamily(config, 4, {"pixel_values": torch.randn(1, 3, 56, 56)})


GEMMA4_VISION: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "patch_size": 4,
    "pooling_kernel_size": 2,
    "position_embedding_size": 64,
}


def _gemma4(**text_fields: Any) -> ImageFamily:
    """An image of 6 by 4 patches, which are pooled to 3 by 2, and padding."""
    layer_types = ["sliding_attention", "full_attention"] * 2
    text = TEXT | {"num_hidden_layers": 4, "sliding_window": 8, "layer_types": layer_types}
    text |= {"global_head_dim": 16, "vocab_size_per_layer_input": VOCAB}
    config = transformers.Gemma4Config(
        text_config=text | text_fields,
        vision_config=GEMMA4_VISION,
        image_token_id=IMAGE,
        boi_token_id=BEGIN,
        eoi_token_id=END,
        video_token_id=VIDEO,
        audio_token_id=195,
    )
    columns, rows = torch.meshgrid(torch.arange(6), torch.arange(4), indexing="xy")
    places = torch.stack((columns.flatten(), rows.flatten()), -1)
    padding = torch.full((12, 2), -1)
    pixels = torch.cat((torch.rand(24, 48), torch.zeros(12, 48)))
    return ImageFamily(
        config, 6, {"pixel_values": pixels[None], "image_position_ids": torch.cat((places, padding))[None]}
    )


def _gemma4_small() -> ImageFamily:
    """As E2B and E4B: embeddings for each layer, and last layers that share the keys and values of earlier ones."""
    return _gemma4(hidden_size_per_layer_input=16, num_kv_shared_layers=2)


def _gemma4_large() -> ImageFamily:
    """As 26B-A4B: the tokens of an image attend to each other, keys are values too, and there are experts."""
    experts = {"enable_moe_block": True, "num_experts": 4, "top_k_experts": 2, "moe_intermediate_size": 16}
    bidirectional = {"use_bidirectional_attention": "vision", "attention_k_eq_v": True, "num_global_key_value_heads": 1}
    return _gemma4(hidden_size_per_layer_input=0, **experts, **bidirectional)


def _of_patches(config: Any) -> ImageFamily:
    """The inputs of the Qwen and GLM families: patches of an image of 8 by 4 of them."""
    return ImageFamily(
        config, 8, {"pixel_values": torch.randn(32, 3 * 2 * 14 * 14), "image_grid_thw": torch.tensor([[1, 8, 4]])}
    )


def _qwen2_vl() -> ImageFamily:
    vision = {"embed_dim": 32, "hidden_size": 32, "mlp_ratio": 2, "depth": 2, "num_heads": 2, "patch_size": 14}
    text = TEXT | {"rope_parameters": MROPE}
    return _of_patches(transformers.Qwen2VLConfig(text_config=text, vision_config=vision, **QWEN_TOKENS))


def _qwen2_5_vl() -> ImageFamily:
    vision = QWEN_VISION | {"window_size": 56, "fullatt_block_indexes": [1]}
    text = TEXT | {"rope_parameters": MROPE}
    return _of_patches(transformers.Qwen2_5_VLConfig(text_config=text, vision_config=vision, **QWEN_TOKENS))


def _qwen3_vl() -> ImageFamily:
    vision = QWEN_VISION | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}
    text = TEXT | {"rope_parameters": MROPE}
    return _of_patches(transformers.Qwen3VLConfig(text_config=text, vision_config=vision, **QWEN_TOKENS))


def _qwen3_vl_moe() -> ImageFamily:
    vision = QWEN_VISION | {"deepstack_visual_indexes": [0, 1], "num_position_embeddings": 64}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "decoder_sparse_step": 1}
    text = TEXT | experts | {"rope_parameters": MROPE}
    return _of_patches(transformers.Qwen3VLMoeConfig(text_config=text, vision_config=vision, **QWEN_TOKENS))


def _glm4v_moe() -> ImageFamily:
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_shared_experts": 1}
    text = TEXT | experts | {"head_dim": 16, "rope_parameters": MROPE | {"partial_rotary_factor": 0.5}}
    vision = QWEN_VISION | {"depth": 2, "image_size": 56}
    return _of_patches(transformers.Glm4vMoeConfig(text_config=text, vision_config=vision, **GLM_TOKENS))


def _glm4v() -> ImageFamily:
    text = TEXT | {"rope_parameters": MROPE | {"partial_rotary_factor": 1.0}}
    vision = QWEN_VISION | {"depth": 2, "image_size": 56}
    return _of_patches(transformers.Glm4vConfig(text_config=text, vision_config=vision, **GLM_TOKENS))


def _llava() -> ImageFamily:
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=transformers.CLIPVisionConfig(**VISION),
        image_token_index=IMAGE,
        image_seq_length=4,
        vision_feature_layer=-1,
    )
    return ImageFamily(config, 4, {"pixel_values": torch.randn(1, 3, 28, 28)})


def _pixtral() -> ImageFamily:
    """Pixtral as transformers has it: LLaVA with an encoder of images of any size."""
    config = transformers.LlavaConfig(
        text_config=transformers.MistralConfig(**TEXT, sliding_window=None),
        vision_config=transformers.PixtralVisionConfig(**PIXTRAL),
        image_token_index=IMAGE,
        vision_feature_select_strategy="full",
        vision_feature_layer=-1,
    )
    return ImageFamily(config, 6, {"pixel_values": torch.randn(1, 3, 28, 42), "image_sizes": torch.tensor([[28, 42]])})


def _of_tiles(config: Any) -> ImageFamily:
    """The inputs of an image that is read as a whole and in two tiles; each row of its patches has a line's end."""
    return ImageFamily(
        config, 14, {"pixel_values": torch.randn(1, 3, 3, 28, 28), "image_sizes": torch.tensor([[28, 56]])}
    )


TILES = [[28, 28], [28, 56], [56, 28]]


def _llava_next() -> ImageFamily:
    config = transformers.LlavaNextConfig(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=transformers.CLIPVisionConfig(**VISION),
        image_token_index=IMAGE,
        image_grid_pinpoints=TILES,
    )
    return _of_tiles(config)


def _llava_onevision() -> ImageFamily:
    config = transformers.LlavaOnevisionConfig(
        text_config=transformers.Qwen2Config(**TEXT),
        vision_config=transformers.SiglipVisionConfig(**VISION, vision_use_head=False),
        image_token_index=IMAGE,
        video_token_index=VIDEO,
        image_grid_pinpoints=TILES,
    )
    return _of_tiles(config)


def _idefics3() -> ImageFamily:
    """An image in two tiles."""
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**TEXT), vision_config=VISION, image_token_id=IMAGE, scale_factor=2
    )
    inputs = {"pixel_values": torch.randn(1, 2, 3, 28, 28), "pixel_attention_mask": torch.ones(1, 2, 28, 28).bool()}
    return ImageFamily(config, 2, inputs, axis=1)


def _smolvlm() -> ImageFamily:
    config = transformers.SmolVLMConfig(
        text_config=transformers.LlamaConfig(**TEXT), vision_config=VISION, image_token_id=IMAGE, scale_factor=1
    )
    return ImageFamily(config, 4, {"pixel_values": torch.randn(1, 1, 3, 28, 28)}, axis=1)


def _mistral3() -> ImageFamily:
    config = transformers.Mistral3Config(
        text_config=transformers.MistralConfig(**TEXT, sliding_window=None),
        vision_config=transformers.PixtralVisionConfig(**PIXTRAL),
        image_token_index=IMAGE,
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    return ImageFamily(config, 4, {"pixel_values": torch.randn(1, 3, 56, 56), "image_sizes": torch.tensor([[56, 56]])})


def _internvl() -> ImageFamily:
    vision: dict[str, Any] = VISION | {"image_size": [28, 28], "patch_size": [14, 14]}
    config = transformers.InternVLConfig(
        text_config=transformers.Qwen2Config(**TEXT),
        vision_config=transformers.InternVLVisionConfig(**vision),
        image_token_id=IMAGE,
        image_seq_length=1,
        downsample_ratio=0.5,
    )
    return ImageFamily(config, 1, {"pixel_values": torch.randn(1, 3, 28, 28)})


def _paligemma() -> ImageFamily:
    """All tokens of a prompt attend to each other, those of text too."""
    config = transformers.PaliGemmaConfig(
        text_config=transformers.GemmaConfig(**TEXT),
        vision_config=transformers.SiglipVisionConfig(**VISION),
        image_token_index=IMAGE,
        vocab_size=VOCAB,
        projection_dim=32,
    )
    return ImageFamily(config, 4, {"pixel_values": torch.randn(1, 3, 28, 28)}, marks_images=False)


def _mllama() -> ImageFamily:
    """Some layers attend to the image and not to the text."""
    text = TEXT | {"cross_attention_layers": [1], "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}}
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_global_layers": 1}
    vision |= {"attention_heads": 2, "image_size": 28, "intermediate_layers_indices": [0], "vision_output_dim": 64}
    config = transformers.MllamaConfig(
        text_config=text | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
        vision_config=vision,
        image_token_index=IMAGE,
    )
    inputs = {
        "pixel_values": torch.randn(1, 1, 4, 3, 28, 28),
        "aspect_ratio_ids": torch.ones(1, 1).long(),
        "aspect_ratio_mask": torch.tensor([[[1, 0, 0, 0]]]),
    }
    return ImageFamily(config, 1, inputs, axis=1)


def _qwen3_5(*layer_types: str) -> ImageFamily:
    vision = QWEN_VISION | {"num_position_embeddings": 64}
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    text = TEXT | linear | {"linear_num_value_heads": 2, "layer_types": [*layer_types], "head_dim": 16}
    text |= {"rope_parameters": MROPE | {"partial_rotary_factor": 0.5, "mrope_interleaved": True}}
    return _of_patches(transformers.Qwen3_5Config(text_config=text, vision_config=vision, **QWEN_TOKENS))


def _qwen3_5_recurrent() -> ImageFamily:
    return _qwen3_5("linear_attention", "linear_attention", "full_attention")


def _qwen3_5_attention() -> ImageFamily:
    """Without the recurrent layers that published ones have."""
    return _qwen3_5(*["full_attention"] * 3)


def _qwen3_5_moe() -> ImageFamily:
    vision = QWEN_VISION | {"num_position_embeddings": 64}
    linear = {"linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
    text = {name: value for name, value in TEXT.items() if name != "intermediate_size"} | linear | experts
    text |= {"linear_num_value_heads": 2, "head_dim": 16, "shared_expert_intermediate_size": 16}
    text |= {"layer_types": ["linear_attention", "linear_attention", "full_attention"]}
    text |= {"rope_parameters": MROPE | {"partial_rotary_factor": 0.5, "mrope_interleaved": True}}
    return _of_patches(transformers.Qwen3_5MoeConfig(text_config=text, vision_config=vision, **QWEN_TOKENS))


def _glm46v() -> ImageFamily:
    text = TEXT | {"model_type": "glm4v_text", "rope_parameters": MROPE | {"partial_rotary_factor": 1.0}}
    vision = QWEN_VISION | {"model_type": "glm4v_vision", "depth": 2, "image_size": 56}
    return _of_patches(transformers.Glm46VConfig(text_config=text, vision_config=vision, **GLM_TOKENS))


def _ministral3() -> ImageFamily:
    yarn: dict[str, Any] = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 16,
    }
    config = transformers.Mistral3Config(
        text_config=transformers.Ministral3Config(**TEXT, rope_parameters=yarn | {"llama_4_scaling_beta": 0.5}),
        vision_config=transformers.PixtralVisionConfig(**PIXTRAL),
        image_token_index=IMAGE,
        spatial_merge_size=2,
        vision_feature_layer=-1,
    )
    return ImageFamily(config, 4, {"pixel_values": torch.randn(1, 3, 56, 56), "image_sizes": torch.tensor([[56, 56]])})


def _of_one_size(config: Any, placeholders: int) -> ImageFamily:
    """The inputs of an image of 28 by 28 pixels."""
    return ImageFamily(config, placeholders, {"pixel_values": torch.randn(1, 3, 28, 28)})


def _vipllava() -> ImageFamily:
    config = transformers.VipLlavaConfig(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=transformers.CLIPVisionConfig(**VISION),
        image_token_index=IMAGE,
        image_seq_length=4,
        vision_feature_layer=[-1, -2],
    )
    return _of_one_size(config, 4)


def _aya_vision() -> ImageFamily:
    config = transformers.AyaVisionConfig(
        text_config=transformers.Cohere2Config(**TEXT, **MIXED_ATTENTION),
        vision_config=transformers.SiglipVisionConfig(**SIGLIP),
        image_token_index=IMAGE,
        downsample_factor=2,
    )
    return _of_one_size(config, 1)


def _cohere2_vision() -> ImageFamily:
    config = transformers.Cohere2VisionConfig(
        text_config=transformers.Cohere2Config(**TEXT, **MIXED_ATTENTION),
        vision_config=transformers.SiglipVisionConfig(**SIGLIP),
        image_token_id=IMAGE,
        downsample_factor=2,
        alignment_intermediate_size=64,
    )
    return _of_one_size(config, 1)


def _deepseek_vl() -> ImageFamily:
    config = transformers.DeepseekVLConfig(
        text_config=transformers.LlamaConfig(**TEXT),
        vision_config=transformers.SiglipVisionConfig(**SIGLIP),
        image_token_id=IMAGE,
    )
    return _of_one_size(config, 4)


def _aria() -> ImageFamily:
    config = transformers.AriaConfig(
        text_config=TEXT | {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
        vision_config=transformers.Idefics3VisionConfig(**VISION),
        image_token_index=IMAGE,
        projector_patch_to_query_dict={4: 3},
    )
    inputs = {"pixel_values": torch.randn(1, 3, 28, 28), "pixel_mask": torch.ones(1, 28, 28).bool()}
    return ImageFamily(config, 3, inputs)


def _llama4() -> ImageFamily:
    text = TEXT | {"num_hidden_layers": 4, "intermediate_size_mlp": 64, "num_local_experts": 4, "moe_layers": [1, 2]}
    text |= {"layer_types": ["chunked_attention", "full_attention"] * 2, "no_rope_layers": [1, 0, 1, 0]}
    vision = {"hidden_size": 32, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    vision |= {"image_size": 56, "patch_size": 14, "pixel_shuffle_ratio": 0.5}
    vision |= dict.fromkeys(["vision_output_dim", "projector_input_dim", "projector_output_dim"], 32)
    config = transformers.Llama4Config(
        text_config=text | {"attention_chunk_size": 8, "floor_scale": 16},
        vision_config=vision,
        image_token_index=IMAGE,
        boi_token_index=BEGIN,
        eoi_token_index=END,
    )
    return ImageFamily(config, 4, {"pixel_values": torch.randn(1, 3, 56, 56)})


def _lfm2_vl() -> ImageFamily:
    text = {name: value for name, value in TEXT.items() if name != "head_dim"}
    vision = {name: VISION[name] for name in ("hidden_size", "intermediate_size", "num_hidden_layers", "patch_size")}
    vision |= {"num_attention_heads": 2, "num_patches": 16, "vision_use_head": False}
    config = transformers.Lfm2VlConfig(
        text_config=transformers.Lfm2Config(
            **text, layer_types=["conv", "full_attention", "conv"], block_multiple_of=16
        ),
        vision_config=transformers.Siglip2VisionConfig(**vision),
        image_token_id=IMAGE,
        projector_hidden_size=32,
    )
    inputs = {
        "pixel_values": torch.randn(1, 4, 3 * 14 * 14),
        "pixel_attention_mask": torch.ones(1, 4).long(),
        "spatial_shapes": torch.tensor([[2, 2]]),
    }
    return ImageFamily(config, 1, inputs)


FAMILIES: dict[str, Callable[[], ImageFamily]] = {
    "aria": _aria,
    "aya_vision": _aya_vision,
    "cohere2_vision": _cohere2_vision,
    "deepseek_vl": _deepseek_vl,
    "gemma3": _gemma3,
    "gemma4": _gemma4_small,
    "gemma4+moe": _gemma4_large,
    "glm46v": _glm46v,
    "glm4v": _glm4v,
    "glm4v_moe": _glm4v_moe,
    "idefics3": _idefics3,
    "internvl": _internvl,
    "lfm2_vl": _lfm2_vl,
    "llama4": _llama4,
    "llava": _llava,
    "llava+pixtral": _pixtral,
    "llava_next": _llava_next,
    "llava_onevision": _llava_onevision,
    "mistral3": _mistral3,
    "mistral3+ministral3": _ministral3,
    "mllama": _mllama,
    "paligemma": _paligemma,
    "qwen2_5_vl": _qwen2_5_vl,
    "qwen2_vl": _qwen2_vl,
    "qwen3_5": _qwen3_5_recurrent,
    "qwen3_5+attention": _qwen3_5_attention,
    "qwen3_5_moe": _qwen3_5_moe,
    "qwen3_vl": _qwen3_vl,
    "qwen3_vl_moe": _qwen3_vl_moe,
    "smolvlm": _smolvlm,
    "vipllava": _vipllava,
}
"""By model type, what makes a small configuration and an image; a variant's name follows after a "+"."""
