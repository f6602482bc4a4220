"""Reads the images of requests for the served model, without holding the threads of texts."""

import asyncio
import logging
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from drafttree.core.errors import DraftTreeError, InputError
from drafttree.engine.decoder import Decoder
from drafttree.engine.image_prompt import ImageReader, NamedPart
from drafttree.images.fetching import Fetcher
from drafttree.images.image_file import ImageLimits
from drafttree.images.image_source import address_of
from drafttree.images.processor import PreparedImages
from drafttree.interfaces.server.admission import Admission, open_request
from drafttree.interfaces.server.errors import AGAIN, ServerError, blaming
from drafttree.interfaces.server.request import ChatRequest

logger = logging.getLogger("drafttree")
MOST_HELD_BYTES = 4 << 30
"""The most memory for the prepared images of all requests that are not answered yet. Further ones get status 429."""
FETCHED_AT_ONCE = 8
"""The most requests whose images are being fetched."""
SECONDS = 30.0
"""For fetching all images of a request."""
ANY_HOST = "*"


class ServedImages:
    """Reads the images of requests.

    Args:
        decoder: the served model.
        admission: keeps places for requests whose images are being read.
        max_images: the most images of a request.
        max_pixels: the most pixels of the images of a request together.
        image_hosts: hosts that images are fetched from, with their subdomains; "*" for all public ones, empty for none.

    Attributes:
        are_read: whether the model reads images, and its processor could be loaded.
    """

    def __init__(
        self, decoder: Decoder, admission: Admission, max_images: int, max_pixels: int, image_hosts: Sequence[str]
    ) -> None:
        self._reader = _reader_of(decoder, max_images, max_pixels, image_hosts)
        self.are_read = self._reader is not None
        self._admission = admission
        self._fetching = asyncio.Semaphore(FETCHED_AT_ONCE)
        self._thread = ThreadPoolExecutor(1, "images")
        self._held_bytes = 0
        self._lock = threading.Lock()

    async def prepare(self, request: ChatRequest) -> PreparedImages | None:
        """Read and prepare the images of a request; None if it has none.

        Raises:
            ServerError: an image cannot be read, there are too many, those of other requests fill the memory (429), or
                as for `Admission.preparing`.
        """
        sources = [(number, image.source) for number, image in request.images]
        if not sources:
            return None
        assert self._reader, "the validation lets images pass only for models that read them"
        async with self._admission.preparing():
            with blaming(request.called("messages")):
                local_parts = await self._fetched(self._reader, sources)
                loop = asyncio.get_running_loop()
                images = await loop.run_in_executor(self._thread, self._prepare, self._reader, local_parts)
            open_request.get().ends.callback(self._release, images.size_in_bytes)
            return images

    async def _fetched(self, reader: ImageReader, sources: Sequence[tuple[int, dict[str, str]]]) -> list[NamedPart]:
        """The parts with images, none of which is at an address any more.

        Raises:
            InputError: an image cannot be fetched in time.
        """
        image_parts = reader.named(sources)
        if reader.fetcher is None or not any(address_of(image_part, name) for name, image_part in image_parts):
            return image_parts
        try:
            async with asyncio.timeout(SECONDS), self._fetching:
                return await reader.fetch(sources)
        except TimeoutError:
            raise InputError(f"the images of the request cannot be fetched within {SECONDS:g} seconds") from None

    def _prepare(self, reader: ImageReader, local_parts: list[NamedPart]) -> PreparedImages:
        """Prepare images within the memory for those of all requests.

        Raises:
            ServerError: those of other requests fill the memory (429).
            DraftTreeError: as for `ImageReader.prepare`.
        """
        if self._held_bytes > MOST_HELD_BYTES:
            message = f"the images of other requests take {self._held_bytes} bytes, which is the limit; try again later"
            raise ServerError(429, message, code="images_full", headers=AGAIN)
        images = reader.prepare(local_parts)
        self._release(-images.size_in_bytes)
        return images

    def _release(self, size_in_bytes: int) -> None:
        with self._lock:
            self._held_bytes -= size_in_bytes


def _reader_of(decoder: Decoder, max_images: int, max_pixels: int, image_hosts: Sequence[str]) -> ImageReader | None:
    """The reader of a decoder with the server's limits; None if no images are read. A failure is logged."""
    python_reader = decoder.image_reader
    if python_reader is None or not max_images:
        return None
    fetcher = None
    if image_hosts:
        fetcher = Fetcher(() if ANY_HOST in image_hosts else tuple(image_hosts))
    try:
        processor = python_reader.processor  # loaded at the start, so that a failure is told before a request
    except DraftTreeError as error:
        logger.warning("requests with images are refused: %s", error)
        return None
    return replace(
        python_reader,
        load_processor=lambda: processor,
        limits=ImageLimits(pixels=max_pixels),
        fetcher=fetcher,
        reads_files=False,
        most=max_images,
        most_pixels=max_pixels,
        _lock=threading.Lock(),
    )
