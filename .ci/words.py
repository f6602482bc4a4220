"""Words of the documents by page, written by hand and made by a command, and sentences that are too long.

`python .ci/words.py` prints a table; with `--sentences` every sentence of more than 25 words too. Pages that a
command makes whole are named in `MADE_PAGES`; parts of others stand between comments such as `<!-- real: readme -->`
and `<!-- /real -->`.
"""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
MADE_PAGES = {
    "commands": "docs/commands.py",
    "methods": "docs/methods.py",
    "models": "drafttree support",
    "options": "docs/options.py",
    "popular-models": "drafttree support --popular",
    "troubleshooting": "docs/troubleshooting.py",
}
"""Pages that are made whole, and what makes them."""
MOST_WORDS = 25
"""Words of a sentence at most."""
MADE_PART = re.compile(r"<!-- (\w+)(?:: [^>]*)? -->\n.*?<!-- /\1 -->\n", re.DOTALL)


def hand_written(page: Path) -> str:
    """A page without what commands make of it."""
    return "" if page.stem in MADE_PAGES else MADE_PART.sub("", page.read_text())


def sentences(text: str) -> list[str]:
    """The sentences of Markdown: of paragraphs, items, quotes and cells of tables; code within a line is one word.

    Blocks of code, headings and comments are left out.
    """
    text = re.sub(r"```.*?```|<!--.*?-->|^---\n.*?^---\n", "", text, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`]+`", "CODE", text)
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    passages: list[str] = []
    lines: list[str] = []
    in_item = False
    for line in [*text.split("\n"), ""]:
        words = line.strip()
        item_mark = re.match(r"(?:[-*]|\d+\.) ", words)
        ends_passage = not words or words.startswith(("#", "|")) or item_mark
        if ends_passage and lines:
            passages.append(" ".join(lines))
            lines = []
        if words.startswith("|"):
            passages += words.strip("|").split(" | ")
        elif item_mark:
            in_item = True
            lines = [words[item_mark.end() :]]
        elif words.startswith("#"):
            in_item = False
        elif words and (lines or in_item or not line.startswith("    ")):
            in_item = in_item and line.startswith(" ")
            lines.append(words.lstrip("> ").removeprefix("!!! "))
    return [
        sentence for passage in passages for sentence in re.split(r"(?<=[.!?])[*)\"]*\s+(?=[*(\"]*[A-Z0-9])", passage)
    ]


def length(sentence: str) -> int:
    """The words of a sentence, without signs that stand alone."""
    return sum(any(letter.isalnum() for letter in word) for word in sentence.split())


def long_sentences(page: Path) -> list[str]:
    """The sentences of a page, written by hand, that have more words than they may."""
    return [sentence for sentence in sentences(hand_written(page)) if length(sentence) > MOST_WORDS]


def main() -> None:
    pages = [ROOT / "README.md", *sorted(DOCS.glob("*.md"))]
    total_hand, total_made = 0, 0
    print(f"{'page':24}{'by hand':>9}{'made':>9}{'sentences over ' + str(MOST_WORDS):>20}")
    for page in pages:
        hand = len(hand_written(page).split())
        made = len(page.read_text().split()) - hand
        total_hand += hand
        total_made += made
        print(f"{page.stem:24}{hand:9,}{made:9,}{len(long_sentences(page)):20}")
    print(f"{'all':24}{total_hand:9,}{total_made:9,}")
    if "--sentences" in sys.argv:
        for page in pages:
            for sentence in long_sentences(page):
                print(f"\n{page.name}, {length(sentence)} words: {sentence}")


if __name__ == "__main__":
    main()
