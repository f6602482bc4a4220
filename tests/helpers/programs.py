"""Programs of the repository that are no modules of a package."""

import importlib.util
from pathlib import Path
from typing import Any


def program(path: Path) -> Any:
    """The module that a file is, imported anew."""
    spec = importlib.util.spec_from_file_location(f"{path.stem}_program", path)
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
