"""Where the image of a message's part is: as transformers' `apply_chat_template` takes it, and data URLs."""

import base64
from urllib.parse import quote

import pytest
from PIL import Image

from drafttree.core.errors import InputError
from drafttree.images.image_file import ImageLimits
from drafttree.images.image_source import address_of, open_image
from helpers.image_bytes import encoded

LIMITS = ImageLimits(bytes=100_000, pixels=10_000)
IMAGE = Image.new("RGB", (3, 2), (1, 2, 3))
CONTENT = encoded(IMAGE)
BASE64 = base64.b64encode(CONTENT).decode()


def opened(**part):
    return open_image({"type": "image", **part}, LIMITS, "image 1")


@pytest.mark.parametrize(
    "part",
    [
        {"image": IMAGE},
        {"image": CONTENT},
        {"base64": BASE64},
        {"url": f"data:image/png;base64,{BASE64}"},
        {"image": f"data:;base64,{BASE64}"},
        {"url": f"DATA:image/png;charset=x;BASE64,{BASE64}"},
        {"url": f"data:image/png;base64,{BASE64[:40]}\n{BASE64[40:]}"},
        {"url": f"data:image/png;base64,{BASE64.replace('+', '%2B').replace('/', '%2F').replace('=', '%3D')}"},
        {"url": f"data:image/png,{quote(CONTENT)}"},
    ],
)
def test_an_image_is_found(part):
    image = opened(**part)
    assert image.size == (3, 2)
    assert image.getpixel((0, 0)) == (1, 2, 3)


def test_a_path_is_found(tmp_path):
    file = tmp_path / "a b.png"
    file.write_bytes(CONTENT)
    paths = [{"path": file}, {"path": str(file)}, {"image": file}, {"image": str(file)}]
    for part in [*paths, {"url": f"file://{quote(str(file))}"}]:
        assert opened(**part).size == (3, 2)


@pytest.mark.parametrize("part", [{"url": "https://example.org/a.png"}, {"image": "HTTP://example.org/a.png"}])
def test_an_address_is_found(part):
    assert address_of(part, "image 1") == next(iter(part.values()))
    assert address_of({"path": "a.png"}, "image 1") is None


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({}, "image 1 has no source; give one of image, url, path, base64"),
        ({"image": IMAGE, "url": "a"}, "image 1 has image, url; give one of"),
        ({"image": 3}, "image 1 is int; give an image of Pillow, a path or an address"),
        ({"path": 3}, "image 1 has int as its path; give a text"),
        ({"url": "ftp://example.org/a.png"}, "image 1 is at an address of 'ftp'; give one of http:// or https://"),
        ({"path": "/dev/zero"}, "image 1 is no file"),
        ({"path": "/"}, "image 1 is no file"),
        ({"path": "a\0b"}, "image 1 cannot be read"),
        ({"path": "a\ud800"}, "image 1 cannot be read"),
        ({"base64": "é"}, "image 1 is not valid base64"),
        ({"url": "data:," + "%" * 2_000_000}, "image 1 is a long data URL with escapes"),
        ({"url": "data:nonsense"}, "image 1 is no data URL that can be read"),
        ({"base64": "a*b"}, "image 1 is not valid base64"),
        ({"base64": "A" * 200_000}, "image 1 has 149,997 bytes; at most 100,000 are read"),
        ({"url": "data:text/plain,hello"}, "image 1 is no image that can be read"),
    ],
)
def test_what_is_no_image_is_refused_by_name(part, message):
    with pytest.raises(InputError, match=message):
        opened(**part)


@pytest.mark.parametrize("entry", ["image", "url", "path"])
def test_files_of_this_machine_are_refused_where_others_ask(entry, tmp_path):
    file = tmp_path / "a.png"
    file.write_bytes(CONTENT)
    for path in (str(file), f"file://{file}"):
        with pytest.raises(InputError, match="image 1 is no data URL; send data:image/png;base64,"):
            open_image({"type": "image", entry: path}, LIMITS, "image 1", reads_files=False)
