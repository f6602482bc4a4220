"""Draw images/speed.svg for performance.md: tokens per second over plain decoding, from figures.json."""

from collections.abc import Mapping
from typing import Any
from xml.sax.saxutils import escape

from figures import ROOT, entries

PICTURE = ROOT / "docs" / "images" / "speed.svg"
SHOWN = {
    "transformers": "transformers generate",
    "transformers prompt lookup": "transformers prompt lookup",
    "llama.cpp": "llama.cpp",
    "embedded-draft|auto": "drafttree: draft model",
    "embedded-eagle3|auto": "drafttree: EAGLE-3 head",
    "mixed:embedded-eagle3|auto": "drafttree: lookup + EAGLE-3 head",
}
"""Methods of the bench, and what the picture calls them."""
LABEL, UNIT, ROW, WIDTH = 290, 112, 30, 760
NOTE = "White line: the speed without the texts that end by repeating themselves, which are easy to draft."
STYLE = """text{font-family:system-ui,sans-serif;font-size:13px;fill:#444}
.back{fill:#fff}.mark{stroke:#fff}.ours{fill:#2a7f62}.theirs{fill:#8a94a6}.line{stroke:#444}
@media (prefers-color-scheme:dark){.back{fill:#0d1117}text{fill:#d1d7e0}.line{stroke:#d1d7e0}}"""


def speeds(report: Mapping[str, Any]) -> dict[str, tuple[float, float]]:
    """By method, R over all texts and over those that do not loop."""
    ratios: dict[str, dict[str, float]] = {method: {} for method in SHOWN}
    for row in report["rows"]:
        if row["method"] in SHOWN and row["R"]:
            ratios[row["method"]][row["group"]] = row["R"]["mean"]
    every_text = report["rows"][0]["group"]
    return {method: (of[every_text], of.get("not looping", of[every_text])) for method, of in ratios.items()}


def drawn(ratios: Mapping[str, tuple[float, float]]) -> str:
    """The figure: a bar per method, a mark at the texts that do not loop, a line at plain decoding."""
    height, plain, bottom = ROW * len(SHOWN) + 50, LABEL + UNIT, 8 + ROW * len(SHOWN)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        "<title>Tokens per second over plain decoding by the same engine</title>",
        f'<style>{STYLE}</style><rect class="back" width="{WIDTH}" height="{height}" rx="6"/>',
        f'<line class="line" x1="{plain}" x2="{plain}" y1="4" y2="{bottom}" stroke-dasharray="4 3"/>',
    ]
    for place, (row, label) in enumerate(SHOWN.items()):
        ratio, without_loops = ratios[row]
        top = 8 + ROW * place
        kind, mark = "ours" if label.startswith("drafttree") else "theirs", LABEL + UNIT * without_loops
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
    PICTURE.write_text(drawn(speeds(entries()["methods"]["report"])))
