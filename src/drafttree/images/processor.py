"""A processor of transformers, which prepares images for a model and says which tokens stand for each of them."""

import hashlib
from collections.abc import Sequence
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from drafttree.core.errors import ConfigError, InputError
from drafttree.images.prompt_images import TOKEN_INPUTS, PromptImages, tensors_in

if TYPE_CHECKING:
    from PIL.Image import Image

OFFSETS = "text_replacement_offsets"
"""What processors return of the texts that replace placeholders, if they are asked for it."""


class ImageProcessor:
    """Prepares images for a model.

    Args:
        processor: a processor of transformers, such as `AutoProcessor.from_pretrained` returns.
        image_token: the token id that stands for a part of an image.

    Raises:
        ConfigError: the processor does not name the placeholder that it replaces.
    """

    def __init__(self, processor: Any, image_token: int) -> None:
        placeholder = getattr(processor, "image_token", None)
        if not isinstance(placeholder, str):
            raise ConfigError(
                f"{type(processor).__name__} has no image_token, so it cannot prepare prompts with images"
            )
        self.placeholder = placeholder
        self.image_token = image_token
        self.image_word: str = processor.tokenizer.convert_ids_to_tokens(image_token)
        self._processor = processor

    def count_tokens(self, images: Sequence["Image"]) -> int | None:
        """The tokens that stand for images in a prompt, without preparing them; None if the processor does not tell."""
        try:
            sizes = [(image.height, image.width) for image in images]
            return sum(self._processor._get_num_multimodal_tokens(image_sizes=sizes).num_image_tokens)
        except (AttributeError, TypeError, ValueError, KeyError):  # not every processor has this method
            return None

    def prepare(self, images: Sequence["Image"]) -> "PreparedImages":
        """Prepare images, in their order in the prompt.

        Args:
            images: as RGB.

        Raises:
            InputError: the model cannot read an image, such as one that is a few pixels wide.
        """
        try:
            prepared = self._processor(
                text=[self.placeholder * len(images)],
                images=[list(images)],
                return_tensors="pt",
                return_text_replacement_offsets=True,
            )
        except (ValueError, RuntimeError, TypeError, MemoryError) as error:
            raise InputError(f"the model's processor cannot read the images: {error}") from error
        replacements = [offset["replacement"] for offset in prepared[OFFSETS][0]]
        return PreparedImages(self, prepared, replacements, [*map(_digest, images)])

    def token_types(self, tokens: Sequence[int]) -> Tensor:
        """`[1, tokens]`: which tokens stand for images."""
        return torch.tensor(self._processor.create_mm_token_type_ids([[*tokens]]))


class PreparedImages:
    """The images of a prompt that is still a text.

    Args:
        processor: has prepared them.
        prepared: what the processor of transformers returned for a text of placeholders alone.
        replacements: by image, the text that takes its placeholder's place.
        digests: by image, a digest of its pixels.
    """

    def __init__(
        self, processor: ImageProcessor, prepared: Any, replacements: Sequence[str], digests: Sequence[bytes]
    ) -> None:
        self._processor = processor
        self._prepared = prepared
        self._replacements = replacements
        self._digests = digests

    @property
    def placeholders(self) -> tuple[str, str]:
        """The tokens that stand for an image before and after its tokens take their place, as they are spelled."""
        return self._processor.placeholder, self._processor.image_word

    @property
    def size_in_bytes(self) -> int:
        """The memory of the model's inputs."""
        return sum(map(attrgetter("nbytes"), tensors_in(dict(self._prepared))))

    def expand(self, text: str, mark: str) -> str:
        """Put the tokens of all images into a text that has a placeholder for each.

        Args:
            text: the text of the prompt.
            mark: a placeholder behind this text is plain text, and stays as it is.

        Raises:
            InputError: the text has another number of placeholders than there are images.
        """
        placeholder = self._processor.placeholder
        pieces = [""]
        for index, piece in enumerate(text.split(placeholder)):
            if index and pieces[-1].endswith(mark):
                pieces[-1] += placeholder + piece
            elif index:
                pieces.append(piece)
            else:
                pieces[-1] = piece
        if len(pieces) - 1 != len(self._replacements):
            raise InputError(
                f"the prompt has {len(pieces) - 1} image tokens ({placeholder}) for {len(self._replacements)} images; "
                "give an image for each, and leave the token out of the text"
            )
        expanded_text = pieces[0]
        for replacement, piece in zip(self._replacements, pieces[1:], strict=True):
            expanded_text += replacement + piece
        return expanded_text

    def of_tokens(self, tokens: Sequence[int]) -> PromptImages:
        """The images of the prompt with these token ids.

        Raises:
            InputError: the prompt does not have the tokens of all images.
        """
        counts = [replacement.count(self._processor.image_word) for replacement in self._replacements]
        indices = [index for index, token in enumerate(tokens) if token == self._processor.image_token]
        if len(indices) != sum(counts):
            raise InputError(f"the prompt has {len(indices)} tokens of images, and its images need {sum(counts)}")
        spans = []
        begin = 0
        for count in counts:
            spans.append((indices[begin], indices[begin + count - 1] + 1))
            begin += count
        return PromptImages(self._inputs(tokens), spans, self._digests)

    def _inputs(self, tokens: Sequence[int]) -> dict[str, Tensor]:
        """The model's inputs besides the tokens; those with a number for each token are made for these tokens."""
        shape_of_tokens = self._prepared["input_ids"].shape
        inputs = dict[str, Tensor]()
        for name, value in self._prepared.items():
            if name in TOKEN_INPUTS or not isinstance(value, Tensor):
                continue
            is_by_token = name.endswith("token_type_ids") and value.shape == shape_of_tokens
            inputs[name] = self._processor.token_types(tokens) if is_by_token else value
        return inputs


def _digest(image: "Image") -> bytes:
    """A digest of an image's pixels."""
    digest = hashlib.blake2b(f"{image.width}x{image.height}".encode(), digest_size=32)
    digest.update(image.tobytes())
    return digest.digest()
