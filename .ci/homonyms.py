"""Names that functions of unrelated classes share, each a word with several meanings or one meaning in many places.

    python .ci/homonyms.py              the names with most meanings
    python .ci/homonyms.py expand ...   where each of these is defined

A method's meaning is counted by the topmost class that defines it: all `verify` of verifiers are one. A function
outside of classes is a meaning of its own. Names with two underscores are left out.
"""

import ast
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
FOLDERS = ("src/drafttree", "lab/src/drafttree_lab")
FEWEST_MEANINGS = 4
"""Names with fewer are not shown."""


@dataclass
class Definition:
    """Where a name is defined.

    Attributes:
        name: the function's name.
        owner: its class, or its module.
        root: the topmost class above `owner` that defines the name.
        place: file and line.
    """

    name: str
    owner: str
    root: str
    place: str


class Definitions:
    """All functions and methods of the library and the lab."""

    def __init__(self) -> None:
        self.bases: dict[str, list[str]] = {}
        self.methods: dict[str, dict[str, str]] = {}
        self.functions: list[Definition] = []
        for folder in FOLDERS:
            for path in sorted((ROOT / folder).rglob("*.py")):
                self._read(path)

    def _read(self, path: Path) -> None:
        module = ast.parse(path.read_text())
        place = path.relative_to(ROOT)
        for node in module.body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                where = f"{place}:{node.lineno}"
                self.functions.append(Definition(node.name, path.stem, where, where))
        for node in ast.walk(module):
            if isinstance(node, ast.ClassDef):
                self._read_class(node, str(place))

    def _read_class(self, node: ast.ClassDef, place: str) -> None:
        owner = f"{node.name} in {Path(place).stem}" if node.name in self.methods else node.name
        self.bases[owner] = [name for base in node.bases if (name := _name(base))]
        methods = self.methods[owner] = {}
        for statement in node.body:
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                methods[statement.name] = f"{place}:{statement.lineno}"

    def root_of(self, owner: str, method: str) -> str:
        """The topmost class above `owner` that defines `method`."""
        for base in self.bases.get(owner, []):
            if base in self.methods and self._has(base, method):
                return self.root_of(base, method)
        return owner

    def _has(self, owner: str, method: str) -> bool:
        if method in self.methods.get(owner, {}):
            return True
        return any(self._has(base, method) for base in self.bases.get(owner, []) if base != owner)

    def by_name(self) -> dict[str, list[Definition]]:
        """Definitions of each name."""
        definitions: dict[str, list[Definition]] = defaultdict(list)
        for function in self.functions:
            definitions[function.name].append(function)
        for owner, methods in self.methods.items():
            for name, place in methods.items():
                if not name.startswith("__"):
                    definitions[name].append(Definition(name, owner, self.root_of(owner, name), place))
        return definitions


def _name(base: ast.expr) -> str:
    while isinstance(base, ast.Subscript):
        base = base.value
    return base.attr if isinstance(base, ast.Attribute) else base.id if isinstance(base, ast.Name) else ""


def show_table(definitions: dict[str, list[Definition]]) -> None:
    """Print the names with most meanings."""
    meanings = {name: len({definition.root for definition in same}) for name, same in definitions.items()}
    print(f"{'name':28s} meanings  definitions")
    for name in sorted(meanings, key=lambda name: (-meanings[name], name)):
        if meanings[name] >= FEWEST_MEANINGS:
            print(f"{name:28s} {meanings[name]:8d} {len(definitions[name]):12d}")


def show_places(definitions: dict[str, list[Definition]], names: list[str]) -> None:
    """Print where names are defined."""
    for name in names:
        print(name)
        for definition in definitions.get(name, []):
            print(f"    {definition.owner:28s} {definition.root:28s} {definition.place}")


def main() -> None:
    """Run the command."""
    definitions = Definitions().by_name()
    if names := sys.argv[1:]:
        show_places(definitions, names)
    else:
        show_table(definitions)


if __name__ == "__main__":
    main()
