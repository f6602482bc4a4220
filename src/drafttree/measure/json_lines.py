"""Files of JSON lines, written as results come and read again after an interruption."""

import json
import os
from io import FileIO
from pathlib import Path

from drafttree.core.errors import InputError


class UnwritableError(InputError):
    """Raised if a file of results cannot be written, for example because the disk is full."""


def whole_lines(path: Path) -> list[str]:
    """Read the lines of a file, which is created if missing; an incomplete last line is removed from it.

    Raises:
        InputError: the file cannot be read and written, or is not UTF-8 text.
    """
    try:
        with path.open("a+b") as file:
            file.seek(0)
            content = file.read()
            end = content.rfind(b"\n") + 1
            file.truncate(end)
        return content[:end].decode().split("\n")[:-1]
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; name another") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); name another") from None


def append_line(path: Path, value: object) -> None:
    """Append a value as one line, which is on the disk when this returns.

    Raises:
        UnwritableError: the file cannot be written; it stays unchanged.
    """
    try:
        with path.open("ab", buffering=0) as file:
            _append(file, f"{json.dumps(value)}\n".encode())
    except OSError as error:
        raise UnwritableError(f"{path}: cannot be written: {error.strerror}; name another") from error


def _append(file: FileIO, line: bytes) -> None:
    """Append a line, or nothing if it does not fit on the disk."""
    end = file.seek(0, os.SEEK_END)
    try:
        while line:
            line = line[file.write(line) :]
        os.fsync(file.fileno())
    except OSError:
        file.truncate(end)
        raise
