"""Reads the images in the messages of a conversation for a model."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from drafttree.core.errors import InputError
from drafttree.images.image_file import ImageLimits
from drafttree.images.image_source import Fetch, fetched, open_image
from drafttree.images.processor import ImageProcessor, PreparedImages
from drafttree.images.prompt_images import PromptImages


@dataclass(frozen=True, eq=False)
class EncodedPrompt:
    """A prompt as the target reads it.

    Attributes:
        tokens: its token ids.
        images: its images; None if it has none.
    """

    tokens: list[int]
    images: PromptImages | None = None

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
        reads_files: whether images may be given by paths of this machine.
        most: the most images of a prompt; None for no limit.
        most_pixels: the most pixels of all images of a prompt together; None for no limit.
    """

    load_processor: Callable[[], ImageProcessor]
    limits: ImageLimits = field(default_factory=ImageLimits)
    fetch: Fetch | None = None
    reads_files: bool = True
    most: int | None = None
    most_pixels: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def processor(self) -> ImageProcessor:
        """The model's processor; errors are those of loading it."""
        return self.load_processor()

    def read(self, sources: Sequence[tuple[int, Mapping[str, Any]]]) -> PreparedImages:
        """Read and prepare the images of a conversation.

        Several threads may call this; the images of one conversation are in memory at a time.

        Args:
            sources: the image parts of the conversation, each with the number of its message, as `image_parts` returns
                them.

        Raises:
            InputError: an image cannot be read, or there are too many.
        """
        if self.most is not None and len(sources) > self.most:
            raise InputError(f"the prompt has {len(sources)} images; at most {self.most} are read")
        names = [f"image {count} (in message {number})" for count, (number, _) in enumerate(sources, start=1)]
        local_parts = list[Mapping[str, Any]]()
        for name, (_, image_part) in zip(names, sources, strict=True):
            local_parts.append(fetched(image_part, self.limits, name, self.fetch))
        with self._lock:
            images = list[Any]()
            pixels = 0
            for name, image_part in zip(names, local_parts, strict=True):
                image = open_image(image_part, self.limits, name, reads_files=self.reads_files)
                pixels += image.width * image.height
                if self.most_pixels is not None and pixels > self.most_pixels:
                    raise InputError(
                        f"the prompt's images have more than {self.most_pixels:,} pixels together; make them smaller"
                    )
                images.append(image)
            return self.processor.prepare(images)
