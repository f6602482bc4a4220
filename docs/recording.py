"""Record images/recording.svg: the command line without and with drafts, as it ran here; `make recording`.

Each command runs in a terminal of its own, and its output is kept with its times. Pauses above a second, such as those
of loading, are cut to one.
"""

import fcntl
import os
import pty
import re
import shlex
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

PICTURE = Path(__file__).parent / "images" / "recording.svg"
COMMANDS = tuple(
    f'drafttree generate "The old man looked at the sea" --temperature 0.8 --seed 4 --drafter {drafter}'
    for drafter in ("none", "embedded-eagle3")
)
COLUMNS, ROW, CHARACTER, MARGIN = 110, 19, 7.83, 14
PAUSE, AFTER_COMMAND = 1.0, 1.5
PIECE = re.compile(r"\x1b\[([\d;]*)m|\x1b\[[\d;?]*[A-Za-z]|(\r?\n)|(\r)|([^\x1b\r\n]+)")
COLOURS = {"32": "drafted", "2": "dim", "1": "bold"}
STYLE = """text{font-family:ui-monospace,Menlo,monospace;font-size:13px;fill:#d6deeb;opacity:0;
animation:show 0s forwards}.drafted{fill:#7ee787}.dim{fill:#8a96a8}.bold,.prompt{font-weight:bold}
@keyframes show{to{opacity:1}}"""


@dataclass(frozen=True)
class Run:
    """Characters of one style that appear together, with their place and time in seconds."""

    row: int
    column: int
    text: str
    style: str
    seconds: float


def output(command: str) -> Iterator[tuple[float, str]]:
    """What a command writes to a terminal, with the seconds between one write and the next, cut to `PAUSE`."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    arguments = [sys.executable, "-m", *shlex.split(command)]
    environment = os.environ | {"TERM": "xterm-256color"}
    process = subprocess.Popen(arguments, stdin=slave, stdout=slave, stderr=slave, env=environment)
    os.close(slave)
    before = time.perf_counter()
    with os.fdopen(master, "rb", 0) as stream:
        while True:
            try:
                written = stream.read(65536)
            except OSError:  # how Linux says that the other end is closed
                break
            now = time.perf_counter()
            yield min(now - before, PAUSE), written.decode(errors="replace")
            before = now
    if process.wait():
        raise SystemExit(f"{command} failed")


def runs(sessions: Iterator[tuple[str, Iterator[tuple[float, str]]]]) -> list[Run]:
    """What the commands and their output put on the screen."""
    found, row, seconds = [], 0, 0.5
    for command, written in sessions:
        found.append(Run(row, 0, f"$ {command}", "prompt", seconds))
        row, column, style = row + 1, 0, ""
        for pause, text in written:
            seconds += pause
            for colour, newline, back, characters in PIECE.findall(text):
                if newline or back:
                    row, column = row + bool(newline), 0
                elif not characters:
                    style = COLOURS.get(colour, "")
                while characters:
                    row, column = (row, column) if column < COLUMNS else (row + 1, 0)
                    part, characters = characters[: COLUMNS - column], characters[COLUMNS - column :]
                    found.append(Run(row, column, part, style, seconds))
                    column += len(part)
        row, seconds = row + (column > 0) + 1, seconds + AFTER_COMMAND
    return found


def drawn(found: list[Run]) -> str:
    """The screen as SVG; every run appears at its time and stays."""
    width, height = 2 * MARGIN + COLUMNS * CHARACTER, 2 * MARGIN + ROW * (1 + max(run.row for run in found))
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" xml:space="preserve">'
    texts = [
        f'<text x="{MARGIN + CHARACTER * run.column:.1f}" y="{MARGIN + ROW * run.row + 13}" class="{run.style}" '
        f'textLength="{CHARACTER * len(run.text):.1f}" style="animation-delay:{run.seconds:.2f}s">'
        f"{escape(run.text)}</text>"
        for run in found
        if run.text.strip()
    ]
    back = f'<style>{STYLE}</style><rect width="100%" height="100%" rx="8" fill="#0d1b2a"/>'
    return "\n".join([head, back, *texts, "</svg>", ""])


if __name__ == "__main__":
    PICTURE.write_text(drawn(runs((command, output(command)) for command in COMMANDS)))
