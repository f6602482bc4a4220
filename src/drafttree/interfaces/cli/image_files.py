"""Image files that are attached to messages on the command line."""

import base64
import mimetypes
import os
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drafttree.core.errors import InputError
from drafttree.images.image_file import ImageLimits, decode_image, read_file

if TYPE_CHECKING:
    from drafttree.engine.decoder import Decoder


class ImageFile(NamedTuple):
    """An image file as it was when it was attached.

    Attributes:
        path: where it was.
        content: its bytes.
        size: width and height in pixels, turned as its EXIF orientation says.
    """

    path: Path
    content: bytes
    size: tuple[int, int]

    @classmethod
    def read(cls, path: Path) -> "ImageFile":
        """Read and check a file.

        Raises:
            InputError: there is no such file, it is too large, or no image that can be read.
            ConfigError: Pillow is not installed.
        """
        limits = ImageLimits()
        content = read_file(path, limits, path.name)
        return cls(path, content, decode_image(content, limits, str(path)).size)

    @property
    def description(self) -> str:
        """The name of the file and its size, for a list."""
        width, height = self.size
        return f"{self.path.name} ({width} x {height})"

    @property
    def part(self) -> dict[str, str]:
        """The image as a part of a message. It has the content, so later changes of the file do not matter."""
        media_type = mimetypes.guess_type(self.path.name)[0] or "application/octet-stream"
        return {"type": "image", "url": f"data:{media_type};base64,{base64.b64encode(self.content).decode()}"}


def message_content(text: str, images: Sequence[ImageFile]) -> str | list[dict[str, Any]]:
    """The content of a message: its images, then its text; the text alone without images."""
    if not images:
        return text
    return [*(image.part for image in images), {"type": "text", "text": text}]


def check_reads_images(decoder: "Decoder") -> None:
    """Check that a decoder can read images, before one is asked about.

    Raises:
        InputError: its target reads no images.
        ConfigError: an option of the target does not work with images.
        ModelError: the model's processor cannot be loaded, or its layers do not work with images.
    """
    from drafttree.engine import compatibility
    from drafttree.loading.names import target_name
    from drafttree.models import TargetModel

    target = decoder.target
    if not isinstance(target, TargetModel) or target.image_token is None:
        raise InputError(f"{target_name(target)} reads no images; name a model that does with --target")
    compatibility.check_images(target)
    if decoder.image_reader:
        _ = decoder.image_reader.processor  # loads it


def pasted_paths(text: str) -> list[Path]:
    """The paths in a line, as typed, pasted or dropped into a terminal.

    Terminals put quotes around paths, or backslashes before spaces; some paste file:// addresses. "~" is the home
    folder. A line that is the path of a file is that file alone, whatever spaces it has.
    """
    whole_path = _path(text)
    if os.path.exists(whole_path):  # unlike Path.exists, it takes names that no file can have
        return [whole_path]
    try:
        paths = [*map(_path, _words(text))]
    except ValueError:  # an apostrophe in a name
        return [whole_path]
    return paths if len(paths) == 1 or any(map(os.path.exists, paths)) else [whole_path]


def _words(text: str) -> list[str]:
    """The words of a line, without quotes and backslashes, which on Windows are part of paths.

    Raises:
        ValueError: a quote is not closed.
    """
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    if os.name == "nt":
        lexer.escape = ""
    return [*lexer]


def _path(word: str) -> Path:
    """The path that a word names."""
    if word.startswith("file://"):
        from urllib.parse import urlsplit
        from urllib.request import url2pathname

        return Path(url2pathname(urlsplit(word).path))
    return Path(os.path.expanduser(word))
