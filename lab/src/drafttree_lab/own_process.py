"""Work that is measured in a process of its own: it is given as JSON, and so is what comes of it."""

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from typing import Any

from drafttree.core.errors import ConfigError, DraftTreeError, ModelError

REFUSED = "refused"
"""The key under which a process tells why it could not do its work."""


def run_module(module: str, task: Mapping[str, Any], name: str) -> Any:
    """Let a module do a task in a fresh process, where it calls `answer`.

    Args:
        module: its name.
        task: what it is given.
        name: of the task, for messages.

    Raises:
        ConfigError: the process refuses the task; the message says why.
        ModelError: the process has died, as of too little memory.
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
    """Do the task of standard input."""
    try:
        result = do(json.load(sys.stdin))
    except DraftTreeError as error:
        result = {REFUSED: str(error)}
    print(json.dumps(result))
