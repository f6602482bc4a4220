"""Show that files compute what they computed in another commit: only names of locals, comments and docstrings differ.

    python .ci/same_code.py [COMMIT] [FILE ...]

Every function's byte code is compared, with its locals numbered as they come. COMMIT is HEAD by default; without files
all changed Python files are compared.
"""

import ast
import dis
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import CodeType

LOCAL = {"LOAD_FAST", "STORE_FAST", "DELETE_FAST", "LOAD_FAST_CHECK", "LOAD_FAST_AND_CLEAR"}
CAPTURED = {"LOAD_DEREF", "STORE_DEREF", "DELETE_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"}
UNORDERED = {"MAKE_CELL", "LOAD_CLOSURE", "COPY_FREE_VARS"}
"""Captured variables are sorted by their names, so that another name moves them."""


def instructions(code: CodeType) -> Iterator[object]:
    """A function's instructions, without the names of its locals, and those of the functions in it."""
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    yield arguments
    numbers = {name: number for number, name in enumerate(arguments)}
    unordered = Counter[str]()
    for each in dis.get_instructions(code):
        if each.opname in UNORDERED:
            unordered[each.opname] += 1
        elif each.opname in LOCAL | CAPTURED:
            yield each.opname, numbers.setdefault(str(each.argval), len(numbers))
        elif isinstance(each.argval, CodeType):
            yield each.opname, [*instructions(each.argval)]
        elif isinstance(each.argval, frozenset):
            yield each.opname, sorted(map(repr, each.argval))
        else:
            yield each.opname, repr(each.argval) if not each.opname.startswith(("JUMP", "POP_JUMP")) else None
    yield sorted(unordered.items())


def without_docstrings(source: str) -> CodeType:
    """The code of a file without its docstrings."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            node.body = [part for part in node.body if not is_text(part)] or [ast.Pass()]
    return compile(ast.fix_missing_locations(tree), "file", "exec")


def is_text(statement: ast.stmt) -> bool:
    """Whether a statement is a string that nobody takes: a docstring, or that of an attribute."""
    value = statement.value if isinstance(statement, ast.Expr) else None
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


def shown(commit: str, path: str) -> str:
    """A file as it was in a commit."""
    return subprocess.run(["git", "show", f"{commit}:{path}"], capture_output=True, text=True, check=True).stdout


def main() -> int:
    """Run the command."""
    commit, *paths = sys.argv[1:] or ["HEAD"]
    if not paths:
        changed = ["git", "diff", "--name-only", commit, "--", "*.py"]
        paths = subprocess.run(changed, capture_output=True, text=True, check=True).stdout.split()
    differing = 0
    for path in paths:
        before, after = without_docstrings(shown(commit, path)), without_docstrings(Path(path).read_text())
        if [*instructions(before)] != [*instructions(after)]:
            differing += 1
            print(f"{path}: {first_difference(before, after)}")
    print(f"{len(paths) - differing} of {len(paths)} files compute the same")
    return differing > 0


def first_difference(before: CodeType, after: CodeType, name: str = "") -> str:
    """The innermost function that differs."""
    nested_before = [each for each in before.co_consts if isinstance(each, CodeType)]
    nested_after = [each for each in after.co_consts if isinstance(each, CodeType)]
    for one, other in zip(nested_before, nested_after, strict=False):
        if [*instructions(one)] != [*instructions(other)]:
            return first_difference(one, other, f"{name}.{one.co_name}".strip("."))
    return f"{name or 'the module'} differs, line {after.co_firstlineno}"


if __name__ == "__main__":
    sys.exit(main())
