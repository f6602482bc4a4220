"""Write the table of floors in architecture.md: from the import contract and the folders' own docstrings."""

import ast
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
BEGIN, END = "<!-- floors -->\n", "<!-- /floors -->\n"


def table() -> str:
    """A row per folder, the highest floor first."""
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    rows = [
        f"| {floor} | `{folder}/` | {_purpose(folder)} |"
        for floor, names in zip(range(len(layers), 0, -1), layers, strict=True)
        for folder in names.split(" | ")
    ]
    return "\n".join(["| floor | folder | what it holds |", "| --- | --- | --- |", *rows, ""])


def _purpose(folder: str) -> str:
    """The first paragraph of a folder's docstring."""
    source = (ROOT / "src" / "drafttree" / folder / "__init__.py").read_text()
    return " ".join((ast.get_docstring(ast.parse(source)) or "").partition("\n\n")[0].split())


def updated(text: str) -> str:
    """The document with the table of today."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}{table()}{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    document = ROOT / "docs" / "architecture.md"
    document.write_text(updated(document.read_text()))
