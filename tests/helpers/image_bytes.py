"""Files of images."""

import io
import struct
import zlib

from PIL import Image


def encoded(image: Image.Image, form: str = "PNG", **options) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, form, **options)
    return buffer.getvalue()


def bomb(width: int, height: int) -> bytes:
    """A small PNG file that says that it is large."""
    content = encoded(Image.new("L", (1, 1)))
    header = content[16:29]
    larger = struct.pack(">II", width, height) + header[8:]
    checksum = struct.pack(">I", zlib.crc32(b"IHDR" + larger))
    return content.replace(header + content[29:33], larger + checksum)
