"""Measures work by counting executed lines of drafttree's code, which does not depend on the machine's load."""

import sys
from collections.abc import Callable
from pathlib import Path

import drafttree

PACKAGE = str(Path(drafttree.__file__).parent)


def lines(function: Callable[[], object]) -> int:
    """Count the lines of drafttree's code that a call executes."""
    count = 0

    def trace(frame, event, _):
        nonlocal count
        if not frame.f_code.co_filename.startswith(PACKAGE):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count
