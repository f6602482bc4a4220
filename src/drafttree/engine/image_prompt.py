"""Reads the images in the messages of a conversation for a model."""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

from drafttree.core.errors import ContextError, InputError
from drafttree.images.fetching import Fetcher
from drafttree.images.image_file import ImageLimits
from drafttree.images.image_source import address_of, open_image
from drafttree.images.processor import ImageProcessor, PreparedImages
from drafttree.images.prompt_images import PromptImages

MOST_FETCHED_BYTES = 50_000_000
"""The most bytes of all images that are fetched for a prompt of a server."""


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


class NamedPart(NamedTuple):
    """A part of a message with an image.

    Attributes:
        name: names the image in errors.
        part: the part, as for `drafttree.images.image_source.open_image`.
    """

    name: str
    part: Mapping[str, Any]


@dataclass(frozen=True, eq=False)
class ImageReader:
    """Reads the images of conversations for a model.

    Attributes:
        load_processor: loads the model's processor, when it is first needed.
        context: the model's context in tokens; images that need more are refused before they are prepared. None for no
            limit.
        limits: what an image may have at most.
        fetcher: fetches the images at addresses; None refuses these.
        reads_files: whether images may be given by paths of this machine.
        most: the most images of a prompt; None for no limit.
        most_pixels: the most pixels of all images of a prompt together; None for no limit.
    """

    load_processor: Callable[[], ImageProcessor]
    context: int | None = None
    limits: ImageLimits = field(default_factory=ImageLimits)
    fetcher: Fetcher | None = None
    reads_files: bool = True
    most: int | None = None
    most_pixels: int | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def processor(self) -> ImageProcessor:
        """The model's processor; errors are those of loading it."""
        return self.load_processor()

    def read(self, sources: Sequence[tuple[int, Mapping[str, Any]]]) -> PreparedImages:
        """Fetch, read and prepare the images of a conversation.

        Args:
            sources: the image parts of the conversation, each with the number of its message, as `image_parts` returns
                them.

        Raises:
            InputError: an image cannot be read, or there are too many.
            ContextError: the images have more tokens than the context.
        """
        local_parts = list[NamedPart]()
        for name, image_part in self.named(sources):
            if (address := address_of(image_part, name)) and self.fetcher:
                image_part = {"image": self.fetcher(address, self.limits, name)}
            local_parts.append(NamedPart(name, image_part))
        return self.prepare(local_parts)

    async def fetch(self, sources: Sequence[tuple[int, Mapping[str, Any]]]) -> list[NamedPart]:
        """Fetch the images of a conversation that are at addresses, for `prepare`; other images stay as they are.

        Args:
            sources: as for `read`.

        Raises:
            InputError: an image cannot be fetched, or there are too many images or bytes.
        """
        local_parts = list[NamedPart]()
        bytes_left = MOST_FETCHED_BYTES
        for name, image_part in self.named(sources):
            if (address := address_of(image_part, name)) and self.fetcher:
                limits = replace(self.limits, bytes=min(self.limits.bytes, bytes_left))
                content = await self.fetcher.fetch(address, limits, name)
                bytes_left -= len(content)
                image_part = {"image": content}
            local_parts.append(NamedPart(name, image_part))
        return local_parts

    def named(self, sources: Sequence[tuple[int, Mapping[str, Any]]]) -> list[NamedPart]:
        """The image parts of a conversation with their names.

        Raises:
            InputError: there are too many images.
        """
        if self.most is not None and len(sources) > self.most:
            raise InputError(f"the prompt has {len(sources)} images; at most {self.most} are read")
        image_parts = list[NamedPart]()
        for count, (number, image_part) in enumerate(sources, start=1):
            image_parts.append(NamedPart(f"image {count} (in message {number})", image_part))
        return image_parts

    def prepare(self, local_parts: list[NamedPart]) -> PreparedImages:
        """Read and prepare the images of a conversation.

        Several threads may call this; the images of one conversation are in memory at a time.

        Args:
            local_parts: the parts with images. The list is emptied, since errors would keep its images in memory.

        Raises:
            InputError: an image cannot be read, or they have too many pixels together.
            ContextError: the images have more tokens than the context.
        """
        images = list[Any]()
        pixels = 0
        with self._lock:
            try:
                for name, image_part in local_parts:
                    if address_of(image_part, name):
                        raise InputError(f"{name} is an address, and none is fetched; send the image as a data URL")
                    image = open_image(image_part, self.limits, name, reads_files=self.reads_files)
                    pixels += image.width * image.height
                    if self.most_pixels is not None and pixels > self.most_pixels:
                        raise InputError(
                            f"the prompt's images have more than {self.most_pixels:,} pixels together; make them "
                            "smaller"
                        )
                    images.append(image)
                self._check_tokens(images)
                return self.processor.prepare(images)
            finally:
                images.clear()
                local_parts.clear()

    def _check_tokens(self, images: Sequence[Any]) -> None:
        """Check that the tokens of images fit into the context, before they are prepared.

        Raises:
            ContextError: they do not.
        """
        tokens = self.processor.count_tokens(images)
        if self.context is not None and tokens is not None and tokens > self.context:
            raise ContextError(
                f"the {len(images)} images of the prompt have {tokens:,} tokens, and the model's context has "
                f"{self.context:,}; send smaller or fewer images"
            )
