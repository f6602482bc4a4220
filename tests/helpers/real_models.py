"""Models that people have, in the folder that the variable `DRAFTTREE_REAL_MODELS` names: GGUF files, NAME.gguf."""

import os
from pathlib import Path

import pytest

VARIABLE = "DRAFTTREE_REAL_MODELS"
NAMES = ("gemma-270m", "qwen-coder-0.5b", "qwen-coder-1.5b")


def gguf_file(name: str) -> Path:
    """The GGUF file of a model; without it the test is skipped."""
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no folder with real models")
    path = Path(folder) / f"{name}.gguf"
    if not path.is_file():
        pytest.skip(f"{path} is missing")
    return path
