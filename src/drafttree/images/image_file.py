"""Decodes images that users send, within limits that are checked before memory is filled."""

import io
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from drafttree.core.errors import ConfigError, InputError

if TYPE_CHECKING:
    from PIL.Image import Image

ANIMATED = {"GIF", "PNG", "WEBP", "AVIF"}
"""Formats whose frames are an animation. Frames of others are pages, or the copies in photos of telephones (MPO)."""


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
        InputError: the file is too large, no image that Pillow can read, animated, damaged or cut, or has too many
            pixels.
        ConfigError: Pillow is not installed.
    """
    pillow = _pillow()
    if len(content) > limits.bytes:
        raise InputError(f"{name} has {len(content):,} bytes; at most {limits.bytes:,} are read")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", pillow.Image.DecompressionBombWarning)  # the limit below is ours
            image = pillow.Image.open(io.BytesIO(content))
    except pillow.Image.DecompressionBombError:
        raise InputError(f"{name} has more than {limits.pixels:,} pixels; make it smaller") from None
    except (pillow.UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise InputError(f"{name} is no image that can be read; send PNG, JPEG, WebP or GIF") from error
    return _checked(image, limits, name)


def check_image(image: "Image", limits: ImageLimits, name: str) -> "Image":
    """An image of Pillow as RGB, turned as its EXIF orientation says; errors are those of `decode_image`."""
    return _checked(image, limits, name)


def read_image(path: str | Path, limits: ImageLimits, name: str) -> "Image":
    """Decode the file at a path.

    Raises:
        InputError: there is no such file, or an error of `decode_image`.
    """
    file = Path(path)
    try:
        size = file.stat().st_size
        if size > limits.bytes:
            raise InputError(f"{name} has {size:,} bytes; at most {limits.bytes:,} are read")
        content = file.read_bytes()
    except OSError as error:
        raise InputError(f"{name} cannot be read: {error.strerror or error} ({str(path)!r})") from error
    return decode_image(content, limits, name)


def _checked(image: Any, limits: ImageLimits, name: str) -> "Image":
    pillow = _pillow()
    width, height = image.size
    if width * height > limits.pixels:
        raise InputError(
            f"{name} has {width} x {height} pixels; at most {limits.pixels:,} are read, so make it smaller"
        )
    if image.format in ANIMATED and getattr(image, "n_frames", 1) > 1:
        raise InputError(f"{name} is animated ({image.n_frames} frames); send one frame")
    try:
        return pillow.ImageOps.exif_transpose(image).convert("RGB")
    except (OSError, ValueError, SyntaxError, MemoryError) as error:
        raise InputError(f"{name} is damaged or cut: {error}") from error


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
