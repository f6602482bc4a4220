"""Break the code in small ways and count which breaks the tests notice: `python .ci/mutants.py NAME [TESTS ...]`.

Of every file or pattern of `TARGETS` a seeded sample of mutants is made: a comparison turned, a sign changed, a number
off by one, a condition negated, a statement left out. The tests that `TARGETS` names run, or those that are given,
until one fails. Results are lines of `build/mutants/NAME.jsonl`; a run that was ended goes on where it was.
"""

import argparse
import ast
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
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path("src/drafttree")
TARGETS = {
    "engine/tree_growth.py": ["tests/promises", "tests/engine"],
    "engine/round_loop.py": ["tests/promises", "tests/engine"],
    "engine/prefix_cache.py": ["tests/promises", "tests/engine"],
    "engine/batching/scheduler.py": ["tests/promises", "tests/engine/batching"],
    "verifiers/*.py": ["tests/verifiers", "tests/evaluation/test_exactness.py"],
    "drafters/session.py": ["tests/drafters"],
    "interfaces/server/reply.py": ["tests/interfaces/server"],
    "interfaces/server/answer.py": ["tests/interfaces/server"],
}
"""Files that are broken, each with the tests that name its folder."""
SAMPLE = 40
"""Mutants of each."""
SECONDS = 900
"""Of CPU, or four times as many on the clock, after which a mutant that still runs counts as caught: it hangs."""

OPPOSITES = {
    **{ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq},
    **{ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In, ast.And: ast.Or, ast.Or: ast.And},
    **{ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult},
    **{ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd},
}


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


def mutants(path: Path) -> Iterator[tuple[str, str]]:
    """Every mutant of a file: what was changed where, and the file's text."""
    tree = ast.parse(path.read_text())
    types = {id(inner) for node in ast.walk(tree) for outer in _annotations(node) for inner in ast.walk(outer)}
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
                        f"{path.relative_to(SOURCE)}:{getattr(node, 'lineno', 0)}:{getattr(node, 'col_offset', 0)}: "
                        f"{ast.unparse(node).splitlines()[0]}"
                    )
                    yield (
                        f"{what} -> {ast.unparse(changed).splitlines()[0]}",
                        ast.unparse(ast.fix_missing_locations(tree)),
                    )
                    setattr(parent, name, value)


def _annotations(node: ast.AST) -> list[ast.AST]:
    """Parts of a node that no run reads."""
    found = [getattr(node, "annotation", None), getattr(node, "returns", None)]
    return [each for each in found if each is not None]


def run(path: Path, text: str, tests: list[str], folder: Path) -> tuple[str, float]:
    """Run the tests on a mutant in a forked process, which has the large libraries loaded."""
    begun = time.monotonic()
    process = os.fork()
    if process == 0:
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
        copy_of = folder / "src" / "drafttree"
        shutil.rmtree(folder / "src", ignore_errors=True)
        shutil.copytree(SOURCE, copy_of, symlinks=True)
        (copy_of / path.relative_to(SOURCE)).write_text(text)
        sys.path.insert(0, str(folder / "src"))
        os.environ["PYTHONPATH"] = os.pathsep.join([str(folder / "src"), str(Path("lab/src").absolute())])
        quiet = os.open(folder / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(folder / "hypothesis")
        import pytest

        os._exit(pytest.main(["-x", "-q", "-n", "0", "-p", "no:cacheprovider", "--hypothesis-seed=0", *tests]))
    done = 0
    try:
        while time.monotonic() - begun < 4 * SECONDS:
            done, status = os.waitpid(process, os.WNOHANG)
            if done:
                return "caught" if os.waitstatus_to_exitcode(status) else "survived", time.monotonic() - begun
            time.sleep(0.1)
        return "hangs", time.monotonic() - begun
    finally:
        if not done:
            os.killpg(process, signal.SIGKILL)
            os.waitpid(process, 0)


def ordered(tests: list[str], target: str) -> list[str]:
    """The test files in their order, but first those named after the target, since they fail soonest."""
    files = [
        file for each in tests for file in (sorted(Path(each).rglob("test_*.py")) if Path(each).is_dir() else [each])
    ]
    name = Path(target).stem if "*" not in target else Path(target).parent.name
    return [str(each) for each in sorted(files, key=lambda file: name not in str(file))]


def main() -> None:
    """Try the mutants that have no result yet, and print the share that is caught."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="of the run, whose results are kept")
    parser.add_argument("tests", nargs="*", help="what to run in place of each target's folder")
    parser.add_argument("--only", help="one of the targets")
    options = parser.parse_args()
    kept = Path("build/mutants") / f"{options.name}.jsonl"
    kept.parent.mkdir(parents=True, exist_ok=True)
    results = [json.loads(line) for line in kept.read_text().splitlines()] if kept.exists() else []
    for library in ("hypothesis", "torch", "transformers"):
        importlib.import_module(library)
    folder = Path("build/mutants").absolute() / f"{options.name}-{os.getpid()}"
    folder.mkdir()
    for target, tests in TARGETS.items():
        if options.only not in (None, target):
            continue
        paths = sorted(SOURCE.glob(target))
        found = [(what, path, text) for path in paths for what, text in mutants(path)]
        files = ordered(options.tests or tests, target)
        if run(paths[0], paths[0].read_text(), files, folder)[0] != "survived":
            sys.exit(f"{target}: its tests fail on the code as it is; see {folder / 'output'}")
        sample = random.Random(target).sample(found, min(SAMPLE, len(found)))
        for what, path, text in sample:
            if any(each["mutant"] == what for each in results):
                continue
            result, seconds = run(path, text, files, folder)
            results.append({"target": target, "mutant": what, "result": result, "seconds": round(seconds, 1)})
            with kept.open("a") as file:
                file.write(json.dumps(results[-1]) + "\n")
        own = [each for each in results if each["target"] == target]
        caught = sum(each["result"] != "survived" for each in own)
        print(f"{target}: {caught} of {len(own)} caught", flush=True)
    shutil.rmtree(folder)


if __name__ == "__main__":
    main()
