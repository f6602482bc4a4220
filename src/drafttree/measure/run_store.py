"""Stores the results of a command's finished runs in a folder, so that the same command can continue there."""

import functools
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter

from drafttree.core.errors import InputError
from drafttree.measure.json_lines import append_line, whole_lines
from drafttree.measure.prompts import read_text

COMMAND, RUNS = "run.json", "cells.jsonl"
Result = TypeVar("Result")


class RunStore:
    """The results of runs so far.

    A store without a folder keeps nothing on disk; measurements use one if they are given no store.

    Args:
        folder: the folder of the results, which are written as JSON lines as runs finish; None for none.
        command: everything that decides what is run; a folder holds the runs of one command.
        partial: whether Ctrl-C ends a measurement with what is finished. If not, it raises KeyboardInterrupt.
        minutes: minutes after which no run begins, and the measurement ends as by Ctrl-C; None for no limit.

    Attributes:
        interrupted: whether Ctrl-C or the time limit ended a measurement.
        out_of_time: whether it was the time limit.
        command: the given command, with the versions of the packages.

    Raises:
        InputError: the folder holds something other than runs of this command, or cannot be written.
    """

    def __init__(
        self,
        folder: Path | None = None,
        command: Mapping[str, Any] | None = None,
        *,
        partial: bool = False,
        minutes: float | None = None,
    ) -> None:
        self.interrupted = self.out_of_time = False
        self._end_time = time.monotonic() + 60 * minutes if minutes is not None else math.inf
        self.folder = folder
        self._partial = partial
        self.command: dict[str, Any] = {"versions": versions(), **(command or {})}
        self._kept: dict[str, Any] = {}
        self._made: dict[str, Any] = {}
        if folder:
            try:
                self._open(folder, self.command)
            except OSError as error:
                raise _refusal(folder, f"cannot be written: {error.strerror}") from error

    @classmethod
    def read(cls, folder: Path) -> "RunStore":
        """Read the results of a folder, whichever command made them; nothing is written to it.

        Raises:
            InputError: the folder holds no runs.
        """
        if not (folder / COMMAND).is_file():
            raise InputError(f"{folder}: no runs of drafttree in it; name the folder of a command's --out")
        store = cls()
        store.command = _read(folder, read_text(folder / COMMAND))
        store._read_runs(folder)
        return store

    def run(self, key: tuple[str | int | float, ...], result_type: Any, work: Callable[[], Result]) -> Result:
        """Return the stored result of a run or, if there is none, make and store it.

        Args:
            key: the key of the run.
            result_type: the type of the result, which pydantic must know: dataclasses, lists, numbers ...
            work: makes the result.
        """
        if (name := json.dumps(key)) in self._kept:
            return _adapter(result_type).validate_python(self._kept[name])
        self.check_time()
        result = self._made[name] = work()
        if self.folder:
            entry = {"run": key, "result": _adapter(result_type).dump_python(result, mode="json")}
            append_line(self.folder / RUNS, entry)
        return result

    def find(self, key: tuple[str | int | float, ...], result_type: Any) -> Any:
        """The result of a run that was made or stored; None if there is none. Arguments are those of `run`."""
        if (name := json.dumps(key)) not in self._made and name in self._kept:
            self._made[name] = _adapter(result_type).validate_python(self._kept[name])
        return self._made.get(name)

    def check_time(self) -> None:
        """End the measurement if its minutes are over; every run begins with this check."""
        if time.monotonic() > self._end_time:
            raise _TimeIsOver

    @contextmanager
    def interruptible(self) -> Iterator[None]:
        """Context manager: Ctrl-C or the time limit ends the block, and is raised again unless `partial` is set."""
        try:
            yield
        except KeyboardInterrupt as error:
            self.interrupted = True
            self.out_of_time = isinstance(error, _TimeIsOver)
            if not self._partial:
                raise

    def _open(self, folder: Path, command: dict[str, Any]) -> None:
        """Read the results of a folder, or start a new one."""
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / COMMAND).exists():
            new_path = folder / f"{COMMAND}.new"
            if any(path != new_path for path in folder.iterdir()):
                raise _refusal(folder, "holds files that are not runs of drafttree")
            new_path.write_text(json.dumps(command, indent=1), encoding="utf-8")
            new_path.replace(folder / COMMAND)
        stored_command = _read(folder, (folder / COMMAND).read_text(encoding="utf-8"))
        for name in {**command, **stored_command}:
            if stored_command.get(name) != command.get(name):
                difference = f"{name} = {stored_command.get(name)!r} there, {command.get(name)!r} here"
                raise _refusal(folder, f"holds the runs of another command ({difference})")
        self._read_runs(folder)

    def _read_runs(self, folder: Path) -> None:
        lines = [_read(folder, line) for line in whole_lines(folder / RUNS)]
        self._kept = {json.dumps(line["run"]): line["result"] for line in lines}


class NothingFinished(Exception):
    """Raised if a measurement was interrupted before it had partial results to return.

    Attributes:
        store: the store of the measurement.
    """

    def __init__(self, store: RunStore) -> None:
        super().__init__("nothing is finished")
        self.store = store


class _TimeIsOver(KeyboardInterrupt):
    """Raised when the minutes of a measurement are over."""


_adapter = functools.cache(TypeAdapter)


def versions() -> dict[str, str]:
    """The versions of the packages that affect results."""
    return {name: version(name) for name in ("drafttree", "torch", "transformers")}


def _read(folder: Path, text: str) -> dict[str, Any]:
    try:
        contents = json.loads(text)
    except ValueError:
        contents = None
    if not isinstance(contents, dict):
        raise _refusal(folder, "holds files that are not runs of drafttree")
    return contents


def _refusal(folder: Path, reason: str) -> InputError:
    return InputError(f"--out {str(folder)!r} {reason}; name another folder")
