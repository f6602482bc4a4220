"""Write the tables of real models in README.md and real-models.md, from figures.json (`make figures NAMES=real`).

With two arguments, a file that `drafttree bench real --json` has written and a new page, that page is written instead.
"""

import json
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from figures import ROOT, entries
from marked_parts import table, with_parts

MODEL = "qwen-coder-1.5b"
"""The model of the README's table."""
PRECISIONS = ("as stored", "bfloat16", "int8")
README_METHODS = {
    "draft model, auto": "drafttree, the 0.5B as draft model",
    "lookup and draft model, auto": "drafttree, lookup and the 0.5B",
    "lookup, auto": "drafttree, lookup",
    "plain": "drafttree, plain decoding",
    "llama.cpp, on the file as it is": "llama.cpp on the same file, in its four bits",
    "transformers": "transformers `generate`",
    "transformers, prompt lookup": "transformers, prompt lookup",
    "transformers, assisted by the draft model": "transformers, assisted by the 0.5B",
}
FEWEST_PROMPTS = 5
"""Prompts behind a ratio that the README tells."""
FIGURE_FORMATS = {"tokens/s": ".1f", "R": ".2f", "R law": ".2f", "over transformers": ".2f", "over llama.cpp": ".2f"}
FIGURE_FORMATS |= {"tau": ".2f", "c": ".3f", "v": ".2f", "h": ".3f"}


def measured_report() -> Mapping[str, Any]:
    """The report of figures.json, with its date."""
    entry = entries()["real"]
    return {**entry["report"], "date": entry["date"]}


def tables(report: Mapping[str, Any]) -> dict[str, str]:
    """The tables by name."""
    made = {"readme": _readme_table(report), "machine": _machine(report), "files": _files(report)}
    made["speeds"] = "\n".join(_speed_tables(report))
    made["texts"] = _text_table(report)
    return made


def updated(document: str, report: Mapping[str, Any]) -> str:
    """A document with the tables of today in the places that are marked for them."""
    return with_parts(document, "real", tables(report))


def _readme_table(report: Mapping[str, Any]) -> str:
    rows = {(row["method"], row["precision"]): row for row in report["speeds"] if row["model"] == MODEL}
    precisions = [precision for precision in PRECISIONS if any(of == precision for _, of in rows)]

    def speed(method: str, precision: str) -> str:
        row = rows.get((method, precision), {})
        return f"{row['tokens/s']:.1f}" if "tokens/s" in row else ""

    def over_plain(method: str, precision: str) -> str:
        row = rows.get((method, precision), {})
        if not row.get("R") or row["prompts"] < FEWEST_PROMPTS:
            return ""
        return "{mean:.2f} [{low:.2f}, {high:.2f}]".format(**row["R"]) if method != "plain" else "1"

    lines = [
        [name, *(cell(method, precision) for precision in precisions for cell in (speed, over_plain))]
        for method, name in README_METHODS.items()
    ]
    header = [f"{column}, {precision}" for precision in precisions for column in ("tokens/s", "over plain decoding")]
    return table(["method", *header], [line for line in lines if any(line[1:])])


def _machine(report: Mapping[str, Any]) -> str:
    machine, prompts, tokens = report["machine"], report["prompts"], report["new tokens"]
    programs = ", ".join(f"{name} {number}" for name, number in report["versions"].items())
    hardware = f"{machine['processor']} ({machine['instructions']}), {machine['threads']} threads"
    speeds = (
        f"{prompts['speeds']} prompts ({prompts['transformers']} for transformers) and {tokens['speeds']} new tokens"
    )
    date = f", {report['date']}" if "date" in report else ""
    return f"{hardware}{date}. {speeds} of a text.\n{programs}.\n"


def _files(report: Mapping[str, Any]) -> str:
    lines = []
    for file in report["files"]:
        kinds = ", ".join(f"{kind} {share:.0%}" for kind, share in file["kinds"].items() if share > 0.005)
        size = f"{file['bytes'] / 1e6:,.0f} MB, {file['weights'] / 1e6:,.0f} M weights"
        lines.append([f"`{file['file']}`", file["name"], size, kinds, f"`{file['sha256'][:16]}`"])
    return table(["file", "model", "size", "kinds of weights", "SHA-256 begins with"], lines)


def _speed_tables(report: Mapping[str, Any]) -> Iterator[str]:
    for model, precision in dict.fromkeys((row["model"], row["precision"]) for row in report["speeds"]):
        rows = [row for row in report["speeds"] if (row["model"], row["precision"]) == (model, precision)]
        lines = [[row["method"], *_figures(row)] for row in rows]
        yield f"### {model}, {precision}\n\n" + table(["method", *FIGURE_FORMATS, "texts of plain decoding"], lines)


def _figures(row: Mapping[str, Any]) -> list[str]:
    """The cells of a row; of one that failed, why."""
    if "failure" in row:
        return [row["failure"], *[""] * len(FIGURE_FORMATS)]
    cells = []
    for name, form in FIGURE_FORMATS.items():
        value = row.get(name)
        cells.append("" if value is None else format(value["mean"] if isinstance(value, dict) else value, form))
    ties = f", {row['ties']} at a tie" if row.get("ties") else ""
    return [*cells, row.get("same text", "") + ties]


def _text_table(report: Mapping[str, Any]) -> str:
    lines = [
        [row["model"], row["method"], row.get("failure") or f"{row['equal']} of {row['texts']}"]
        for row in report["texts"]
    ]
    return table(["model", "method", "texts equal to transformers'"], lines)


if __name__ == "__main__":
    page = ROOT / "docs" / "real-models.md"
    if len(sys.argv) > 2:
        figures, made = map(Path, sys.argv[1:3])
        made.write_text(updated(page.read_text(), json.loads(figures.read_text())))
    else:
        measured = measured_report()
        for path in (ROOT / "README.md", page):
            path.write_text(updated(path.read_text(), measured))
