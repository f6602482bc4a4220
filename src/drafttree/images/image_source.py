"""Finds the image of a part of a message: an image of Pillow, a file, a data URL or an address."""

import base64
import binascii
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote_to_bytes

from drafttree.core.errors import InputError
from drafttree.images.image_file import ImageLimits, check_image, decode_image, read_image

if TYPE_CHECKING:
    from PIL.Image import Image

SOURCES = ("image", "url", "path", "base64")
"""Entries of a part that say where its image is, as transformers' `apply_chat_template` takes them."""
DATA_URL = re.compile(r"data:(?P<type>[\w.+-]+/[\w.+-]+)?(?P<options>(?:;[\w.+=-]+)*),", re.ASCII)
ADDRESS = re.compile(r"https?://", re.IGNORECASE)
Fetch = Callable[[str, ImageLimits, str], bytes]
"""Fetches the file at an address, given the limits and the name of the image in errors."""


def fetched(message_part: Mapping[str, Any], limits: ImageLimits, name: str, fetch: Fetch | None) -> Mapping[str, Any]:
    """The part of a message, with the fetched file in the place of an address.

    Args:
        message_part: as for `open_image`.
        limits: what the image may have at most.
        name: names the image in errors.
        fetch: fetches addresses; None refuses them.

    Raises:
        InputError: the part does not say where its image is, or it is at an address that cannot be fetched.
    """
    address = message_part[_source_of(message_part, name)]
    if not isinstance(address, str) or not ADDRESS.match(address):
        return message_part
    if fetch is None:
        raise InputError(f"{name} is an address, and none is fetched; send the image as a data URL")
    return {"type": "image", "image": fetch(address, limits, name)}


def open_image(message_part: Mapping[str, Any], limits: ImageLimits, name: str, *, reads_files: bool = True) -> "Image":
    """The image of a part of a message, as RGB.

    Args:
        message_part: `{"type": "image", "image" | "url" | "path" | "base64": ...}`, without addresses, see `fetched`.
        limits: what the image may have at most.
        name: names the image in errors.
        reads_files: whether to read files of this machine; if not, paths are refused.

    Raises:
        InputError: the part does not say where its image is, or it cannot be read.
        ConfigError: Pillow is not installed.
    """
    source = _source_of(message_part, name)
    value = message_part[source]
    if source == "image" and not isinstance(value, str | bytes):
        if not hasattr(value, "convert"):
            raise InputError(f"{name} is {type(value).__name__}; give an image of Pillow, a path or an address")
        return check_image(value, limits, name)
    if isinstance(value, bytes):
        return decode_image(value, limits, name)
    text = str(value)
    if source == "base64":
        return decode_image(_from_base64(text, limits, name), limits, name)
    if text.startswith("data:"):
        return decode_image(_from_data_url(text, limits, name), limits, name)
    if not reads_files:
        raise InputError(f"{name} is no data URL; send data:image/png;base64,...")
    return read_image(text.removeprefix("file://"), limits, name)


def _source_of(message_part: Mapping[str, Any], name: str) -> str:
    """The entry of a part that says where its image is.

    Raises:
        InputError: there is none, or more than one.
    """
    given_sources = [source for source in SOURCES if message_part.get(source) is not None]
    if len(given_sources) != 1:
        raise InputError(f"{name} has {', '.join(given_sources) or 'no source'}; give one of {', '.join(SOURCES)}")
    return given_sources[0]


def _from_data_url(url: str, limits: ImageLimits, name: str) -> bytes:
    match = DATA_URL.match(url)
    if match is None:
        raise InputError(f"{name} is no data URL that can be read; send data:image/png;base64,...")
    content = url[match.end() :]
    if ";base64" in match["options"]:
        return _from_base64(content, limits, name)
    return unquote_to_bytes(content)


def _from_base64(text: str, limits: ImageLimits, name: str) -> bytes:
    """Decode base64; its size is checked before."""
    if len(text) * 3 // 4 > limits.bytes + 3:
        raise InputError(f"{name} has some {len(text) * 3 // 4:,} bytes; at most {limits.bytes:,} are read")
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise InputError(f"{name} is not valid base64: {error}") from None
