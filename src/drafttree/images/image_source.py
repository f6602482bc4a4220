"""Finds the image of a part of a message: an image of Pillow, a file, a data URL or an address."""

import base64
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, unquote_to_bytes, urlsplit
from urllib.request import url2pathname

from drafttree.core.errors import InputError
from drafttree.images.image_file import ImageLimits, check_bytes, check_image, decode_image, is_pillow_image, read_file

if TYPE_CHECKING:
    from PIL.Image import Image

SOURCES = ("image", "url", "path", "base64")
"""Entries of a part that say where its image is, as transformers' `apply_chat_template` takes them."""
DATA_URL = re.compile(r"data:(?:[\w.+-]+/[\w.+-]+)?(?P<options>(?:;[^;,]+)*),", re.ASCII | re.IGNORECASE)
MOST_ESCAPED = 1_000_000
"""The most characters of a data URL without base64, whose escapes take long to read."""
ADDRESS = re.compile(r"https?://", re.IGNORECASE)


def address_of(message_part: Mapping[str, Any], name: str) -> str | None:
    """The address of the image of a part of a message; None if it is no address.

    Args:
        message_part: as for `open_image`.
        name: names the image in errors.

    Raises:
        InputError: the part does not say where its image is.
    """
    location = message_part[_source_of(message_part, name)]
    return location if isinstance(location, str) and ADDRESS.match(location) else None


def open_image(message_part: Mapping[str, Any], limits: ImageLimits, name: str, *, reads_files: bool = True) -> "Image":
    """The image of a part of a message, as RGB.

    Args:
        message_part: `{"type": "image", "image" | "url" | "path" | "base64": ...}`, without an address, see
            `address_of`.
        limits: what the image may have at most.
        name: names the image in errors.
        reads_files: whether to read files of this machine; if not, paths are refused.

    Raises:
        InputError: the part does not say where its image is, or it cannot be read.
        ConfigError: Pillow is not installed.
    """
    source = _source_of(message_part, name)
    location = message_part[source]
    if isinstance(location, bytes):
        return decode_image(location, limits, name)
    if source == "image" and not isinstance(location, str | os.PathLike):
        if not is_pillow_image(location):
            raise InputError(f"{name} is {type(location).__name__}; give an image of Pillow, a path or an address")
        return check_image(location, limits, name)
    if not isinstance(location, str | os.PathLike):
        raise InputError(f"{name} has {type(location).__name__} as its {source}; give a text")
    text = str(location)
    if source == "base64":
        return decode_image(_from_base64(text, limits, name), limits, name)
    if text[:5].lower() == "data:":
        return decode_image(_from_data_url(text, limits, name), limits, name)
    if not reads_files:
        raise InputError(f"{name} is no data URL; send data:image/png;base64,...")
    return decode_image(read_file(_path(text, name), limits, name), limits, name)


def _source_of(message_part: Mapping[str, Any], name: str) -> str:
    """The entry of a part that says where its image is.

    Raises:
        InputError: there is none, or more than one.
    """
    given_sources = [source for source in SOURCES if message_part.get(source) is not None]
    if len(given_sources) != 1:
        raise InputError(f"{name} has {', '.join(given_sources) or 'no source'}; give one of {', '.join(SOURCES)}")
    return given_sources[0]


def _path(text: str, name: str) -> Path:
    """The path of a file, which may be given as an address.

    Raises:
        InputError: the address is of another kind.
    """
    scheme, separator, _ = text.partition("://")
    if not separator:
        return Path(text)
    if scheme.lower() != "file":
        raise InputError(f"{name} is at an address of {scheme[:20]!r}; give one of http:// or https://")
    return Path(url2pathname(urlsplit(text).path))


def _from_data_url(url: str, limits: ImageLimits, name: str) -> bytes:
    match = DATA_URL.match(url)
    if match is None:
        raise InputError(f"{name} is no data URL that can be read; send data:image/png;base64,...")
    content = url[match.end() :]
    is_escaped = "%" in content
    if is_escaped and len(content) > MOST_ESCAPED:
        raise InputError(f"{name} is a long data URL with escapes; send data:image/png;base64,...")
    if ";base64" in match["options"].lower():
        return _from_base64(unquote(content) if is_escaped else content, limits, name)
    check_bytes(len(content), limits, name)
    return unquote_to_bytes(content)


def _from_base64(text: str, limits: ImageLimits, name: str) -> bytes:
    """Decode base64, which may have line breaks; its size is checked before.

    Raises:
        InputError: it is too long or not valid.
    """
    check_bytes(len(text) * 3 // 4 - 3, limits, name)
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except ValueError as error:
        raise InputError(f"{name} is not valid base64: {error}") from None
