"""Reads the images in the messages of a conversation for a model."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from drafttree.core.errors import InputError
from drafttree.images.image_file import ImageLimits
from drafttree.images.image_source import Fetch, open_image
from drafttree.images.processor import ImageProcessor, PreparedImages
from drafttree.images.prompt_images import PromptImages
from drafttree.text.chat import image_parts


class EncodedPrompt(NamedTuple):
    """A prompt as the target reads it.

    Attributes:
        tokens: its token ids.
        images: its images; None if it has none.
    """

    tokens: list[int]
    images: PromptImages | None

    @property
    def length(self) -> int:
        """The number of tokens."""
        return len(self.tokens)


@dataclass(frozen=True, eq=False)
class ImageReader:
    """Reads the images of conversations for a model.

    Attributes:
        load_processor: loads the model's processor, when it is first needed.
        limits: what an image may have at most.
        fetch: fetches the images at addresses; None refuses these.
        most: the most images of a prompt; None for no limit.
    """

    load_processor: Callable[[], ImageProcessor]
    limits: ImageLimits = field(default_factory=ImageLimits)
    fetch: Fetch | None = None
    most: int | None = None

    @cached_property
    def processor(self) -> ImageProcessor:
        """The model's processor; errors are those of loading it."""
        return self.load_processor()

    def read(self, messages: Sequence[Mapping[str, Any]]) -> PreparedImages | None:
        """Read and prepare the images of a conversation; None if it has none.

        Raises:
            InputError: an image cannot be read, or there are too many.
        """
        sources = image_parts(messages)
        if not sources:
            return None
        if self.most is not None and len(sources) > self.most:
            raise InputError(f"the prompt has {len(sources)} images; at most {self.most} are read")
        images = []
        for count, (number, source) in enumerate(sources, start=1):
            images.append(open_image(source, self.limits, f"image {count} (in message {number})", self.fetch))
        return self.processor.prepare(images)
