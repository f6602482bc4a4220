"""Makes a summarisation set from encyclopedia articles, with their lead sections as reference summaries.

    python recipes/summaries.py wiki.test.raw.gz summaries.jsonl
    drafttree bench lookup --prompts summaries.jsonl

The first argument is a WikiText file, raw or compressed. The text is Wikipedia's (CC-BY-SA), so the set is not
shipped but made by the user.
"""

import gzip
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

BODY, LEAD = (3_000, 6_000), (400, 2_500)
"""Least and most characters of an article's body and of its lead; longer ones are cut."""


def articles(text: str) -> Iterator[tuple[str, str]]:
    """Yield lead and body of every article that is long enough."""
    for article in re.split(r"\n (?== [^=])", text):
        head, _, body = article.partition("\n = = ")
        lead = head.partition("\n")[2].strip()
        if len(lead) >= LEAD[0] and len(body) >= BODY[0]:
            yield lead[: LEAD[1]], body[: BODY[1]]


def main(source: str, destination: str) -> None:
    """Write the set as JSON lines of prompt and reference."""
    raw = Path(source).read_bytes()
    text = (gzip.decompress(raw) if source.endswith(".gz") else raw).decode()
    with Path(destination).open("w", encoding="utf-8") as file:
        for lead, body in articles(text):
            prompt = f"Summarize the following article.\n\n = = {body}\n\nSummary:\n"
            file.write(json.dumps({"prompt": prompt, "reference": lead}, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
