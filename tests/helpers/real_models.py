"""Models that people have, in the folder that the variable `DRAFTTREE_REAL_MODELS` names.

Each is there as a GGUF file, NAME.gguf, and as a folder, NAME.
"""

import os
from pathlib import Path

import pytest

VARIABLE = "DRAFTTREE_REAL_MODELS"
NAMES = ("gemma-270m", "qwen-coder-0.5b", "qwen-coder-1.5b")


def gguf_file(name: str) -> Path:
    """The GGUF file of a model; without it the test is skipped."""
    return _found(f"{name}.gguf")


def model_folder(name: str) -> Path:
    """The folder of a model; without it the test is skipped."""
    return _found(name)


def _found(name: str) -> Path:
    folder = os.environ.get(VARIABLE)
    if not folder:
        pytest.skip(f"{VARIABLE} names no folder with real models")
    path = Path(folder) / name
    if not path.exists():
        pytest.skip(f"{path} is missing")
    return path
