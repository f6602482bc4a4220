"""A model folder to load, or to damage."""

from pathlib import Path

import pytest

from testing import tiny
from testing.tokenizers import words


@pytest.fixture
def folder(tmp_path) -> Path:
    """A complete model folder."""
    tiny.build("llama").save_pretrained(tmp_path)
    words("a", "b", "c").save_pretrained(tmp_path)
    return tmp_path
