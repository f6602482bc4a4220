"""Prompts from an argument, from standard input, or from a file of many."""

import gzip
import json
import re
import sys
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from drafttree.core.errors import InputError

EXCERPT = 600
"""Number of characters of a long text that are its prompt by default."""
SUFFIXES = (".jsonl", ".txt", ".raw", ".jsonl.gz", ".txt.gz", ".raw.gz")


@dataclass(frozen=True)
class Example:
    """A prompt with what its file says about it.

    Attributes:
        prompt: the text, the first turn of a conversation.
        category: the category of the task, such as "writing".
        later_turns: the user's later turns in the conversation.
        document: the document that the prompt is from, which others may be from too: the field "document" or, if it is
            missing, "title".
    """

    prompt: str
    category: str | None = None
    later_turns: tuple[str, ...] = ()
    document: str | None = None


def read_prompt(argument: str | None) -> str:
    """The prompt of a command: its argument, or standard input if that is "-" or missing.

    Raises:
        InputError: there is no prompt, or it is not UTF-8 text. Without an argument, a terminal is not read.
    """
    if argument is None and sys.stdin is not None and sys.stdin.isatty():
        raise InputError("there is no prompt; give one as an argument, or - to read standard input")
    prompt = _read_stdin() if argument in (None, "-") else argument
    try:
        prompt.encode()
    except UnicodeEncodeError:
        raise InputError("the prompt is not UTF-8 text") from None
    if not prompt:
        raise InputError("the prompt is empty; give at least one token")
    return prompt


def _read_stdin() -> str:
    """Standard input without its last line break."""
    if sys.stdin is None:
        raise InputError("standard input is closed; give the prompt as an argument")
    try:
        raw_bytes = sys.stdin.buffer.read()
    except (OSError, ValueError) as error:
        raise InputError(f"standard input cannot be read: {_reason(error)}") from None
    try:
        text = raw_bytes.decode()
    except UnicodeDecodeError as error:
        raise InputError(f"standard input is not UTF-8 text (byte {error.start})") from None
    if not text.strip():
        raise InputError("standard input is empty; give a prompt")
    return text.removesuffix("\n").removesuffix("\r")


def read_prompts(paths: Path | Iterable[Path], limit: int | None = None) -> list[str]:
    """The prompts of one or more files; arguments and errors as for `read_examples`."""
    return [example.prompt for example in read_examples(paths, limit)]


def read_examples(
    paths: Path | Iterable[Path],
    limit: int | None = None,
    *,
    category: str | None = None,
    excerpt: int | None = EXCERPT,
) -> list[Example]:
    """The prompts of one or more files, with what the files say about them.

    A `.jsonl` file holds an object per line with "prompt", "text" (its beginning is the prompt) or "turns" (the first
    is the prompt). It may also have a "category". A `.txt` file holds a prompt per line. A `.raw` file holds articles
    as in WikiText, whose beginnings are the prompts. Each may be compressed (`.gz`). Blank lines are skipped.

    Args:
        paths: the files, read in this order.
        limit: maximum number of prompts.
        category: take only prompts whose category begins with this.
        excerpt: maximum number of characters of a "text" or an article; None for all.

    Raises:
        InputError: a file cannot be read, a line is bad (the message has its number), or there is no prompt at all.
    """
    paths = [Path(paths)] if isinstance(paths, str | Path) else list(map(Path, paths))
    examples = chain.from_iterable(_prompts(path, excerpt) for path in paths)
    if category:
        examples = filter(lambda example: (example.category or "").startswith(category), examples)
    selection = list(islice(examples, limit))
    if not selection:
        raise InputError(f"{', '.join(map(str, paths))}: no prompts in it{_of_category(paths, category)}")
    return selection


def _of_category(paths: list[Path], category: str | None) -> str:
    """The end of the message about a category without prompts; empty if no category was asked for."""
    if not category:
        return ""
    categories = {example.category for path in paths for example in _prompts(path) if example.category}
    return f" of the category {category!r}; known: {', '.join(sorted(categories)) or 'none, as no line has a category'}"


