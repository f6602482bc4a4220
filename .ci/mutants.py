"""Break the code in small ways and count which breaks the tests notice: `python .ci/mutants.py NAME`.

Of every file or pattern of `TARGETS` a seeded sample of mutants is made: a comparison turned, a sign changed, a number
off by one, a condition negated, a statement left out. First the tests that `TARGETS` names run once, with the targets
noting which of their statements each test runs; then every mutant meets the tests that run its statement, the shortest
first, as many as take `BUDGET` seconds, until one fails. Tests that fail on the code as it is are left out and named.
Results are lines of `build/mutants/NAME.jsonl`; a run that was ended goes on where it was.

`--before OTHER` judges a suite from which tests went by the mutants of the run OTHER: where the test that caught one is
still there, it is caught again.
"""

import argparse
import ast
import builtins
import copy
import importlib
import json
import os
import random
import resource
import shutil
import signal
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

SOURCES = Path("src"), Path("lab/src")
TARGETS = {
    "src/drafttree/engine/drafting/tree_growth.py": ["tests/promises", "tests/engine"],
    "src/drafttree/engine/round_loop.py": ["tests/promises", "tests/engine"],
    "src/drafttree/engine/prefixes.py": ["tests/promises", "tests/engine"],
    "src/drafttree/engine/drafting/acceptance_watch.py": ["tests/promises", "tests/engine"],
    "src/drafttree/engine/batching/scheduler.py": ["tests/promises", "tests/engine"],
    "src/drafttree/engine/drafting/controller.py": ["tests/promises", "tests/engine"],
    "src/drafttree/verifiers/*.py": ["tests/verifiers", "tests/evaluation/test_exactness.py"],
    "src/drafttree/evaluation/scripted_random.py": ["tests/verifiers", "tests/evaluation/test_exactness.py"],
    "src/drafttree/drafters/session.py": ["tests/drafters"],
    "src/drafttree/drafters/formats/checkpoints.py": ["tests/drafters"],
    "src/drafttree/models/target_model.py": ["tests/models"],
    "src/drafttree/constraints/patterns.py": ["tests/constraints"],
    "src/drafttree/loading/pretrained.py": ["tests/loading"],
    "src/drafttree/measure/interval.py": ["tests/measure", "tests/evaluation/tune", "tests/interfaces/cli"],
    "src/drafttree/interfaces/server/errors.py": ["tests/interfaces/server"],
    "src/drafttree/interfaces/server/reply.py": ["tests/interfaces/server"],
    "src/drafttree/interfaces/server/texts.py": ["tests/interfaces/server"],
    "src/drafttree/interfaces/server/*/reply.py": ["tests/interfaces/server"],
    "lab/src/drafttree_lab/report/page.py": ["lab/tests/report", "lab/tests/commands"],
}
"""Files that are broken, each with the tests that name its folder."""
SAMPLE = 40
"""Mutants of each."""
BUDGET = 60
"""Seconds that the tests of one mutant may have taken on the code as it is."""
SECONDS = 200
"""Of CPU, or four times as many on the clock, after which a mutant that still runs counts as caught: it hangs."""

OPPOSITES = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}


class Mutant(NamedTuple):
    name: str
    """Where what was changed."""
    path: Path
    text: str
    statement: str
    """That was changed, as `Recorder.ran` names it, or the file if it stands outside every function."""


def changes(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in a node's place."""
    match node:
        case ast.Compare(ops=[op]) if type(op) in OPPOSITES:
            yield ast.Compare(node.left, [OPPOSITES[type(op)]()], node.comparators)
        case ast.BinOp(op=op) if type(op) in OPPOSITES and not isinstance(node.left, ast.Constant | ast.JoinedStr):
            yield ast.BinOp(node.left, OPPOSITES[type(op)](), node.right)
        case ast.BoolOp(op=op):
            yield ast.BoolOp(OPPOSITES[type(op)](), node.values)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.IfExp():
            yield ast.IfExp(node.test, node.orelse, node.body)
        case ast.If() | ast.While():
            changed = copy.copy(node)
            changed.test = ast.UnaryOp(ast.Not(), node.test)
            yield changed
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value)):
            yield ast.Constant(value + 1)
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Delete() | ast.Continue() | ast.Break():
            yield ast.Pass()
        case _:
            pass


