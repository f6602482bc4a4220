"""Files and folders that take their place as a whole or leave no trace, and one line where the disk is full."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FULL = re.compile(r"no space left|quota exceeded", re.IGNORECASE)


class DiskFull(OSError):
    """There is no room for what was to be written."""


@contextmanager
def written(path: Path) -> Iterator[BinaryIO]:
    """A file to write that takes the place of `path` once it is complete.

    Raises:
        DiskFull: there is no room for it.
    """
    with _partial(path) as partial:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """A folder to fill that takes the place of `folder` once it is complete.

    Raises:
        DiskFull: there is no room for it.
    """
    with _partial(folder) as partial:
        partial.mkdir(parents=True)
        yield partial
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Where to write what is to become `path`; nothing is left there afterwards."""
    partial = path.with_name(path.name + ".partial")
    _remove(partial)
    try:
        try:
            yield partial
        finally:
            _remove(partial)
    except Exception as error:
        if not _full(error):
            raise
        free = shutil.disk_usage(path.parent).free / 1e6
        raise DiskFull(
            f"the disk is full: {path} could not be written, {free:,.1f} MB are free; make room, and the same command "
            "goes on"
        ) from error


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)


def _full(error: BaseException | None) -> bool:
    """Torch raises an error of its own after the disk's, and safetensors quotes it."""
    return error is not None and (bool(FULL.search(str(error))) or _full(error.__context__))
