"""Reads the training text: public-domain books, WikiText-2, dialogues, questions, and a little Python.

The text is given the form that users type: WikiText's tokenisation is undone, and exchanges become `User:` /
`Assistant:` lines, the format of the exported tokenizer's chat template.
"""

import gzip
import json
import random
import re
import zlib
from collections.abc import Iterator
from pathlib import Path

END_OF_TEXT = "<|endoftext|>"
READABLE = (".txt", ".txt.gz", ".jsonl", ".jsonl.gz")


def documents(data: Path, seed: int = 0) -> list[str]:
    """Return all training documents, shuffled to mix the sources."""
    texts = [*_wikitext(data), *_books(data), *_plain(data), *_exchanges(data), *_dialogues(data)]
    texts = [text.strip() + "\n" for text in texts if text.strip()]
    random.Random(seed).shuffle(texts)
    return texts


def texts(source: Path) -> list[str]:
    """Return the documents of a file or folder, which has the layout of `documents` or any text and JSON-lines files.

    Raises:
        ValueError: there is no text in it, or a file cannot be read; the message names it.
    """
    if not source.exists():
        raise ValueError(f"{source} does not exist; give a file or folder of text")
    if (source / "books/train.jsonl.gz").exists():
        return documents(source)
    files = sorted(path for path in source.rglob("*") if path.is_file()) if source.is_dir() else [source]
    found = [text for path in files if path.name.endswith(READABLE) for text in _read(path) if text.strip()]
    if not found:
        raise ValueError(f"{source} holds no text; expected files named {', '.join('*' + end for end in READABLE)}")
    return found


def _read(path: Path) -> list[str]:
    """Read a text file as one document, or a JSON-lines file as one document per line."""
    opened = gzip.open if path.suffix == ".gz" else open
    try:
        with opened(path, "rt", encoding="utf-8") as file:
            if ".txt" in path.suffixes[-2:]:
                return [file.read()]
            return [_text(line, number) for number, line in enumerate(file, 1) if line.strip()]
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"cannot read {path}: {error}") from error


def _text(line: str, number: int) -> str:
    """Return the `text` of a line of JSON."""
    try:
        row = json.loads(line)
    except ValueError:
        row = None
    if isinstance(row, dict) and isinstance(row.get("text"), str):
        return row["text"]
    raise ValueError(f'line {number} is not of the form {{"text": "..."}}: {line.strip()[:60]}')


def read_jsonl(path: Path) -> Iterator[dict]:
    """Yield the objects of a gzipped JSON-lines file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def chat(turns: list[tuple[str, str]]) -> str:
    """Format (speaker, words) pairs as the chat template in tokens.py does."""
    return "".join(f"{speaker}: {words.strip()}\n" for speaker, words in turns)


def detokenise(line: str) -> str:
    """Undo WikiText's tokenisation: joined hyphens and numbers, punctuation against its word, paired quotes."""
    line = re.sub(r" @([-,.])@ ", r"\1", line)
    line = re.sub(r' " ([^"]*?) " ', r' "\1" ', line)
    line = re.sub(r' " ([^"]*?) "', r' "\1"', line)
    line = re.sub(r" ([,.;:!?%)\]}]|'(?:s|t|re|ve|ll|d|m)\b|n't\b)", r"\1", line)
    line = re.sub(r"([(\[{$£#]) ", r"\1", line)
    return re.sub(r"  +", " ", line).strip()


def articles(text: str) -> Iterator[str]:
    """Yield WikiText articles as plain text; a first-level heading (`= Title =`) begins one."""
    lines: list[str] = []
    for line in text.split("\n"):
        level, line = _heading(line)
        if level == 1 and lines:
            yield "\n".join(lines)
            lines = []
        line = line if level else _without_unknown(line)
        if line := detokenise(line):
            lines.append(f"\n{line}\n" if level else line)
    yield "\n".join(lines)


def _heading(line: str) -> tuple[int, str]:
    """(level, title) of a heading such as `= = Plot = =`, or (0, line)."""
    match = re.fullmatch(r"\s*((?:= )+)(.*?)((?: =)+)\s*", line)
    if not match or "<unk>" in line:
        return 0, line
    return match[1].count("="), match[2]


def _without_unknown(line: str) -> str:
    """Drop the sentences that contain `<unk>`, so that a model never learns to write it."""
    if "<unk>" not in line:
        return line
    sentences = re.split(r"(?<= [.!?]) ", line.strip())
    return " ".join(sentence for sentence in sentences if "<unk>" not in sentence)


def _wikitext(data: Path) -> Iterator[str]:
    with gzip.open(data / "wikitext2/wiki.train.tokens.gz", "rt", encoding="utf-8") as file:
        yield from articles(file.read())


def _books(data: Path) -> Iterator[str]:
    return (book["text"] for book in read_jsonl(data / "books/train.jsonl.gz"))


def _plain(data: Path) -> Iterator[str]:
    for name in ("python_stdlib", "mbpp_train", "state_of_the_union"):
        yield from (row["text"] for row in read_jsonl(data / f"train/{name}.jsonl.gz"))


def _exchanges(data: Path) -> Iterator[str]:
    for name in ("gsm8k_train", "nq_open_qa", "self_instruct_human"):
        for row in read_jsonl(data / f"train/{name}.jsonl.gz"):
            question, answer = row.get("question", row.get("prompt")), row.get("answer", row.get("response"))
            yield chat([("User", question), ("Assistant", answer)])


def _dialogues(data: Path) -> Iterator[str]:
    speakers = {"A": "User", "B": "Assistant", "User": "User", "System": "Assistant"}
    for name in ("topical_chat", "sgd_dialogues"):
        for row in read_jsonl(data / f"train/{name}.jsonl.gz"):
            turns = (line.partition(": ") for line in row["text"].splitlines())
            yield chat([(speakers.get(who, "User"), words) for who, _, words in turns if words])
