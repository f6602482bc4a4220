"""Images of users: decoded within limits, refused by name before memory is filled."""

import io

import numpy as np
import pytest
from PIL import Image

from drafttree.core.errors import InputError
from drafttree.images.image_file import MOST_ASPECT, ImageLimits, check_image, decode_image, read_file
from helpers.image_bytes import bomb, encoded

LIMITS = ImageLimits(bytes=100_000, pixels=10_000)
PIXELS = np.random.default_rng(0).integers(0, 255, (20, 30, 3), dtype=np.uint8)


def test_the_pixels_are_those_of_the_file():
    image = decode_image(encoded(Image.fromarray(PIXELS)), LIMITS, "image 1")
    assert image.mode == "RGB"
    assert np.array_equal(np.asarray(image), PIXELS)


@pytest.mark.parametrize("mode", ["L", "RGBA", "P", "1", "CMYK"])
def test_every_mode_becomes_rgb(mode):
    form = "JPEG" if mode == "CMYK" else "PNG"
    image = Image.fromarray(PIXELS).convert(mode)
    assert decode_image(encoded(image, form), LIMITS, "image 1").mode == "RGB"


def test_an_image_is_turned_as_its_camera_says():
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    content = encoded(Image.fromarray(PIXELS), "JPEG", exif=exif)
    assert decode_image(content, LIMITS, "image 1").size == (20, 30)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "image 1 is no image that can be read; send PNG, JPEG, WebP, GIF or BMP"),
        (b"<svg></svg>", "image 1 is no image that can be read"),
        (encoded(Image.fromarray(PIXELS))[:200], "image 1 is damaged or cut"),
        (encoded(Image.fromarray(PIXELS), "JPEG")[:-100], "image 1 is damaged or cut"),
        (b"\0" * 100_001, "image 1 has 100,001 bytes; at most 100,000 are read"),
        (bomb(50_000, 50_000), "image 1 has .*pixels"),
        (bomb(101, 100), "image 1 has 101 x 100 pixels; at most 10,000 are read, so make it smaller"),
    ],
)
def test_files_that_cannot_be_read_are_refused_by_name(content, message):
    with pytest.raises(InputError, match=message):
        decode_image(content, LIMITS, "image 1")


def test_an_animated_image_is_refused():
    frames = [Image.new("L", (4, 4), value) for value in (0, 90, 200)]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(InputError, match=r"image 1 is animated \(3 frames\); send one frame"):
        decode_image(content, LIMITS, "image 1")


def test_the_first_picture_of_a_telephones_photo_is_read():
    content = encoded(Image.fromarray(PIXELS), "MPO", save_all=True, append_images=[Image.new("RGB", (15, 10))])
    assert decode_image(content, LIMITS, "image 1").size == (30, 20)


def test_an_image_of_pillow_has_the_same_limits():
    with pytest.raises(InputError, match="at most 10,000 are read"):
        check_image(Image.new("RGB", (200, 200)), LIMITS, "image 1")


def test_a_file_is_read_by_its_path(tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(encoded(Image.fromarray(PIXELS)))
    assert read_file(file, LIMITS, "image 1") == file.read_bytes()
    with pytest.raises(InputError, match="image 1 cannot be read: No such file"):
        read_file(tmp_path / "b.png", LIMITS, "image 1")
    file.write_bytes(b"\0" * 100_001)
    with pytest.raises(InputError, match="image 1 has 100,001 bytes"):
        read_file(file, LIMITS, "image 1")


@pytest.mark.parametrize("form", ["TIFF", "ICO", "EPS", "PCX"])
def test_formats_that_run_programs_or_hide_their_size_are_not_read(form):
    with pytest.raises(InputError, match="image 1 is no image that can be read"):
        decode_image(encoded(Image.fromarray(PIXELS), form), LIMITS, "image 1")


def test_an_image_that_is_much_longer_than_wide_is_refused():
    decode_image(encoded(Image.new("L", (1, MOST_ASPECT))), LIMITS, "image 1")
    with pytest.raises(InputError, match="image 1 has 101 x 1 pixels; one side may be at most 100 times the other"):
        decode_image(encoded(Image.new("L", (MOST_ASPECT + 1, 1))), LIMITS, "image 1")


@pytest.mark.parametrize("cut", range(1, 60, 7))
def test_a_second_frame_that_is_cut_is_no_traceback(cut):
    frames = [Image.new("L", (40, 40), value) for value in (0, 90)]
    content = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    with pytest.raises(InputError, match="image 1"):
        decode_image(content[:-cut], LIMITS, "image 1")


def test_a_closed_image_is_refused():
    image = Image.open(io.BytesIO(encoded(Image.fromarray(PIXELS))))
    image.close()
    with pytest.raises(InputError, match="image 1 is damaged or cut"):
        check_image(image, LIMITS, "image 1")
