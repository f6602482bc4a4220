"""Count the tests by what they are bound to: `python .ci/tests_by_kind.py [FOLDER ...]`.

A file is bound to the inside where it imports a module of the package that is no door (a door is a folder's `__init__`,
or one of the public modules below), reads a private attribute of something that is not its own, or patches the package
or an object of it. All other files use what users use. What a helper imports binds the helper alone.
"""

import ast
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SOURCES = {"drafttree": Path("src/drafttree"), "drafttree_lab": Path("lab/src/drafttree_lab")}
PUBLIC = {"drafttree.errors", "drafttree.exactness", "drafttree.grammar", "drafttree.hf"}
"""Modules that users import, as docs/stability.md lists them."""
FOLDERS = ("tests", "lab/tests", "testing")


@dataclass(frozen=True)
class Found:
    """What binds one file to the inside: imports below a door, private attributes, patches."""

    path: Path
    lines: int
    imports: int
    private: int
    patches: int

    @property
    def inside(self) -> bool:
        """Whether the file needs to be rewritten when the inside is."""
        return bool(self.imports or self.private or self.patches)


def below_a_door(module: str, names: list[str]) -> int:
    """The number of modules that an import reaches below a folder's `__init__`."""
    root, *rest = module.split(".")
    if root not in SOURCES or module in PUBLIC:
        return 0
    place = SOURCES[root].joinpath(*rest)
    if not place.is_dir():
        return 1
    return sum((place / f"{name}.py").exists() and f"{module}.{name}" not in PUBLIC for name in names)


def names_of_others(node: ast.AST) -> list[str]:
    """What an import of another package is called in the file."""
    match node:
        case ast.ImportFrom(module=str(module), names=names) if module.split(".")[0] not in SOURCES:
            return [name.asname or name.name for name in names]
        case ast.Import(names=names):
            return [
                (name.asname or name.name).split(".")[0] for name in names if name.name.split(".")[0] not in SOURCES
            ]
    return []


def root_of(node: ast.AST) -> str | None:
    """The first name of a dotted one."""
    while isinstance(node, ast.Attribute):
        node = node.value
    return node.id if isinstance(node, ast.Name) else None


def is_ours(patched: ast.AST, others: set[str]) -> bool:
    """Whether what is patched is the package's, by its dotted name or by not being another's."""
    if isinstance(patched, ast.Constant) and isinstance(patched.value, str):
        return patched.value.split(".")[0] in SOURCES
    return root_of(patched) not in others


def read(path: Path) -> Found:
    """Count what binds a file."""
    text = path.read_text()
    imports = private = patches = 0
    tree = ast.parse(text)
    others = {name for node in ast.walk(tree) for name in names_of_others(node)}
    for node in ast.walk(tree):
        match node:
            case ast.ImportFrom(module=str(module), names=names, level=0):
                imports += below_a_door(module, [name.name for name in names])
            case ast.Import(names=names):
                imports += sum(below_a_door(name.name, []) for name in names)
            case (
                ast.Attribute(value=ast.Name(id="self" | "cls"))
                | ast.Attribute(value=ast.Call(func=ast.Name(id="super")))
            ):
                pass  # a test's own class
            case ast.Attribute(attr=name) if name.startswith("_") and not name.startswith("__"):
                private += root_of(node) not in others
            case ast.Call(
                func=ast.Attribute(
                    value=ast.Name(id="monkeypatch" | "patch"), attr="setattr" | "setitem" | "delattr" | "object"
                ),
                args=[patched, *_],
            ):
                patches += is_ours(patched, others)
            case _:
                pass
    return Found(path, text.count("\n"), imports, private, patches)


def main(folders: list[str]) -> None:
    """Print a line for each kind, and one for each folder below them."""
    found = [read(path) for folder in folders for path in sorted(Path(folder).rglob("*.py"))]
    kinds = {"all": found, "inside": [each for each in found if each.inside]}
    kinds["what users use"] = [each for each in found if not each.inside]
    print(f"{'':<28}{'files':>6}{'lines':>8}{'imports':>9}{'private':>9}{'patches':>9}")
    for name, files in kinds.items():
        print(row(name, files))
    places = Counter(each.path.parent for each in kinds["inside"])
    for place in sorted(places):
        print(row(f"  {place}", [each for each in kinds["inside"] if each.path.parent == place]))


def row(name: str, files: list[Found]) -> str:
    """A line of the table."""
    sums = (sum(getattr(each, kind) for each in files) for kind in ("lines", "imports", "private", "patches"))
    lines, imports, private, patches = sums
    return f"{name:<28}{len(files):>6}{lines:>8,}{imports:>9,}{private:>9,}{patches:>9,}"


if __name__ == "__main__":
    main(sys.argv[1:] or list(FOLDERS))
