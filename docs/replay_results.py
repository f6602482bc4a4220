"""Write the table of claims in replay-results.md from the folder of a replay, as `drafttree replay report` does.

`python docs/replay_results.py FOLDER` takes the results of `drafttree replay all --counts-only --out FOLDER`.
"""

import sys
from pathlib import Path

from marked_parts import with_parts

from drafttree_lab.replay.paper_files import KEPT, use_papers
from drafttree_lab.replay.results import read_results
from drafttree_lab.report.page import claims_table

PAGE = Path(__file__).parent / "replay-results.md"


def main(folder: Path) -> None:
    use_papers(sorted((folder / KEPT).glob("*.toml")))
    claims = claims_table(read_results(folder))
    PAGE.write_text(with_parts(PAGE.read_text(), "replay", {"claims": claims}))


if __name__ == "__main__":
    main(Path(*sys.argv[1:]))
