"""Decodes images that users send, within limits that are checked before memory is filled."""

import io
import stat
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafttree.core.errors import ConfigError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image

FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP")
"""Formats that are read. Others run programs (EPS), or hold larger images than their headers say (TIFF, ICO, ICNS)."""
ANIMATED = {"GIF", "PNG", "WEBP"}
"""Formats whose frames are an animation. Those of a JPEG are smaller copies (MPO), as telephones write them."""
MOST_ASPECT = 100
"""The most times that an image may be as long as wide, since processors enlarge the shorter side."""


@dataclass(frozen=True)
class ImageLimits:
    """What an image may have at most.

    Attributes:
        bytes: of its file.
        pixels: width times height, before the model's processor makes it smaller.
    """

    bytes: int = 20_000_000
    pixels: int = 40_000_000


def decode_image(content: bytes, limits: ImageLimits, name: str) -> "Image":
    """Decode the file of an image to RGB, turned as its EXIF orientation says.

    Args:
        content: the file.
        limits: what it may have at most.
        name: names the image in errors.

    Raises:
        InputError: the file is too large, of a format that is not read, animated, damaged or cut, or its image has too
            many pixels or is too long.
        ConfigError: Pillow is not installed.
    """
    pillow = _pillow()
    check_bytes(len(content), limits, name)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.Image.DecompressionBombWarning)  # the limit below is ours
            image = pillow.Image.open(io.BytesIO(content), formats=FORMATS)
    except pillow.Image.DecompressionBombError:
        raise InputError(f"{name} has more than {limits.pixels:,} pixels; make it smaller") from None
    except Exception as error:  # decoders raise errors of many kinds for damaged files
        raise InputError(f"{name} is no image that can be read; send PNG, JPEG, WebP, GIF or BMP") from error
    return check_image(image, limits, name)


def check_image(image: "Image", limits: ImageLimits, name: str) -> "Image":
    """An image of Pillow as RGB, turned as its EXIF orientation says; errors are those of `decode_image`."""
    pillow = _pillow()
    width, height = image.size
    if width * height > limits.pixels:
        raise InputError(
            f"{name} has {width} x {height} pixels; at most {limits.pixels:,} are read, so make it smaller"
        )
    if max(width, height) > MOST_ASPECT * min(width, height):
        raise InputError(f"{name} has {width} x {height} pixels; one side may be at most {MOST_ASPECT} times the other")
    try:
        frames = getattr(image, "n_frames", 1) if image.format in ANIMATED else 1
        converted_image = pillow.ImageOps.exif_transpose(image).convert("RGB")
    except Exception as error:  # as above
        raise InputError(f"{name} is damaged or cut: {error}") from error
    if frames > 1:
        raise InputError(f"{name} is animated ({frames} frames); send one frame")
    return converted_image


def check_bytes(size: int, limits: ImageLimits, name: str) -> None:
    """Refuse a file that is too large.

    Raises:
        InputError: it has too many bytes.
    """
    if size > limits.bytes:
        raise InputError(f"{name} has {size:,} bytes; at most {limits.bytes:,} are read")


def read_file(path: Path, limits: ImageLimits, name: str) -> bytes:
    """The content of an image's file.

    Raises:
        InputError: there is no such file, or it is too large.
    """
    content = b""
    try:
        status = path.stat()
        is_file = stat.S_ISREG(status.st_mode)  # devices have no size, and pipes may not answer
        if is_file and status.st_size <= limits.bytes:
            content = path.read_bytes()
    except (OSError, ValueError) as error:  # the latter for names that no file can have
        reason = getattr(error, "strerror", None) or error
        raise InputError(f"{name} cannot be read: {reason} ({str(path)!a})") from error
    if not is_file:
        raise InputError(f"{name} is no file ({str(path)!r})")
    check_bytes(status.st_size, limits, name)
    return content


def is_pillow_image(value: object) -> bool:
    """Whether a value is an image of Pillow."""
    return isinstance(value, _pillow().Image.Image)


def _pillow() -> Any:
    """Pillow, which the processors of transformers need too.

    Raises:
        ConfigError: it is not installed.
    """
    try:
        import PIL.Image
        import PIL.ImageOps
    except ImportError:
        raise ConfigError("images need Pillow; run pip install 'drafttree[images]'") from None
    return PIL