def mutants(path: Path) -> Iterator[Mutant]:
    """Every mutant of a file."""
    tree = ast.parse(path.read_text())
    types = {id(inner) for node in ast.walk(tree) for outer in _annotations(node) for inner in ast.walk(outer)}
    statements = _statements(tree, path)
    for parent in ast.walk(tree):
        for name, value in ast.iter_fields(parent):
            places = value if isinstance(value, list) else [value]
            for place, node in enumerate(places):
                if not isinstance(node, ast.AST) or id(node) in types:
                    continue
                for changed in changes(node):
                    new = [*places[:place], changed, *places[place + 1 :]]
                    setattr(parent, name, new if isinstance(value, list) else changed)
                    what = (
                        f"{path}:{getattr(node, 'lineno', 0)}:{getattr(node, 'col_offset', 0)}: "
                        f"{ast.unparse(node).splitlines()[0]} -> {ast.unparse(changed).splitlines()[0]}"
                    )
                    text = ast.unparse(ast.fix_missing_locations(tree))
                    yield Mutant(what, path, text, statements.get(id(node), str(path)))
                    setattr(parent, name, value)


def _annotations(node: ast.AST) -> list[ast.AST]:
    """Parts of a node that no run reads."""
    found = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [each for each in found if each is not None]


def _bodies(tree: ast.AST) -> Iterator[list[ast.stmt]]:
    """Lists of statements inside functions, outer ones first."""
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {id(inner): inner for function in functions for inner in ast.walk(function)}
    for node in inside.values():
        if not isinstance(node, ast.ClassDef):
            for field in ("body", "orelse", "finalbody"):
                if isinstance(getattr(node, field, None), list):
                    yield getattr(node, field)


def _statements(tree: ast.AST, path: Path) -> dict[int, str]:
    """Of every node inside a function, by its `id`, the innermost statement that holds it."""
    found = {}
    for body in sorted(_bodies(tree), key=lambda body: body[0].lineno if body else 0):
        for statement in body:
            name = f"{path}:{statement.lineno}"
            found.update((id(inner), name) for inner in ast.walk(statement))
    return found


def recording(path: Path) -> str:
    """The file's text with every statement inside a function noting that it runs."""
    tree = ast.parse(path.read_text())
    for body in list(_bodies(tree)):
        noted = []
        for statement in body:
            docstring = isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
            if not docstring:
                noted += ast.parse(f"_ran('{path}:{statement.lineno}')").body
            noted.append(statement)
        body[:] = noted
    first = 1 if ast.get_docstring(tree) is not None else 0
    while isinstance(tree.body[first], ast.ImportFrom) and getattr(tree.body[first], "module", "") == "__future__":
        first += 1
    tree.body[first:first] = ast.parse("import builtins\nbuiltins.__dict__.setdefault('_ran', set().add)").body
    return ast.unparse(ast.fix_missing_locations(tree))


class Recorder:
    """A plugin of pytest that writes what statements each test ran, and how long it took."""

    def __init__(self, file: Path) -> None:
        self.file, self.ran, self.failed = file, set(), False
        builtins._ran = self.ran.add

    def pytest_runtest_logstart(self) -> None:
        self.ran.clear()
        self.failed, self.begun = False, time.monotonic()

    def pytest_runtest_logreport(self, report) -> None:
        self.failed |= report.failed

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        seconds = time.monotonic() - self.begun
        with self.file.open("a") as file:
            file.write(
                json.dumps({"test": nodeid, "seconds": seconds, "failed": self.failed, "ran": sorted(self.ran)}) + "\n"
            )


class Chosen:
    """A plugin of pytest that runs certain tests alone, in the order of their files, and writes the one that fails."""

    def __init__(self, tests: list[str], failed: Path) -> None:
        self.tests, self.failed = set(tests), failed
        self.failed.write_text("")
        self.files = {test.split("::")[0]: place for place, test in reversed(list(enumerate(tests)))}

    def pytest_collection_modifyitems(self, items: list) -> None:
        items[:] = [item for item in items if item.nodeid in self.tests]
        items.sort(key=lambda item: self.files[item.nodeid.split("::")[0]])

    def pytest_runtest_logreport(self, report) -> None:
        if report.failed:
            self.failed.write_text(report.nodeid)


