"""A cache on disk for what was measured on this machine, in the user's cache folder."""

import contextlib
import hashlib
import json
import os
import tempfile
from pathlib import Path
from typing import Any

from platformdirs import user_cache_path


class DiskCache:
    """JSON objects by key, one file each; a file that cannot be read or written counts as not there.

    A cache only saves time, so a read-only home or a broken file is no error.

    Args:
        kind: kind of the values, which is the name of their folder.
    """

    def __init__(self, kind: str) -> None:
        self.folder = user_cache_path("drafttree") / kind

    def get(self, key: str) -> dict[str, Any] | None:
        """The value of a key, None where there is none."""
        with contextlib.suppress(OSError, ValueError, RecursionError):
            found = json.loads(self._file(key).read_text(encoding="utf-8"))
            if isinstance(found, dict) and found.get("key") == key and isinstance(found.get("value"), dict):
                return found["value"]
        return None

    def put(self, key: str, value: dict[str, Any]) -> None:
        """Keep a value; another process sees the old one or the new one, never a part."""
        with contextlib.suppress(OSError):
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile("w", dir=self.folder, delete=False, encoding="utf-8") as file:
                json.dump({"key": key, "value": value}, file)
            os.replace(file.name, self._file(key))

    def _file(self, key: str) -> Path:
        return self.folder / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"
