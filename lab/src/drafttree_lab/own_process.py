"""Runs a task in a process of its own; task and result are passed as JSON."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from drafttree.core.errors import ConfigError, DraftTreeError, ModelError

REFUSED = "refused"
"""The key of a result that says why the process refused its task."""


def run_module(module: str, task: Mapping[str, Any], name: str) -> Any:
    """Run a module in a fresh process with a task, and return its result; the module calls `answer`.

    Args:
        module: name of the module.
        task: the task, as JSON data.
        name: name of the task for messages.

    Raises:
        ConfigError: the process refuses the task; the message says why.
        ModelError: the process died, for example because memory ran out.
    """
    command = [sys.executable, "-m", module]
    process = subprocess.run(command, input=json.dumps(task), capture_output=True, text=True, check=False)
    if process.returncode:
        last_line = (process.stderr.strip().splitlines() or ["it says nothing; perhaps memory ran out"])[-1]
        raise ModelError(f"the process of {name!r} has ended with code {process.returncode}: {last_line}")
    result = json.loads(process.stdout.splitlines()[-1])
    if REFUSED in result:
        raise ConfigError(f"{name}: {result[REFUSED]}")
    return result


def answer(do: Callable[[Mapping[str, Any]], Mapping[str, Any]]) -> None:
    """Read a task from standard input, do it, and write the result to standard output."""
    try:
        result = do(json.load(sys.stdin))
    except DraftTreeError as error:
        result = {REFUSED: str(error)}
    print(json.dumps(result))
