"""Checks the file to write before a model runs, without heavy imports."""

import os
from pathlib import Path

from drafttree.core.errors import InputError


def check_output(path: Path) -> None:
    """Refuse a path at which a page cannot be written.

    Raises:
        InputError: the path is a folder, its folder does not exist, or it is not writable.
    """
    if path.is_dir():
        raise InputError(f"--output {str(path)!r} is a folder; name a file in it, such as {str(path / 'trace.html')!r}")
    if not path.parent.is_dir():
        raise InputError(
            f"--output {str(path)!r} cannot be written, because its folder does not exist; name another file"
        )
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise InputError(f"--output {str(path)!r} cannot be written: permission denied; name another file")
