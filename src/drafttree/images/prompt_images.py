"""The images of a prompt, as a processor of transformers has prepared them for the model."""

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from drafttree.core.errors import InputError

TOKEN_INPUTS = ("input_ids", "attention_mask")
"""What a processor returns of the text; all else is about images."""
ENCODED = "mm_encoder_outputs"
"""The input in which transformers' `generate` passes images that it has encoded already."""
UNREAD = re.compile("video|audio|input_features")
"""Names of inputs that are neither text nor images."""
ID_BYTES = 4
ID_BITS = 31
"""Bits of the ids that stand for placeholders where rows are shared, all of them negative."""


def media_inputs(prompt: object) -> dict[str, Any] | None:
    """What a processor's output has besides tokens, if it has images; None for other prompts.

    Raises:
        InputError: it has audio or video.
    """
    if not isinstance(prompt, Mapping) or "input_ids" not in prompt:
        return None
    inputs = {name: value for name, value in prompt.items() if name not in TOKEN_INPUTS and value is not None}
    encoded = inputs.get(ENCODED) or {}
    if unread_input := next(filter(UNREAD.search, (*inputs, *encoded)), None):
        raise InputError(f"{unread_input} is not supported: prompts have text and images, no audio or video")
    return inputs if encoded or any("pixel" in name or "image" in name for name in inputs) else None


def _tensor(name: str, value: Any) -> Any:
    """An input of a model as a tensor, if a processor has returned it as an array or a list.

    Raises:
        InputError: its entries have different sizes, or are no numbers.
    """
    if not isinstance(value, np.ndarray | list | tuple) or any(True for _ in tensors_in(value)):
        return value
    try:
        tensor = torch.as_tensor(np.asarray(value))
    except (ValueError, TypeError) as error:
        raise InputError(f"{name} is no array; call the processor with return_tensors='pt'") from error
    return tensor.float() if tensor.is_floating_point() else tensor


def tensors_in(value: Any) -> Iterator[Tensor]:
    """The tensors of a value of a processor or an encoder, in their order."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping):
        for entry in value.values():
            yield from tensors_in(entry)
    elif isinstance(value, list | tuple):
        for entry in value:
            yield from tensors_in(entry)


@dataclass(frozen=True, eq=False)
class PromptImages:
    """The images of a prompt, and the placeholder tokens that stand for them.

    Attributes:
        inputs: the model's inputs besides the tokens, such as `pixel_values`, by name.
        spans: by image, the tokens of the prompt that stand for it: the first one, and the one after the last.
        digests: by image, a digest of its pixels. Two images with the same digest are the same to the model.
    """

    inputs: Mapping[str, Any]
    spans: Sequence[tuple[int, int]]
    digests: Sequence[bytes]

    @classmethod
    def of_inputs(cls, inputs: Mapping[str, Any], tokens: Sequence[int], image_token: int) -> "PromptImages":
        """The images of a processor's output, whose boundaries are not known: each run of placeholders counts as one.

        A run has the digest of all of them, since it is not known which numbers are its own.

        Args:
            inputs: all that the processor returned; its tokens are left out.
            tokens: the token ids of the prompt.
            image_token: the token id that stands for a part of an image.

        Raises:
            InputError: the prompt has no placeholder, or an input is no tensor and cannot become one.
        """
        indices = [index for index, token in enumerate(tokens) if token == image_token]
        if not indices:
            raise InputError(
                f"the prompt has inputs for images, but no image token ({image_token}); render it with the processor"
            )
        image_inputs = {name: _tensor(name, value) for name, value in inputs.items() if name not in TOKEN_INPUTS}
        digest = hashlib.blake2b(digest_size=32)
        for name, value in sorted(image_inputs.items()):
            digest.update(name.encode())
            for tensor in tensors_in(value):
                digest.update(str(tensor.shape).encode())
                digest.update(tensor.detach().float().cpu().contiguous().numpy().tobytes())
        spans = list[tuple[int, int]]()
        for index in indices:
            if spans and spans[-1][1] == index:
                spans[-1] = (spans[-1][0], index + 1)
            else:
                spans.append((index, index + 1))
        return cls(image_inputs, spans, [digest.digest()] * len(spans))

    @cached_property
    def end(self) -> int:
        """The token after the last placeholder: from there on, the prompt is text."""
        return max(end for _, end in self.spans)

    def marked(self, tokens: Sequence[int]) -> list[int]:
        """Tokens with the placeholders replaced by ids that differ between images; none is a token id.

        Rows of a text may be used by another one if these ids are the same, not if the tokens are.
        """
        ids = [*tokens]
        for (begin, end), digest in zip(self.spans, self.digests, strict=True):
            count = end - begin
            stream = hashlib.shake_128(digest).digest(count * ID_BYTES)
            numbers = np.frombuffer(stream, np.uint32) % (1 << ID_BITS)
            ids[begin:end] = (-1 - numbers.astype(np.int64)).tolist()
        return ids
