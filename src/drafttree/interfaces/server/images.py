"""Reads the images of requests for the served model, in threads of its own."""

import asyncio
import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from drafttree.core.errors import DraftTreeError
from drafttree.engine.decoder import Decoder
from drafttree.engine.image_prompt import ImageReader
from drafttree.images.fetching import Fetcher
from drafttree.images.image_file import ImageLimits
from drafttree.images.processor import PreparedImages
from drafttree.interfaces.server.admission import open_request
from drafttree.interfaces.server.errors import AGAIN, ServerError, blaming
from drafttree.interfaces.server.request import ChatRequest

logger = logging.getLogger("drafttree")
MOST_HELD_BYTES = 4 << 30
"""The most memory for the prepared images of all requests that are not answered yet. Further ones get status 429."""
THREADS = 8
"""Threads that fetch images, so that slow hosts do not hold the threads of texts."""
ANY_HOST = "*"


class ServedImages:
    """Reads the images of requests.

    Args:
        decoder: the served model.
        max_images: the most images of a request.
        max_pixels: the most pixels of the images of a request together.
        image_hosts: hosts that images are fetched from, with their subdomains; "*" for all public ones, empty for none.

    Attributes:
        are_read: whether the model reads images, and its processor could be loaded.
    """

    def __init__(self, decoder: Decoder, max_images: int, max_pixels: int, image_hosts: Sequence[str]) -> None:
        self._reader = _reader_of(decoder, max_images, max_pixels, image_hosts)
        self.are_read = self._reader is not None
        self._threads = ThreadPoolExecutor(THREADS, "images")
        self._held_bytes = 0

    async def prepare(self, request: ChatRequest) -> PreparedImages | None:
        """Read and prepare the images of a request; None if it has none.

        Raises:
            ServerError: an image cannot be read, there are too many, or those of other requests fill the memory (429).
        """
        sources = [(number, image.source) for number, image in request.images]
        if not sources:
            return None
        assert self._reader, "the validation lets images pass only for models that read them"
        if self._held_bytes > MOST_HELD_BYTES:
            message = f"the images of other requests take {self._held_bytes} bytes, which is the limit; try again later"
            raise ServerError(429, message, code="images_full", headers=AGAIN)
        with blaming(request.called("messages")):
            images = await asyncio.get_running_loop().run_in_executor(self._threads, self._reader.read, sources)
        self._held_bytes += images.size_in_bytes
        open_request.get().ends.callback(self._release, images.size_in_bytes)
        return images

    def _release(self, size_in_bytes: int) -> None:
        self._held_bytes -= size_in_bytes


def _reader_of(decoder: Decoder, max_images: int, max_pixels: int, image_hosts: Sequence[str]) -> ImageReader | None:
    """The reader of a decoder with the server's limits; None if no images are read. A failure is logged."""
    if decoder.image_reader is None:
        return None
    fetch = None
    if image_hosts:
        fetch = Fetcher(() if ANY_HOST in image_hosts else tuple(image_hosts))
    limits = ImageLimits(pixels=max_pixels)
    python_reader = decoder.image_reader
    reader = replace(
        python_reader,
        load_processor=lambda: python_reader.processor,  # loaded once for both
        limits=limits,
        fetch=fetch,
        reads_files=False,
        most=max_images,
        most_pixels=max_pixels,
    )
    try:
        reader.processor  # noqa: B018 - loads it, so that a failure is told at the start and not by a request
    except DraftTreeError as error:
        logger.warning("requests with images are refused: %s", error)
        return None
    return reader