def run(texts: dict[Path, str], options: Iterable[str], plugin: object, folder: Path, seconds: int) -> str:
    """Run tests on changed files in a forked process, which has the large libraries loaded."""
    begun = time.monotonic()
    process = os.fork()
    if process == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
        for source in SOURCES:
            shutil.rmtree(folder / source, ignore_errors=True)
            shutil.copytree(source, folder / source, symlinks=True)
        for path, text in texts.items():
            (folder / path).write_text(text)
        copies = [str(folder / source) for source in SOURCES]
        sys.path[:0] = copies
        os.environ["PYTHONPATH"] = os.pathsep.join(copies)
        quiet = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
        import pytest
        from hypothesis import settings

        settings.register_profile("mutants", deadline=None)
        settings.load_profile("mutants")
        os._exit(
            pytest.main(["-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0", *options], plugins=[plugin])
        )
    done = 0
    try:
        while time.monotonic() - begun < 4 * seconds:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                return "caught" if os.waitstatus_to_exitcode(status) else "survived"
            time.sleep(0.1)
        return "hangs"
    finally:
        if not done:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)


def recorded(tests: list[str], folder: Path) -> list[dict]:
    """What each test runs of the targets that these tests are for; tests that fail are named and left out."""
    kept = folder.parent / f"{folder.name.rsplit('-', 1)[0]}-{'-'.join(tests).replace('/', '.')}.tests"
    if not kept.exists():
        paths = [path for target, own in TARGETS.items() if own == tests for path in Path().glob(target)]
        file = folder / "tests.jsonl"
        file.unlink(missing_ok=True)
        files = [each for each in tests if Path(each).exists()]
        run({path: recording(path) for path in paths}, files, Recorder(file), folder, 60 * SECONDS)
        file.rename(kept)
    found = [json.loads(line) for line in kept.read_text().splitlines()]
    for each in found:
        if each["failed"]:
            print(f"left out, since it fails without a mutant: {each['test']}", flush=True)
    return sorted((each for each in found if not each["failed"]), key=lambda each: each["seconds"])


def chosen(mutant: Mutant, tests: list[dict]) -> list[str]:
    """The shortest tests that run the mutant's statement, as many as the budget allows, by file: the shortest first.

    What runs on import alone is for all the tests that run something of its file.
    """
    own = [each for each in tests if mutant.statement in each["ran"]]
    file = mutant.statement.split(":")[0]
    total, files = 0.0, {}
    for each in own or [each for each in tests if any(ran.split(":")[0] == file for ran in each["ran"])]:
        total += each["seconds"]
        if total > BUDGET and files:
            break
        files.setdefault(each["test"].split("::")[0], []).append(each["test"])
    return [test for tests in files.values() for test in tests]


def read_results(name: str) -> list[dict]:
    """What is kept of a run."""
    kept = Path("build/mutants") / f"{name}.jsonl"
    return [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []


def tried(mutant: Mutant, known: list[dict], folder: Path) -> dict:
    """Whether a mutant is caught, by which test, by how many tests at most and in how many seconds."""
    begun, names = time.monotonic(), chosen(mutant, known)
    files = list(dict.fromkeys(name.split("::")[0] for name in names))
    failed = folder / "failed"
    plugin = Chosen(names, failed)
    result = run({mutant.path: mutant.text}, ["-x", *files], plugin, folder, SECONDS) if names else "survived"
    taken = round(time.monotonic() - begun, 1)
    return {"result": result, "caught_by": failed.read_text(), "tests": len(names), "seconds": taken}


def main() -> None:
    """Try the mutants that have no result yet, and print the share that is caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of the run, whose results are kept")
    parser.add_argument("--only", help="some of the targets, with commas between them")
    parser.add_argument("--before", help="the run of a suite from which tests went since")
    options = parser.parse_args()
    kept = Path("build/mutants") / f"{options.name}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    results = read_results(options.name)
    before = {result["mutant"]: result for result in read_results(options.before)} if options.before else {}
    for library in ("hypothesis", "torch", "transformers"):
        importlib.import_module(library)
    folder = Path("build/mutants").absolute() / f"{options.name}-{os.getpid()}"
    folder.mkdir()
    for target, tests in TARGETS.items():
        if options.only is not None and target not in options.only.split(","):
            continue
        known = recorded(tests, folder)
        found = [mutant for path in sorted(Path().glob(target)) for mutant in mutants(path)]
        for mutant in random.Random(target).sample(found, min(SAMPLE, len(found))):
            if any(each["mutant"] == mutant.name for each in results):
                continue
            result = before.get(mutant.name)
            if not result or result["caught_by"] not in {test["test"] for test in known}:
                result = {"target": target, "mutant": mutant.name} | tried(mutant, known, folder)
            results.append(result)
            with kept.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
        own = [each for each in results if each["target"] == target]
        caught = sum(each["result"] != "survived" for each in own)
        print(f"{target}: {caught} of {len(own)} caught", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
