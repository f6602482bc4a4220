"""What a worker leaves in the folder of Dynamo's file discovery, and how it is removed."""

import os
import tempfile
from pathlib import Path


def folder() -> Path:
    """Where frontend and workers of this machine find each other."""
    return Path(os.environ.get("DYN_FILE_KV") or Path(tempfile.gettempdir()) / "dynamo_store_kv")


def entries(worker_id: int) -> list[Path]:
    """The files by which a worker is known."""
    return sorted(folder().glob(f"v1/**/*%2F{worker_id:x}*"))


def remove(worker_id: int) -> None:
    """Make a dead worker unknown at once; Dynamo does so ten seconds after its last sign of life."""
    for entry in entries(worker_id):
        entry.unlink(missing_ok=True)
