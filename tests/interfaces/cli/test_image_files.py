"""Image files on the command line: what a terminal pastes, and what a message gets."""

import base64
import os
from pathlib import Path

import pytest
from PIL import Image

from drafttree.core.errors import InputError
from drafttree.interfaces.cli.image_files import ImageFile, message_content, pasted_paths
from helpers.image_bytes import encoded

PNG = encoded(Image.new("RGB", (4, 3), "red"))


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The working folder and home, with files whose names are hard to write."""
    for name in ("a.png", "my cat.png", "it's.png"):
        (tmp_path / name).write_bytes(PNG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.skipif(os.name == "nt", reason="backslashes")
@pytest.mark.parametrize(
    ("line", "names"),
    [
        ("a.png", ["a.png"]),
        ("~/a.png", ["a.png"]),
        ("my cat.png", ["my cat.png"]),
        ("my\\ cat.png", ["my cat.png"]),
        ("'my cat.png'", ["my cat.png"]),
        ('"~/my cat.png"', ["my cat.png"]),
        ("it's.png", ["it's.png"]),
        ("'it'\\''s.png'", ["it's.png"]),
        ("file://FOLDER/my%20cat.png", ["my cat.png"]),
        ("a.png 'my cat.png'", ["a.png", "my cat.png"]),
        ("a.png gone.png", ["a.png", "gone.png"]),
        ("'gone cat.png'", ["gone cat.png"]),
        ("gone cat.png", ["gone cat.png"]),
        ("gone cat's.png", ["gone cat's.png"]),
        ("a#1.png", ["a#1.png"]),
    ],
)
def test_paths_are_found_as_terminals_paste_them(folder, line, names):
    paths = pasted_paths(line.replace("FOLDER", str(folder)))
    assert [path.name for path in paths] == names
    assert [path.exists() for path in paths] == ["gone" not in name and "#" not in name for name in names]


def test_a_name_that_no_file_can_have_is_not_found():
    for line in ("x" * 5000, "a\0b"):
        (path,) = pasted_paths(line)
        with pytest.raises(InputError, match="cannot be read"):
            ImageFile.read(path)


def test_a_message_has_its_images_before_its_text(folder):
    image = ImageFile.read(Path("a.png"))
    os.remove("a.png")
    assert image.description == "a.png (4 x 3)"
    url = f"data:image/png;base64,{base64.b64encode(PNG).decode()}"
    assert message_content("What?", [image]) == [{"type": "image", "url": url}, {"type": "text", "text": "What?"}]
    assert message_content("What?", []) == "What?"


def test_what_is_no_image_is_refused_by_its_path(folder):
    (folder / "notes.txt").write_text("no image")
    with pytest.raises(InputError, match=r"^notes\.txt is no image that can be read; send PNG"):
        ImageFile.read(Path("notes.txt"))
    with pytest.raises(InputError, match=r"^gone\.png cannot be read: No such file or directory"):
        ImageFile.read(Path("gone.png"))
    with pytest.raises(InputError, match=r"is no file \("):
        ImageFile.read(folder)
