"""Finds and removes a worker's files in the folder of Dynamo's file discovery."""

import os
import tempfile
from pathlib import Path


def folder() -> Path:
    """The folder in which frontend and workers of this machine find each other."""
    return Path(os.environ.get("DYN_FILE_KV") or Path(tempfile.gettempdir()) / "dynamo_store_kv")


def entries(worker_id: int) -> list[Path]:
    """The files that announce a worker."""
    return sorted(folder().glob(f"v1/**/*%2F{worker_id:x}*"))


def remove(worker_id: int) -> None:
    """Remove a dead worker's files at once. Dynamo itself would wait for ten seconds without a heartbeat."""
    for entry in entries(worker_id):
        entry.unlink(missing_ok=True)
