"""Record images/recording.svg: `drafttree demo` as it ran here; `make recording`.

The picture begins with the finished texts and the result, then plays both texts at the pace at which they were
written, again and again. Where nothing is animated, or the reader wants little motion, it shows the finished texts.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from itertools import groupby
from pathlib import Path
from textwrap import wrap

from drafttree.engine.generation import Chunk
from drafttree.evaluation.demo import DRAFTED, PLAIN, judge, load_demo
from drafttree.evaluation.side_by_side import SideBySide
from drafttree.interfaces.cli.demo import OPENING, POLICY
from drafttree.loading import make_policy

PICTURE = Path(__file__).parent / "images" / "recording.svg"
OPTIONS = {"temperature": 0.5, "seed": 0, "max_new_tokens": 128}
WIDTH, GAP, ROW, CHARACTER, MARGIN = 52, 3, 19, 7.83, 14
"""Characters of a column and between the two; pixels of a row, a character and the margin."""
WORD = re.compile(r"\s*\S+|\s+")
BEGINNING, END = 0.4, 5.0
"""Seconds before the first token and behind the last one."""
TITLE = "drafttree demo: the same text by plain decoding and by drafttree; accepted drafts are green"
STYLE = """text{{font-family:ui-monospace,Menlo,monospace;font-size:13px;fill:#d6deeb}}
.drafted{{fill:#7ee787}}.dim{{fill:#8a96a8}}.bold{{font-weight:bold}}
.late{{animation:show {length:.2f}s -{start:.2f}s infinite step-end}}
@media (prefers-reduced-motion:reduce){{.late{{animation:none}}}}"""


@dataclass(frozen=True)
class Run:
    """Characters of one style that appear together, with their place and time in seconds."""

    row: int
    column: int
    text: str
    style: str
    seconds: float = 0.0


class Column:
    """One text, wrapped as it grows.

    Args:
        left: its first column.
        prompt: what it begins with.
    """

    def __init__(self, left: int, prompt: str) -> None:
        self.left, self.row, self.column = left, 2, 0
        self.runs: list[Run] = []
        self.write(prompt, "dim", 0.0)

    def add(self, chunk: Chunk, seconds: float) -> None:
        """What a round has added, green where a draft was accepted."""
        for drafted, run in groupby(zip(chunk.text, chunk.drafted_text, strict=True), key=lambda pair: pair[1]):
            self.write("".join(character for character, _ in run), "drafted" if drafted else "", seconds)

    def write(self, text: str, style: str, seconds: float) -> None:
        """Lay out characters from where the last ones ended."""
        for number, line in enumerate(text.split("\n")):
            if number:
                self.row, self.column = self.row + 1, 0
            for word in WORD.findall(line):
                if self.column and self.column + len(word.rstrip()) > WIDTH:
                    self.row, self.column, word = self.row + 1, 0, word.lstrip()
                self.runs.append(Run(self.row, self.left + self.column, word, style, seconds))
                self.column += len(word)


def record() -> list[Run]:
    """Run the demo and lay out what it shows."""
    target = load_demo("auto", "float32", "cpu", None)
    decoder = target.decoder.with_policy(make_policy(POLICY))
    race = SideBySide({PLAIN: decoder.plain(), DRAFTED: decoder}, OPENING, **OPTIONS)
    columns = {name: Column(place * (WIDTH + GAP), OPENING) for place, name in enumerate(race.seconds)}
    for name, chunk in race:
        columns[name].add(chunk, BEGINNING + race.seconds[name])
    last = 2 + max(column.row for column in columns.values())
    found = [Run(0, 0, "$ drafttree demo", "bold")]
    found += [Run(1, column.left, name, "bold") for name, column in columns.items()]
    found += [run for column in columns.values() for run in column.runs]
    ends = BEGINNING + max(race.seconds.values())
    lines = [*judge(target, race.texts(), OPENING, OPTIONS).lines[:3], *wrap(target.sentence, 2 * WIDTH)]
    return found + [Run(last + number, 0, line, "bold", ends) for number, line in enumerate(lines)]


def drawn(found: list[Run]) -> str:
    """The screen as SVG; every run appears at its time and stays until the picture begins again."""
    width, ends = 2 * MARGIN + (2 * WIDTH + GAP) * CHARACTER, max(run.seconds for run in found)
    height, length = 2 * MARGIN + ROW * (1 + max(run.row for run in found)), ends + END
    head = f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">'
    style = STYLE.format(length=length, start=ends + 0.05)
    back = f'<title>{TITLE}</title>\n<style>{style}</style><rect width="100%" height="100%" rx="8" fill="#0d1b2a"/>'
    return "\n".join([head, back, *_texts(found, length), "</svg>", ""])


def _texts(found: list[Run], length: float) -> Iterator[str]:
    """A text element for every run; those of one time share the frames that hide them until then.

    A run's spaces are part of its place, not of its text: browsers differ in what they do with spaces at the ends.
    """
    for seconds, together in groupby(sorted(found, key=lambda run: run.seconds), key=lambda run: run.seconds):
        name, shown = f"t{1e3 * seconds:.0f}", 100 * seconds / length
        if seconds:
            yield f"<style>@keyframes {name}{{0%{{opacity:0}}{shown:.3f}%{{opacity:1}}}}</style>"
        for run in together:
            late = f' style="animation-name:{name}"' if seconds else ""
            style = " ".join(["late"] * bool(seconds) + run.style.split())
            text, spaces = run.text.strip(), len(run.text) - len(run.text.lstrip())
            x, y = MARGIN + CHARACTER * (run.column + spaces), MARGIN + ROW * run.row + 13
            size = f'textLength="{CHARACTER * len(text):.1f}"'
            if text:
                yield f'<text x="{x:.1f}" y="{y}" {size} class="{style}"{late}>{escape(text)}</text>'


if __name__ == "__main__":
    PICTURE.write_text(drawn(record()))
