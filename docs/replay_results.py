"""Write the table of claims in replay-results.md from the folder of a replay, as `drafttree replay report` does.

`python docs/replay_results.py FOLDER` takes the results of `drafttree replay all --counts-only --out FOLDER`.
"""

import sys
from pathlib import Path

from drafttree_lab.replay.paper_files import KEPT, use_papers
from drafttree_lab.replay.results import read_results
from drafttree_lab.report.page import claims_table

PAGE = Path(__file__).parent / "replay-results.md"
BEGIN, END = "<!-- replay: claims -->\n", "<!-- /replay -->\n"


def updated(document: str, table: str) -> str:
    """The page with another table of claims."""
    before, _, rest = document.partition(BEGIN)
    return f"{before}{BEGIN}{table}{END}{rest.partition(END)[2]}"


def main(folder: Path) -> None:
    use_papers(sorted((folder / KEPT).glob("*.toml")))
    PAGE.write_text(updated(PAGE.read_text(), claims_table(read_results(folder))))


if __name__ == "__main__":
    main(Path(*sys.argv[1:]))
