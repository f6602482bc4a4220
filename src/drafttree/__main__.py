"""The command `drafttree`, also as `python -m drafttree`."""

import os
import signal
import sys
from contextlib import suppress
from types import FrameType


def main() -> None:
    """Run the command line; Ctrl-C ends it with one line, also while something is imported."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    try:
        _check_requirements()
        from drafttree.interfaces.cli import main

        main()
    except KeyboardInterrupt:
        _say()
        sys.exit(130)


def _check_requirements() -> None:
    """End with one line where a package is missing or of a version that does not work, before anything is imported."""
    from drafttree.core.errors import ConfigError
    from drafttree.core.requirements import check_requirements

    try:
        check_requirements("drafttree")
    except ConfigError as error:
        print(f"drafttree: {error}", file=sys.stderr)
        sys.exit(2)


def _interrupt(_: int, frame: FrameType | None) -> None:
    """End at once where something is imported: libraries drop an interrupt there, or tell it as an error of theirs."""
    while frame:
        if frame.f_code.co_filename == "<frozen importlib._bootstrap>":
            with suppress(Exception):  # it may be in the middle of a write, or nobody may read any more
                sys.stdout.flush()
            show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # which a spinner has hidden
            _say(show_cursor)
            os._exit(130)
        frame = frame.f_back
    raise KeyboardInterrupt


def _say(prefix: str = "") -> None:
    print(f"{prefix}drafttree: interrupted", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
