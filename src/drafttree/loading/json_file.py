"""Reads JSON files that users name."""

import json
from pathlib import Path
from typing import Any

from drafttree.core.errors import InputError


def read_json_file(path: str | Path) -> Any:
    """The contents of a JSON file.

    Raises:
        InputError: the file cannot be read, or is not JSON in UTF-8; the message names the place.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    except json.JSONDecodeError as error:
        raise InputError(f"{path}: not JSON ({error.msg}, line {error.lineno})") from None
    except RecursionError:
        raise InputError(f"{path}: its JSON is nested too deeply") from None
