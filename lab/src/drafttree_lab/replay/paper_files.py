"""Reads the papers' files, and finds the line of a mistake, which tomllib does not tell."""

import re
import reprlib
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from drafttree.core.errors import ConfigError, unknown
from drafttree.measure.prompts import read_text
from drafttree_lab.replay.paper import Mistake, Paper, Place, Strict

BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")
"""A key that TOML allows without quotes."""
KEPT = "papers"
"""Name of the subfolder of a replay that has its papers from outside."""
_OUTSIDE: dict[str, Path] = {}
"""The files of the papers from outside, by name."""


def use_papers(paths: Sequence[Path]) -> list[str]:
    """Register papers from outside, in place of earlier ones, and return their names.

    Raises:
        ConfigError: a file has a mistake, or the name of another paper.
        InputError: a file cannot be read.
    """
    _OUTSIDE.clear()
    read_paper.cache_clear()
    for path in paths:
        if path.stem in paper_names():
            raise ConfigError(f"--paper {str(path)!r}: there is another paper {path.stem!r}; rename the file")
        _OUTSIDE[path.stem] = path
        read_paper(path.stem)
    return list(_OUTSIDE)


def keep_papers(folder: Path) -> None:
    """Copy the files of papers from outside to the folder of a replay, for its report."""
    for name, path in _OUTSIDE.items():
        (folder / KEPT).mkdir(exist_ok=True)
        (folder / KEPT / f"{name}.toml").write_bytes(path.read_bytes())


def outside_file(name: str) -> Path | None:
    """The file of a paper from outside; None for one of drafttree's."""
    return _OUTSIDE.get(name)


@cache
def read_paper(name: str) -> Paper:
    """A paper by its name.

    Raises:
        ConfigError: the paper is unknown, or its file has a mistake; the message has the line.
        InputError: the file cannot be read.
    """
    text = _read(name)
    try:
        return Paper.model_validate(tomllib.loads(text))
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{_OUTSIDE.get(name, name)}: {error}") from None
    except ValidationError as error:  # an unknown key comes first: a missing one may be the same key misspelt
        problem = min(error.errors(), key=lambda detail: detail["type"] != "extra_forbidden")
    context = problem.get("ctx", {})
    cause = context.get("error")
    steps = (*problem["loc"], *(cause.key_path if isinstance(cause, Mistake) else ()))
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "extra_forbidden":
        keys = _keys(Strict)
        message = f"no key {steps[-1]!r} here" if steps[-1] in keys else str(unknown("key", steps[-1], keys))
    elif problem["type"] == "missing":
        message = f"{steps[-1]!r} is missing"
    elif problem["type"] == "union_tag_invalid" and context.keys() >= {"tag", "expected_tags"}:
        steps = (*steps, "kind")
        message = f"{context['tag']!r} is not one of {context['expected_tags'].replace(chr(39), '')}"
    elif message.startswith("Input should"):
        message = f"{reprlib.repr(problem['input'])} is wrong: {message.replace('Input', 'it', 1)}"
    raise mistake(name, steps, message)


def mistake(paper: str, steps: Sequence[str | int], problem: str) -> ConfigError:
    """An error with the file of a paper, the line, the key and the problem.

    Args:
        paper: name of the paper.
        steps: the path of the key, as for `locate`.
        problem: what is wrong.
    """
    key_path, line = locate(_read(paper), steps)
    location = f"{_OUTSIDE.get(paper, paper)}" + (f", line {line}" if line else "")
    return ConfigError(": ".join(filter(None, [location, _dotted(key_path), problem])))


def measurable_claims(papers: Sequence[str], timed: bool) -> int:
    """The number of claims of some papers that can be judged by counts, or by time; papers without a file have none."""
    existing_papers = [name for name in papers if name in paper_names()]
    results = (result for name in existing_papers for result in read_paper(name).results.values())
    return sum(result.is_judged(claim, timed=timed) for result in results for claim in result.claims)


def paper_names() -> list[str]:
    """The names of all papers, drafttree's first."""
    shipped_names = sorted(
        file.name.removesuffix(".toml") for file in _folder().iterdir() if file.name.endswith(".toml")
    )
    return [*shipped_names, *_OUTSIDE]


def _folder():
    return files("drafttree_lab.replay") / "papers"


def _read(name: str) -> str:
    if path := _OUTSIDE.get(name):
        return read_text(path)
    if name not in paper_names():
        raise unknown("paper", name, paper_names())
    return (_folder() / f"{name}.toml").read_text(encoding="utf-8")


def _dotted(key_path: Place) -> str:
    """A path as TOML writes it, without indices: the line shows which element of a list it is in."""
    names = (step for step in key_path if isinstance(step, str))
    return ".".join(name if BARE_KEY.fullmatch(name) else f'"{name}"' for name in names)


def _keys(model: type[BaseModel]) -> set[str]:
    """The keys of a model and of all its subclasses."""
    return {*model.model_fields}.union(*map(_keys, model.__subclasses__()))


def locate(text: str, steps: Sequence[str | int]) -> tuple[Place, int | None]:
    """The part of a path that a document has, and the line of its last key; None if it has none of it.

    Args:
        text: a valid TOML document.
        steps: a location from pydantic. It may have steps that are not keys, and its last key may be missing.
    """
    lines = _key_lines(text)
    key_path: Place = ()
    for step in steps:
        if (*key_path, step) in lines:
            key_path = (*key_path, step)
    return key_path, lines.get(key_path)


def _key_lines(text: str) -> dict[Place, int]:
    """The line of every key; keys within a statement have its first line."""
    lines: dict[Place, int] = {}
    lengths = Counter[Place]()
    table: Place = ()
    statement = ""
    begin = 1
    for number, line in enumerate(text.splitlines(keepends=True), 1):
        begin = begin if statement else number
        statement += line
        try:
            document = tomllib.loads(statement)
        except tomllib.TOMLDecodeError:  # the statement continues on the next line
            continue
        if statement.lstrip().startswith("["):
            *_, header = _places(document)
            table = ()
            for step in header:
                if step == 0:  # one more element of a list of tables
                    step, lengths[table] = lengths[table], lengths[table] + 1
                elif lengths[table]:  # within the last element of a list
                    table = (*table, lengths[table] - 1)
                table = (*table, step)
                lines.setdefault(table, begin)
        else:
            lines |= {(*table, *key_path): begin for key_path in _places(document)}
        statement = ""
    return lines


def _places(value: Any) -> Iterator[Place]:
    """The paths of everything in a value."""
    steps = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for step, child in steps:
        yield (step,)
        yield from ((step, *key_path) for key_path in _places(child))
