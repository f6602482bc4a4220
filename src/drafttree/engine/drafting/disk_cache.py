"""Keeps measured costs of this machine as JSON files in the user's cache folder, one file per key.

The cache only saves time, so a read-only home or a broken file is not an error.
"""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path


def read_cached(key: str) -> dict[str, Any] | None:
    """Return the value of a key; None if there is none, or it cannot be read."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        entry = json.loads(_file(key).read_text(encoding="utf-8"))
        if isinstance(entry, dict) and entry.get("key") == key and isinstance(entry.get("value"), dict):
            return entry["value"]
    return None


def write_cached(key: str, value: dict[str, Any]) -> None:
    """Store a value if possible. Other processes see the old value or the new one, never a part of it."""
    with contextlib.suppress(OSError):
        path = _file(key)
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
            json.dump({"key": key, "value": value}, file)
        os.replace(file.name, path)


def _file(key: str) -> Path:
    return user_cache_path("drafttree") / "costs" / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
