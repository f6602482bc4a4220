"""Draw images/speed.svg: tokens per second over plain decoding, from the table of performance.md, for the README.

`drafttree bench methods` with the arguments given below that table measures the numbers again.
"""

import re
from pathlib import Path
from xml.sax.saxutils import escape

DOCS = Path(__file__).parent
TABLE = "## At the cost of a target of 300 M parameters"
SHOWN = {
    "transformers `generate`": "transformers generate",
    "transformers prompt lookup": "transformers prompt lookup",
    "`embedded-draft`, DynaTree": "drafttree: draft model, DynaTree",
    "`embedded-eagle3`, chain of 5": "drafttree: EAGLE-3 head, chain of 5",
    "`mixed:embedded-eagle3`, TALON (12, 3)": "drafttree: lookup + EAGLE-3 head, TALON",
}
LABEL, UNIT, ROW, WIDTH = 290, 112, 30, 760
NOTE = "White line: the speed without the texts that end by repeating themselves, which are easy to draft."
STYLE = """text{font-family:system-ui,sans-serif;font-size:13px;fill:#444}
.back{fill:#fff}.mark{stroke:#fff}.ours{fill:#2a7f62}.theirs{fill:#8a94a6}.line{stroke:#444}
@media (prefers-color-scheme:dark){.back{fill:#0d1117}text{fill:#d1d7e0}.line{stroke:#d1d7e0}}"""


def speeds(page: str) -> dict[str, tuple[float, float]]:
    """Per row of the table, R over all texts and over those that do not loop."""
    table = next(block for block in page.partition(TABLE)[2].split("\n\n") if block.startswith("| "))
    lines = table.splitlines()
    rows = ([cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines if line.startswith("| "))
    return {row[0]: (float(row[7]), float(row[9])) for row in rows if len(row) == 10 and re.match(r"\d", row[7])}


def drawn(found: dict[str, tuple[float, float]]) -> str:
    """The figure: a bar per method, a mark at the texts that do not loop, a line at plain decoding."""
    height, plain, bottom = ROW * len(SHOWN) + 50, LABEL + UNIT, 8 + ROW * len(SHOWN)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Tokens per second over plain decoding by the same engine</title>",
        f'<style>{STYLE}</style><rect class="back" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<line class="line" x1="{plain}" x2="{plain}" y1="4" y2="{bottom}" stroke-dasharray="4 3"/>',
    ]
    for place, (row, label) in enumerate(SHOWN.items()):
        (ratio, without_loops), top = found[row], 8 + ROW * place
        kind, mark = "theirs" if label.startswith("transformers") else "ours", LABEL + UNIT * without_loops
        parts += [
            f'<text x="{LABEL - 10}" y="{top + 15}" text-anchor="end">{escape(label)}</text>',
            f'<rect class="{kind}" x="{LABEL}" y="{top}" width="{UNIT * ratio:.0f}" height="20"/>',
            f'<line class="mark" x1="{mark:.0f}" x2="{mark:.0f}" y1="{top}" y2="{top + 20}" stroke-width="2"/>',
            f'<text x="{max(LABEL + UNIT * ratio, plain) + 6:.0f}" y="{top + 15}">{ratio:.2f}</text>',
        ]
    parts += [
        f'<text x="{plain}" y="{bottom + 12}" text-anchor="middle">plain decoding = 1</text>',
        f'<text x="{WIDTH / 2:.0f}" y="{bottom + 34}" text-anchor="middle">{NOTE}</text>',
        "</svg>",
    ]
    return "\n".join([*parts, ""])


if __name__ == "__main__":
    (DOCS / "images").mkdir(exist_ok=True)
    (DOCS / "images" / "speed.svg").write_text(drawn(speeds((DOCS / "performance.md").read_text())))
