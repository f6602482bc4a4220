"""Results of the finished runs of one command, kept in a folder, from which the same command goes on."""

import functools
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from drafttree.core.errors import InputError
from drafttree.evaluation.json_lines import append_line, whole_lines

COMMAND, RUNS = "command.json", "runs.jsonl"
Result = TypeVar("Result")


class RunStore:
    """What has been run so far.

    One without a folder keeps nothing. Measurements take a store; `RunStore()` is what they use where none is given.

    Args:
        folder: where to keep the results, in JSON lines that are written as runs finish.
        command: everything that decides what is run; a folder is for one command.
        partial: whether Ctrl-C ends a measurement with what is finished. If not, it raises KeyboardInterrupt.

    Attributes:
        folder: as given.
        interrupted: whether Ctrl-C has ended a measurement.

    Raises:
        InputError: the folder holds the runs of another command or something else, or cannot be written.
    """

    def __init__(
        self, folder: Path | None = None, command: Mapping[str, Any] | None = None, *, partial: bool = False
    ) -> None:
        self.interrupted = False
        self.folder, self._partial = folder, partial
        self._kept: dict[str, Any] = {}
        if folder:
            try:
                self._open(folder, {"versions": _versions(), **(command or {})})
            except OSError as error:
                raise _refusal(folder, f"cannot be written: {error.strerror}") from error

    def run(self, key: tuple[str | int | float, ...], kind: Any, work: Callable[[], Result]) -> Result:
        """The result of a run: the one that is kept, or that of `work`, which is kept from then on.

        Args:
            key: of the run.
            kind: the type of its result, as pydantic knows it: dataclasses, lists, numbers ...
            work: runs it.
        """
        if (name := json.dumps(key)) in self._kept:
            return _adapter(kind).validate_python(self._kept[name])
        result = work()
        if self.folder:
            kept = {"run": key, "result": _adapter(kind).dump_python(result, mode="json")}
            append_line(self.folder / RUNS, kept)
        return result

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Run a measurement's loop; Ctrl-C ends it, or raises unless what is finished is wanted."""
        try:
            yield
        except KeyboardInterrupt:
            self.interrupted = True
            if not self._partial:
                raise

    def _open(self, folder: Path, command: dict[str, Any]) -> None:
        """Take over the results of a folder, or begin it."""
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / COMMAND).exists():
            if any(folder.iterdir()):
                raise _refusal(folder, "holds something else than runs of drafttree")
            (folder / COMMAND).write_text(json.dumps(command, indent=1), encoding="utf-8")
        known = _read(folder, (folder / COMMAND).read_text(encoding="utf-8"))
        for name in {**command, **known}:
            if known.get(name) != command.get(name):
                there = f"{name} = {known.get(name)!r} there, {command.get(name)!r} here"
                raise _refusal(folder, f"holds the runs of another command ({there})")
        self._read_runs(folder)

    def _read_runs(self, folder: Path) -> None:
        lines = [_read(folder, line) for line in whole_lines(folder / RUNS)]
        self._kept = {json.dumps(line["run"]): line["result"] for line in lines}


_adapter = functools.cache(TypeAdapter)


def _versions() -> dict[str, str]:
    return {name: version(name) for name in ("drafttree", "torch", "transformers")}


def _read(folder: Path, text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise _refusal(folder, "holds something else than runs of drafttree")
    return found


def _refusal(folder: Path, reason: str) -> InputError:
    return InputError(f"--out {str(folder)!r} {reason}; name another folder")