def read_text(path: Path) -> str:
    """The text of a file.

    Raises:
        InputError: the file cannot be read or is not UTF-8 text.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {_reason(error)}") from None
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None


def spread_examples(paths: Iterable[Path], limit: int | None = None, **selection: Any) -> list[Example]:
    """The prompts of some files, equally many of each file, evenly spaced over the file.

    Args:
        paths: the files, in their order.
        limit: maximum number of prompts of all files together.
        **selection: `category` and `excerpt`, as `read_examples` takes them.

    Raises:
        InputError: as for `read_examples`.
    """
    files = [read_examples(path, **selection) for path in paths]
    if limit is None:
        return list(chain.from_iterable(files))
    examples = list[Example]()
    for file_index, file in enumerate(files):
        share = limit // len(files) + (file_index < limit % len(files))
        count = min(share, len(file))
        examples += [file[index * len(file) // count] for index in range(count)]
    return examples


def _prompts(path: Path, excerpt: int | None = EXCERPT) -> Iterator[Example]:
    name = path.name.removesuffix(".gz")
    if not path.name.endswith(SUFFIXES):
        raise InputError(f"{path}: not a prompt file; known: {', '.join(SUFFIXES)}")
    if name.endswith(".raw"):
        yield from (Example(_excerpt(article, excerpt)) for article in _articles(path))
        return
    for number, raw_line in enumerate(_lines(path), start=1):
        try:
            line = raw_line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
            if line.strip():
                yield _from_json(line, excerpt) if name.endswith(".jsonl") else Example(line)
        except UnicodeDecodeError:
            raise InputError(f"{path}, line {number}: not UTF-8 text") from None
        except ValueError as error:
            raise InputError(f"{path}, line {number}: {error}") from None


def _articles(path: Path) -> list[str]:
    try:
        text = b"".join(_lines(path)).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text (byte {error.start})") from None
    articles = re.split(r"^(?= = [^=])", text, flags=re.MULTILINE)
    return [article.strip() for article in articles if article.strip()]


def _lines(path: Path) -> Iterator[bytes]:
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            yield from file
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"{path}: cannot be read: {_reason(error)}") from None


def _from_json(line: str, excerpt: int | None) -> Example:
    """The prompt of a JSON object.

    Raises:
        ValueError: the line is not an object with a prompt.
    """
    try:
        entry = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"not JSON ({error.msg} at column {error.colno})") from None
    except RecursionError:
        raise ValueError("nested too deeply for a prompt") from None
    if not isinstance(entry, dict):
        raise ValueError(f"not an object but {type(entry).__name__}")
    turns = entry.get("turns")
    turns = turns if isinstance(turns, list) and turns else [turns]
    candidates = {"prompt": entry.get("prompt"), "text": entry.get("text"), "turns": turns[0]}
    key = next((key for key in candidates if key in entry), None)
    if key is None:
        raise ValueError("neither 'prompt' nor 'text' nor 'turns' in it")
    prompt = _text(key, candidates[key])
    later_turns = tuple(_text("turns", turn) for turn in turns[1:])
    category = _string("category", entry.get("category"))
    document = _string("document", entry.get("document")) or _string("title", entry.get("title")) or None
    return Example(_excerpt(prompt, excerpt) if key == "text" else prompt, category, later_turns, document)


def _text(key: str, value: object) -> str:
    """Return a value that must be text.

    Raises:
        ValueError: the value is not text, or is blank.
    """
    if not isinstance(value, str) or not value.strip():
        raise ValueError(f"{key!r} holds no text")
    if any("\ud800" <= character <= "\udfff" for character in value):
        raise ValueError(f"{key!r} holds half a surrogate pair, which is not text")
    return value


def _string(key: str, value: object) -> str | None:
    """Return a value that must be a string or None.

    Raises:
        ValueError: the value is something else.
    """
    if value is not None and not isinstance(value, str):
        raise ValueError(f"{key!r} holds no text")
    return value


def _excerpt(text: str, characters: int | None) -> str:
    """The first characters of a text, up to a whole word; the whole text if `characters` is None."""
    if characters is None or len(text) <= characters:
        return text
    return text[:characters].rsplit(None, 1)[0]


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error) or type(error).__name__
