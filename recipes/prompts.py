"""Reads the prompts that a target answers for a head's training, and leaves out those that are held out for measuring.

A line of a `.jsonl` file (also `.gz`) has a "prompt", a "question", "turns" (the first is the prompt) or a "text" of
Python. Each function with a docstring in such a text is a prompt that ends after the docstring, as in HumanEval.
"""

import gzip
import json
import random
import re
import textwrap
import zlib
from collections.abc import Iterable, Iterator
from itertools import chain, zip_longest
from pathlib import Path

from drafttree.measure.prompt_sets import shipped_sets

INSTRUCTION = "Complete the code I provided.\n\n"
"""Stands before every second function, as in EAGLE's prompts of HumanEval; the others are bare code."""
FUNCTION = re.compile(
    r'^( *)def \w+\((?:[^()]|\([^()]*\))*\)[^:\n]*:\n\s+r?("""|\'\'\').+?\2', re.MULTILINE | re.DOTALL
)
LONGEST = 1_500
"""Characters of the longest prompt; longer ones are left out."""
SHARED_WORDS = 13
"""Prompts that share this many words in a row are taken for the same (Brown et al. 2020, appendix C)."""


def training_prompts(files: Iterable[Path], held_out: Iterable[Path]) -> list[str]:
    """Return the prompts of files, shuffled, one of each file in turn; none is held out, and none occurs twice.

    Args:
        files: the files of prompts.
        held_out: files of prompts to leave out, besides those that ship with the library.

    Raises:
        ValueError: a file cannot be read, or no prompt is left; the message names it.
    """
    shipped = (example.prompt for examples in shipped_sets(excerpt=None) for example in examples)
    measured = HeldOut(chain(shipped, *map(read, held_out)))
    queues = []
    for path in files:
        prompts = [*dict.fromkeys(prompt for prompt in read(path) if len(prompt) <= LONGEST)]
        kept = [prompt for prompt in prompts if prompt not in measured]
        print(f"{path}: {len(kept):,} prompts, {len(prompts) - len(kept):,} more are held out", flush=True)
        random.Random(0).shuffle(kept)
        queues.append(kept)
    turns = chain.from_iterable(zip_longest(*queues))
    if found := [*dict.fromkeys(prompt for prompt in turns if prompt is not None)]:
        return found
    raise ValueError("the files of --prompts hold no prompt that is not held out; give other files")


class HeldOut:
    """The words of held-out prompts; `prompt in held_out` says whether a prompt shares text with one."""

    def __init__(self, prompts: Iterable[str]) -> None:
        self._runs = {run for prompt in prompts for run in _word_runs(prompt)}

    def __contains__(self, prompt: str) -> bool:
        return any(run in self._runs for run in _word_runs(prompt))


def _word_runs(text: str) -> Iterator[tuple[str, ...]]:
    """Every run of `SHARED_WORDS` words of a text; all of its words if it has fewer."""
    words = re.findall(r"\w+", text.removeprefix(INSTRUCTION).lower())
    for start in range(max(len(words) - SHARED_WORDS, 0) + 1):
        yield tuple(words[start : start + SHARED_WORDS])


def read(path: Path) -> list[str]:
    """Return the prompts of a file.

    Raises:
        ValueError: the file cannot be read, or a line holds no prompt.
    """
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            return [prompt for number, line in enumerate(file, 1) if line.strip() for prompt in _of_line(line, number)]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def _of_line(line: str, number: int) -> list[str]:
    """Return the prompts of a line of JSON."""
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if isinstance(row, dict):
        for found in (row.get("prompt"), row.get("question"), *(row.get("turns") or ())[:1]):
            if isinstance(found, str) and found.strip():
                return [found]
        if isinstance(row.get("text"), str):
            return _functions(row["text"])
    raise ValueError(f'line {number} has no "prompt", "question", "turns" or "text": {line.strip()[:60]}')


def _functions(text: str) -> list[str]:
    """The beginnings of a text's functions, up to the end of the docstring."""
    codes = (textwrap.dedent(match[0]) + "\n" for match in FUNCTION.finditer(text))
    return [INSTRUCTION * (number % 2) + code for number, code in enumerate(codes)]
