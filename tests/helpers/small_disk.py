"""A disk that fills while a recipe writes."""

import errno
from pathlib import Path


class SmallFile:
    def __init__(self, file, disk: "SmallDisk") -> None:
        self.file, self.disk = file, disk

    def __enter__(self):
        return self

    def __exit__(self, *error) -> None:
        self.file.close()

    def write(self, content) -> int:
        self.disk.room -= memoryview(content).nbytes
        if self.disk.room < 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(content)

    def flush(self) -> None:
        self.file.flush()


class SmallDisk:
    """A disk with room for some bytes in files with a name prefix; every library then fails as on a full disk."""

    def __init__(self, monkeypatch, room: int, names: str = "") -> None:
        self.room, opened = room, Path.open

        def limited(path, mode="r", *others, **more):
            file = opened(path, mode, *others, **more)
            return SmallFile(file, self) if mode == "wb" and path.name.startswith(names) else file

        monkeypatch.setattr(Path, "open", limited)
