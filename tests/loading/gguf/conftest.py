"""A small model in a GGUF file."""

import pytest

from testing import gguf_files, tiny


@pytest.fixture(scope="session")
def llama():
    return tiny.from_config(gguf_files.CONFIGS["llama"]())


@pytest.fixture
def path(llama, tmp_path):
    return gguf_files.write(llama, tmp_path / "model.gguf")
