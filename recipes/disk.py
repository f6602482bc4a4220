"""Writes files and folders atomically, and reports a full disk in one line."""

import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

FULL_DISK = re.compile(r"no space left|quota exceeded", re.IGNORECASE)


class DiskFull(OSError):
    """The disk is full."""


@contextmanager
def atomic_file(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` once it is complete.

    Raises:
        DiskFull: the disk is full.
    """
    with _partial(path) as partial:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Make a folder that replaces `folder` once it is complete.

    Raises:
        DiskFull: the disk is full.
    """
    with _partial(folder) as partial:
        partial.mkdir(parents=True)
        yield partial
        shutil.rmtree(folder, ignore_errors=True)
        partial.rename(folder)


@contextmanager
def _partial(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and remove what is left of it afterwards."""
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
    """Whether an error or its context means a full disk: torch raises its own error after it, safetensors quotes it."""
    return error is not None and (bool(FULL_DISK.search(str(error))) or _full(error.__context__))
