"""Count the tests by what they are bound to: `python .ci/tests_by_kind.py [FOLDER ...]`.

The seconds are those of the last `make test`, which leaves them in `build/tests.xml`: the tests of all processes added
up, each with its fixtures.

A file is bound to the inside where it imports a module of the package that is no door (a door is a folder's `__init__`,
or one of the public modules below), reads a private attribute of something that is not its own, or patches the package
or an object of it. All other files use what users use. What a helper imports binds the helper alone.
"""

import ast
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

SOURCES = {"drafttree": Path("src/drafttree"), "drafttree_lab": Path("lab/src/drafttree_lab")}
PUBLIC = {"drafttree.errors", "drafttree.exactness", "drafttree.grammar", "drafttree.hf"}
"""Modules that users import, as docs/stability.md lists them."""
FOLDERS = ("tests", "lab/tests", "testing")
TIMES = Path("build/tests.xml")


@dataclass(frozen=True)
class Found:
    """What binds one file to the inside: imports below a door, private attributes, patches; and its tests' seconds."""

    path: Path
    lines: int
    imports: int
    private: int
    patches: int
    seconds: float

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


def seconds_by_file() -> Counter[Path]:
    """The seconds that the tests of each file took, by the file's path; none where no times were kept."""
    seconds: Counter[Path] = Counter()
    if TIMES.exists():
        for case in ElementTree.parse(TIMES).iter("testcase"):
            module = Path(*case.get("classname", "").split("."))
            while module.name and not module.with_suffix(".py").exists():  # a class of tests
                module = module.parent
            seconds[module.with_suffix(".py")] += float(case.get("time", 0))
    return seconds


def read(path: Path, seconds: float) -> Found:
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
    return Found(path, text.count("\n"), imports, private, patches, seconds)


def main(folders: list[str]) -> None:
    """Print a line for each kind, and one for each folder."""
    seconds = seconds_by_file()
    files = [read(path, seconds[path]) for folder in folders for path in sorted(Path(folder).rglob("*.py"))]
    inside = [file for file in files if file.inside]
    print(f"{'':<32}{'files':>6}{'lines':>8}{'imports':>9}{'private':>9}{'patches':>9}{'seconds':>9}")
    print(row("all", files))
    print(row("what users use", [file for file in files if not file.inside]))
    print(row("inside", inside))
    for title, kind in (("inside, by folder", inside), ("all, by folder", files)):
        print(title)
        for folder in sorted({file.path.parent for file in kind}):
            print(row(f"  {folder}", [file for file in kind if file.path.parent == folder]))


def row(name: str, files: list[Found]) -> str:
    """A line of the table."""
    lines, imports, private, patches, seconds = (
        sum(getattr(file, count) for file in files) for count in ("lines", "imports", "private", "patches", "seconds")
    )
    return f"{name:<32}{len(files):>6}{lines:>8,}{imports:>9,}{private:>9,}{patches:>9,}{seconds:>9,.0f}"


if __name__ == "__main__":
    main(sys.argv[1:] or list(FOLDERS))
