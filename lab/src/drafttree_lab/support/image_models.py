"""Small random models that read images, whose texts change with the image."""

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import AutoModelForImageTextToText, GenerationConfig, PreTrainedModel

from drafttree_lab.support.image_configs import BEGIN, END, FAMILIES, FIRST_MARK, IMAGE, ImageFamily
from drafttree_lab.support.random_models import randomise

IMAGES = "+images"
"""End of the names of architectures whose prompts have images."""
SEEDS = range(40)
TRIAL_LENGTH = 24
MIN_DIFFERENT = 8
"""Minimum number of different tokens in the text of `TRIAL_LENGTH` tokens behind an image."""
TYPES = ("mm_token_type_ids", "token_type_ids")
"""Inputs of models that say of each token whether it stands for an image."""


class ImageModel(NamedTuple):
    """A model and a prompt.

    Attributes:
        module: the model.
        inputs: what its processor would return for a prompt with an image.
        family: the family's configuration and its image.
    """

    module: PreTrainedModel
    inputs: dict[str, Tensor]
    family: ImageFamily

    def other_image(self) -> dict[str, Tensor]:
        """The inputs of the same prompt with another image, the negative."""
        return self.inputs | {"pixel_values": -self.inputs["pixel_values"]}

    def generate(self, inputs: dict[str, Tensor], tokens: int, **options: Any) -> list[int]:
        """The new tokens of transformers' `generate`."""
        length = inputs["input_ids"].shape[1]
        generate: Any = self.module.generate
        greedy = {"do_sample": False, "pad_token_id": 0, "eos_token_id": None}
        return generate(**inputs, max_new_tokens=tokens, **greedy | options)[0, length:].tolist()

    def prompt(self, *texts: Sequence[int]) -> dict[str, Tensor]:
        """The inputs of a prompt of these texts, with an image between each and the next, every other one negative."""
        return _inputs(self.module, self.family, texts)


def image_architectures() -> list[str]:
    """The families that read images, by model type, and variants of some; all end with `IMAGES`."""
    return sorted(f"{name}{IMAGES}" for name in FAMILIES)


def image_model(name: str) -> ImageModel:
    """A small random model of one of `FAMILIES`, from the first seed with which its texts vary.

    Raises:
        Exception: transformers cannot make the model; it may raise any kind.
    """
    torch.manual_seed(0)
    family = FAMILIES[name]()
    for config in (family.config, family.config.get_text_config()):
        config.tie_word_embeddings = False  # random texts of tied weights repeat tokens
    module = AutoModelForImageTextToText.from_config(family.config).eval()
    module.generation_config = GenerationConfig()
    model = ImageModel(module, _inputs(module, family, ([2, 5, 6], [7, 8, 9])), family)
    for seed in SEEDS:
        randomise(module, seed)
        module.get_output_embeddings().weight.data[FIRST_MARK:] = 0  # no model writes placeholders
        if _is_lively(model):
            return model
    raise ValueError("its random texts vary too little to compare")


def _is_lively(model: ImageModel) -> bool:
    """Whether texts have many tokens, and others behind another image."""
    text = model.generate(model.inputs, TRIAL_LENGTH)
    return len(set(text)) >= MIN_DIFFERENT and model.generate(model.other_image(), TRIAL_LENGTH) != text


def _inputs(module: PreTrainedModel, family: ImageFamily, texts: Sequence[Sequence[int]]) -> dict[str, Tensor]:
    tokens = [*texts[0]]
    for text in texts[1:]:
        tokens += [BEGIN, *[IMAGE] * family.placeholders, END, *text]
    inputs = {"input_ids": torch.tensor([tokens])}
    count = len(texts) - 1
    for name, value in family.inputs.items():
        values = [-value if name == "pixel_values" and index % 2 else value for index in range(count)]
        inputs[name] = torch.cat(values, family.axis)
    type_of_images = 1 if family.marks_images else 0
    for name in set(TYPES) & set(inspect.signature(module.forward).parameters):
        inputs[name] = (inputs["input_ids"] == IMAGE).long() * type_of_images
    return inputs
