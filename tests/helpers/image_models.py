"""Small random models that read images, of the families that people use, as `drafttree support` checks them.

Those of `REFUSED` cannot go on from images as from text; by name, what the error says.
"""

from typing import Any

import torch
from torch import Tensor

from drafttree_lab.support import image_configs
from drafttree_lab.support.image_configs import IMAGE, TEXT, VISION, VOCAB
from drafttree_lab.support.image_models import ImageModel, image_model

NOT_BUILT = ("llama4",)
"""Families with which transformers itself cannot generate behind an image."""
REFUSED = {
    "lfm2_vl": "images do not work with the recurrent layers of Lfm2VlForConditionalGeneration",
    "mllama": "images do not work with the cross-attention layers of MllamaForConditionalGeneration",
    "paligemma": "PaliGemmaForConditionalGeneration cannot be verified in a tree: it has bidirectional attention",
    "qwen3_5": "images do not work with the recurrent layers of Qwen3_5ForConditionalGeneration",
    "qwen3_5_moe": "images do not work with the recurrent layers of Qwen3_5MoeForConditionalGeneration",
}
FAMILIES = {name: family for name, family in image_configs.FAMILIES.items() if name not in (*REFUSED, *NOT_BUILT)}

__all__ = ["FAMILIES", "IMAGE", "REFUSED", "TEXT", "VISION", "VOCAB", "ImageModel", "hidden_states", "image_model"]


@torch.inference_mode()
def hidden_states(model: ImageModel, inputs: dict[str, Tensor], tokens: list[int] | None = None) -> list[Tensor]:
    """The input of each layer, and the output of the decoder, `[1, tokens, hidden]` each, by transformers.

    transformers counts the outputs of layers, to which Qwen3-VL then adds features of the image (DeepStack).

    Args:
        model: the model.
        inputs: those of a prompt.
        tokens: the prompt and a text behind it; None for the prompt alone.
    """
    module: Any = model.module
    if tokens is not None:
        behind = len(tokens) - inputs["input_ids"].shape[1]
        types = {name: inputs[name] for name in ("mm_token_type_ids", "token_type_ids") if name in inputs}
        longer = {name: torch.nn.functional.pad(value, (0, behind)) for name, value in types.items()}
        inputs = {**inputs, **longer, "input_ids": torch.tensor([tokens])}
    states = [*module(**inputs, output_hidden_states=True).hidden_states]
    if "qwen3_vl" in module.config.model_type:
        image_inputs = {name: inputs[name] for name in ("pixel_values", "image_grid_thw")}
        features = module.get_image_features(**image_inputs, return_dict=True).deepstack_features
        is_image = inputs["input_ids"][0] == IMAGE
        for layer, added in enumerate(features, start=1):
            states[layer] = states[layer].clone()
            states[layer][0, is_image] += torch.cat([*added])
    return states
