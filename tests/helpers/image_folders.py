"""Folders of small random models that read images, with processors that need no torchvision."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import PreTrainedModel
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.gemma3.image_processing_pil_gemma3 import Gemma3ImageProcessorPil
from transformers.models.idefics3.image_processing_pil_idefics3 import Idefics3ImageProcessorPil

from helpers.image_models import TEXT, VISION
from testing.tokenizers import byte_level

WORDS = "the quick brown fox jumps over the lazy dog; what is in this picture? describe the image, please. " * 4
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<turn>{{ message.role }}\n"
    "{% if message.content is string %}{{ message.content }}{% else %}{% for part in message.content %}"
    "{% if part.type == 'image' %}IMAGE{% else %}{{ part.text }}{% endif %}{% endfor %}{% endif %}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<turn>assistant\n{% endif %}"
)


class ImageFolder(NamedTuple):
    """A folder, with what is saved in it."""

    path: Path
    processor: Any
    module: PreTrainedModel

    def inputs(self, messages: Sequence[Any]) -> Any:
        """What transformers makes of a conversation."""
        options = {"tokenize": True, "add_generation_prompt": True, "return_dict": True, "return_tensors": "pt"}
        return self.processor.apply_chat_template(messages, **options)

    def generate(self, messages: Sequence[Any], tokens: int) -> list[int]:
        """The new tokens of transformers' `generate`."""
        inputs = self.inputs(messages)
        length = inputs["input_ids"].shape[1]
        return self.module.generate(**inputs, do_sample=False, max_new_tokens=tokens)[0, length:].tolist()


def _tokenizer(placeholder: str, *tokens: str) -> Any:
    tokenizer: Any = byte_level(WORDS, 300)
    special = {"bos_token": "<bos>", "additional_special_tokens": ["<turn>", "<end>", placeholder, *tokens]}
    tokenizer.add_special_tokens(special)
    tokenizer.chat_template = TEMPLATE.replace("IMAGE", placeholder)
    tokenizer.pad_token = "<end>"
    return tokenizer


def _gemma3() -> tuple[Any, Any]:
    tokenizer = _tokenizer("<image>", "<begin>", "<soft>")
    begin, soft, end = tokenizer.convert_tokens_to_ids(["<image>", "<soft>", "<begin>"])
    tokenizer.image_token, tokenizer.boi_token, tokenizer.eoi_token = "<soft>", "<image>", "<begin>"
    tokenizer.image_token_id, tokenizer.boi_token_id = soft, begin
    tokenizer.init_kwargs.update(image_token="<soft>", boi_token="<image>", eoi_token="<begin>")
    image_processor = Gemma3ImageProcessorPil(
        size={"height": 56, "width": 56}, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    processor = transformers.Gemma3Processor(
        image_processor, tokenizer, chat_template=tokenizer.chat_template, image_seq_length=4
    )
    text = TEXT | {
        "vocab_size": len(tokenizer),
        "sliding_window": 8,
        "layer_types": ["sliding_attention", "sliding_attention", "full_attention"],
        "query_pre_attn_scalar": 8,
    }
    config = transformers.Gemma3Config(
        text_config=text,
        vision_config=VISION | {"image_size": 56},
        mm_tokens_per_image=4,
        image_token_index=soft,
        boi_token_index=begin,
        eoi_token_index=end,
    )
    return processor, config


def _llava() -> tuple[Any, Any]:
    return llava(_tokenizer("<image>"), TEXT)


def llava(tokenizer: Any, text: dict[str, Any]) -> tuple[Any, Any]:
    """A processor, and the config of a LLaVA model with a Llama of this config, without its vocabulary."""
    image_processor = CLIPImageProcessorPil(size={"shortest_edge": 28}, crop_size={"height": 28, "width": 28})
    processor = transformers.LlavaProcessor(
        image_processor,
        tokenizer,
        chat_template=tokenizer.chat_template,
        patch_size=14,
        vision_feature_select_strategy="default",
        image_token="<image>",
        num_additional_image_tokens=1,
    )
    config = transformers.LlavaConfig(
        text_config=transformers.LlamaConfig(**text | {"vocab_size": len(tokenizer)}),
        vision_config=transformers.CLIPVisionConfig(**VISION),
        image_token_index=tokenizer.convert_tokens_to_ids("<image>"),
        image_seq_length=4,
        vision_feature_layer=-1,
    )
    return processor, config


def _idefics3() -> tuple[Any, Any]:
    places = [f"<row_{row}_col_{column}>" for row in range(1, 4) for column in range(1, 4)]
    tokenizer = _tokenizer("<image>", "<fake_token_around_image>", "<end_of_utterance>", "<global-img>", *places)
    image_processor = Idefics3ImageProcessorPil(size={"longest_edge": 56}, max_image_size={"longest_edge": 28})
    processor = transformers.Idefics3Processor(
        image_processor, tokenizer, image_seq_len=4, chat_template=tokenizer.chat_template
    )
    config = transformers.Idefics3Config(
        text_config=transformers.LlamaConfig(**TEXT | {"vocab_size": len(tokenizer)}),
        vision_config=VISION,
        image_token_id=tokenizer.convert_tokens_to_ids("<image>"),
        scale_factor=1,
    )
    return processor, config


FOLDERS: dict[str, Callable[[], tuple[Any, Any]]] = {"gemma3": _gemma3, "idefics3": _idefics3, "llava": _llava}
"""By name, what makes the processor and the config of a family."""


def image_folder(family: str, path: Path) -> ImageFolder:
    """Save a small random model of a family with its processor."""
    processor, config = FOLDERS[family]()
    torch.manual_seed(0)
    module = transformers.AutoModelForImageTextToText.from_config(config).eval()
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.ndim > 1:
                parameter.mul_(3)
    module.generation_config.eos_token_id = None
    module.generation_config.pad_token_id = 0
    module.save_pretrained(path)
    processor.save_pretrained(path)
    return ImageFolder(path, processor, module)
