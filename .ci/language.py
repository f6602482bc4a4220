"""Count what makes code hard to read, by folder, and keep it from growing.

    python .ci/language.py            the table
    python .ci/language.py check      fail where a folder has become worse than .ci/language.json says
    python .ci/language.py write      write .ci/language.json

A name, of an argument or a local, is nounless if every word of it is in `NOUNLESS`: `own` or `found` says nothing of
what it holds. A word that is missing there is no better for it.
"""

import ast
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
BASELINE = ROOT / ".ci" / "language.json"
MOST_NAMES = 18
"""Arguments and locals of a function, above which it counts as crowded."""
WORDS = """
above added after all alone any asked away back before begun behind below beside best better beyond both but called
changed chosen deeper drawn each earlier ended even every few fewer first found fresh further given going gone good
half held here hidden inner joined kept kind kinds known last late later latest least left less like likely long made
many matched meant met missed missing more most much named needed new newest next none now old once one ones only open
opened other others outer own pair pairs part parts place placed places put read rest said same second seen set shared
shown single small some sorted split still such taken than that the their theirs them then there these thing things
third this those told tried twice under unknown until used usual waiting wanted what when where which whole with
without worse worst written yet
"""
NOUNLESS = frozenset(WORDS.split())
FOLDERS = ("src/drafttree", "lab/src/drafttree_lab")
NOTHING = dict.fromkeys(("nounless", "comprehensions", "parallel", "crowded"), 0)
"""What a folder may have that is not in the baseline."""
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Counts:
    """Counts of one folder.

    Attributes:
        names: names of arguments and locals, by function, those of lambdas too.
        nounless: those that hold no noun.
        statements: statements, docstrings left out.
        comprehensions: list, set and dict comprehensions and generator expressions.
        assignments: assignments.
        parallel: those of several values to several targets at once.
        crowded: functions of more than `MOST_NAMES` arguments and locals.
        most_names: the most of them in one function.
    """

    names: int = 0
    nounless: int = 0
    statements: int = 0
    comprehensions: int = 0
    assignments: int = 0
    parallel: int = 0
    crowded: int = 0
    most_names: int = 0

    @property
    def shares(self) -> dict[str, float]:
        """What must not grow."""
        return {
            "nounless": round(100 * self.nounless / max(self.names, 1), 1),
            "comprehensions": round(100 * self.comprehensions / max(self.statements, 1), 1),
            "parallel": round(100 * self.parallel / max(self.assignments, 1), 1),
            "crowded": self.crowded,
        }

    def add(self, tree: ast.Module) -> None:
        """Count a file."""
        for node in ast.walk(tree):
            self.statements += isinstance(node, ast.stmt) and not is_docstring(node)
            self.comprehensions += isinstance(node, COMPREHENSIONS)
            if isinstance(node, ast.Assign | ast.AnnAssign):
                self.assignments += 1
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                self.parallel += any(isinstance(target, ast.Tuple) for target in targets) and isinstance(
                    node.value, ast.Tuple | ast.GeneratorExp
                )
            if isinstance(node, FUNCTIONS | ast.Lambda) and not is_kernel(node):
                names = set(arguments_of(node))
                if isinstance(node, FUNCTIONS):
                    names |= set(locals_of(node))
                self.names += len(names)
                self.nounless += sum(map(is_nounless, names))
                count = len(names)
                self.crowded += count > MOST_NAMES
                self.most_names = max(self.most_names, count)


def is_kernel(function: FUNCTIONS | ast.Lambda) -> bool:
    """Whether a function runs on a GPU: its arguments are the pointers, strides and constants of a launch."""
    decorators = [] if isinstance(function, ast.Lambda) else function.decorator_list
    called = [each.func if isinstance(each, ast.Call) else each for each in decorators]
    return any(isinstance(each, ast.Attribute) and each.attr == "jit" for each in called)


def is_docstring(node: ast.AST) -> bool:
    """Whether a statement is a text and nothing else."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def is_nounless(name: str) -> bool:
    """Whether no word of a name is a noun."""
    words = name.strip("_").split("_")
    return words != [""] and all(word in NOUNLESS for word in words)


def arguments_of(function: FUNCTIONS | ast.Lambda) -> Iterator[str]:
    """The names of a function's arguments."""
    arguments = function.args
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]
    yield from (argument.arg for argument in listed if argument)


def locals_of(function: FUNCTIONS) -> Iterator[str]:
    """The names that a function binds, those in comprehensions too, but not those in functions within it."""
    for node in _inside(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def _inside(function: FUNCTIONS) -> Iterator[ast.AST]:
    waiting: list[ast.AST] = [*function.body]
    while waiting:
        node = waiting.pop()
        if isinstance(node, FUNCTIONS | ast.ClassDef):
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def folder_of(path: Path) -> str:
    """The folder that a file counts toward."""
    parts = path.relative_to(ROOT).parts
    if parts[0] == "lab":
        return "lab"
    return parts[2] if len(parts) > 3 else "drafttree"


def count(paths: Iterable[Path]) -> dict[str, Counts]:
    """The counts of files by folder."""
    counts: dict[str, Counts] = {}
    for path in sorted(paths):
        counts.setdefault(folder_of(path), Counts()).add(ast.parse(path.read_text()))
    return counts


def show(counts: dict[str, Counts]) -> None:
    """Print the table."""
    print(f"{'folder':14s}  names  nounless  comprehensions  parallel  crowded  most names")
    for folder, own in counts.items():
        shares = own.shares
        print(
            f"{folder:14s} {own.names:6d} {shares['nounless']:8.1f}% {shares['comprehensions']:11.1f}/100 "
            f"{shares['parallel']:9.1f}% {own.crowded:8d} {own.most_names:10d}"
        )
    total = Counts()
    for own in counts.values():
        for name, value in asdict(own).items():
            setattr(total, name, getattr(total, name) + value)
    print(f"{'all':14s} {total.names:6d} {total.shares['nounless']:8.1f}%", end=" ")
    print(f"{total.shares['comprehensions']:11.1f}/100 {total.shares['parallel']:9.1f}% {total.crowded:8d}")


def check(counts: dict[str, Counts]) -> list[str]:
    """What has become worse."""
    baseline = json.loads(BASELINE.read_text())
    return [
        f"{folder}: {name} {baseline.get(folder, NOTHING)[name]} -> {share}"
        for folder, folder_counts in counts.items()
        for name, share in folder_counts.shares.items()
        if share > baseline.get(folder, NOTHING)[name]
    ]


def main() -> int:
    """Run the command."""
    counts = count(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
    match sys.argv[1:]:
        case ["write"]:
            BASELINE.write_text(json.dumps({folder: own.shares for folder, own in counts.items()}, indent=1) + "\n")
        case ["check"]:
            if worse := check(counts):
                print("harder to read than before (.ci/language.json; python .ci/language.py):", *worse, sep="\n  ")
                return 1
        case _:
            show(counts)
    return 0


if __name__ == "__main__":
    sys.exit(main())
