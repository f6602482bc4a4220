"""Files of JSON lines that are written as results come, and read again after an interruption."""

import json
import os
from pathlib import Path

from drafttree.core.errors import InputError


def whole_lines(path: Path) -> list[str]:
    """The lines of a file, which is made if there is none; a last line that was cut short is removed.

    Raises:
        InputError: it cannot be read and written, or is not UTF-8 text.
    """
    try:
        with path.open("a+b") as file:
            file.seek(0)
            found = file.read()
            end = found.rfind(b"\n") + 1
            file.truncate(end)
        return found[:end].decode().split("\n")[:-1]
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; name another") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start}); name another") from None


def append_line(path: Path, value: object) -> None:
    """Add a value as one line, which is on the disk when this returns.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(f"{json.dumps(value)}\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}; name another") from error
