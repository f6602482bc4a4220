"""A code-editing set from this package's own source: each prompt asks to rename a symbol in a file."""

import ast
import re
from collections import Counter
from importlib.resources import files
from importlib.resources.abc import Traversable

from drafttree.evaluation.prompts import Example

MIN_CHARACTERS, MAX_CHARACTERS = 2_500, 9_000
"""Lengths of the files that are taken."""
PREFIXES = ("new", "other", "renamed")


def code_edits() -> list[Example]:
    """Make one example from each file of medium length, with the edited file as reference."""
    sources = [path.read_text(encoding="utf-8") for path in _sources(files("drafttree"))]
    medium = [source for source in sources if MIN_CHARACTERS <= len(source) <= MAX_CHARACTERS]
    return [_rename(source) for source in medium if _names(source)]


def _sources(folder: Traversable) -> list[Traversable]:
    entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    below = [path for entry in entries if entry.is_dir() for path in _sources(entry)]
    return [entry for entry in entries if entry.name.endswith(".py")] + below


def _names(source: str) -> set[str]:
    """The functions of a file and their arguments."""
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    names = {node.name for node in functions} | {arg.arg for node in functions for arg in node.args.args}
    return names - {"self", "cls"}


def _rename(source: str) -> Example:
    """Make an example that renames the function or argument mentioned most often in a file."""
    names = _names(source)
    mentions = Counter(word for word in re.findall(r"\w+", source) if word in names)
    old = max(sorted(mentions), key=mentions.__getitem__)
    new = next(name for prefix in PREFIXES if (name := f"{prefix}_{old.strip('_')}") not in source)
    prompt = (
        f"Rename `{old}` to `{new}` in this file and repeat the whole file.\n\n```python\n{source}```\n\n```python\n"
    )
    return Example(prompt, re.sub(rf"\b{old}\b", new, source) + "```\n")
