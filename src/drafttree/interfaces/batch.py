"""A text for every line of a file: one record a line, in order, from which an interrupted run goes on.

A line is a JSON object with "prompt" (text or token ids) or "messages", perhaps an "id", and options of
`Decoder.generate`, or a string alone, which is a prompt. A record has the line's "id", its text and why it ends; of a
line that fails, the error. "input" is a digest of the line and of the command, by which a record is known again.
"""

import hashlib
import json
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drafttree.core.errors import InputError
from drafttree.evaluation.json_lines import append_line, whole_lines
from drafttree.evaluation.prompts import read_text

if TYPE_CHECKING:
    from drafttree.engine import Decoder, Engine, Generation, Handle

MAX_BATCH = 16
LINES_AHEAD = 4
"""Lines for each text at once that are submitted before the first of them has ended; a long one then holds up none."""

OBJECTS = {"generation_config", "grammar", "logits_processor", "stopping_criteria", "watermarking_config"}
"""Options of `Decoder.generate` that JSON cannot say."""


class Job(NamedTuple):
    """A line to write a text for: its number, its JSON, and the digest of it and of the command."""

    line: int
    text: str
    digest: str


@dataclass
class BatchReport:
    """What became of the lines.

    Attributes:
        lines: of the file, without blank ones.
        skipped: those that had a record already, failed ones included.
        failed: those whose record is an error, in earlier runs too.
        tokens: generated in this run.
        seconds: generating them, many at once.
    """

    lines: int
    skipped: int = 0
    failed: int = 0
    tokens: int = 0
    seconds: float = 0.0

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return asdict(self)


def read_jobs(source: Path, command: object) -> list[Job]:
    """The lines of a file, blank ones left out.

    Args:
        source: the file.
        command: what else decides what the texts are.

    Raises:
        InputError: it cannot be read, or holds nothing.
    """
    lines = enumerate(read_text(source).removeprefix("\ufeff").split("\n"), start=1)
    jobs = [Job(number, line, _digest(line, command)) for number, line in lines if line.strip()]
    if not jobs:
        raise InputError(f"{source}: no lines in it")
    return jobs


def read_records(target: Path, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """The records of an earlier run of the same command; a line that was cut short is removed from the file.

    Raises:
        InputError: the file cannot be written, or holds something else.
    """
    records = []
    for number, line in enumerate(whole_lines(target), start=1):
        try:
            record = json.loads(line)
            same = number <= len(jobs) and record["input"] == jobs[number - 1].digest
        except (ValueError, TypeError, KeyError):
            raise InputError(f"{target}, line {number}: no record of drafttree batch; name another file") from None
        if not same:
            raise InputError(f"{target}, line {number}: made from another line or command; name another file")
        records.append(record)
    return records


def run_batch(
    decoder: "Decoder",
    jobs: Sequence[Job],
    target: Path,
    records: Sequence[Mapping[str, Any]],
    options: Mapping[str, Any],
    progress: Callable[[str], None] = lambda _: None,
    max_batch: int = MAX_BATCH,
) -> BatchReport:
    """Write the texts of the lines that have no record yet, many at once.

    Args:
        decoder: writes them.
        jobs: of `read_jobs`.
        target: the file that records are appended to.
        records: of `read_records`.
        options: of `Decoder.generate`, where a line does not have its own.
        progress: called after every line with its number.
        max_batch: texts at once, at most.

    Raises:
        ConfigError: `max_batch` is below 1.
        InputError: the file cannot be written.
    """
    from drafttree.engine import Engine

    report = BatchReport(len(jobs), len(records), sum("error" in record for record in records))
    begun = time.perf_counter()
    with Engine(decoder, max_batch=max_batch) as engine:
        for line in _in_order(engine, jobs[len(records) :], options, LINES_AHEAD * max_batch):
            append_line(target, {**line.head, **_record_of(line, report)})
            report.seconds = time.perf_counter() - begun
            progress(f"line {line.head['line']}")
    return report


class _Line(NamedTuple):
    """A line whose text is being written, or why it cannot be.

    Attributes:
        head: what its record begins with.
        text: of the line.
    """

    head: dict[str, Any]
    text: "Handle | Exception"


def _in_order(engine: "Engine", jobs: Sequence[Job], options: Mapping[str, Any], ahead: int) -> Iterator[_Line]:
    """The lines in their order, so many of which are submitted before the first is given out."""
    submitted: deque[_Line] = deque()
    for job in jobs:
        submitted.append(_submit(engine, job, options))
        if len(submitted) > ahead:
            yield submitted.popleft()
    yield from submitted


def _submit(engine: "Engine", job: Job, options: Mapping[str, Any]) -> _Line:
    head: dict[str, Any] = {"line": job.line, "input": job.digest}
    try:
        entry = _entry(job.text)
        if "id" in entry:
            head["id"] = entry.pop("id")
        prompt = _prompt(entry)
        if refused := OBJECTS.intersection(entry):
            raise InputError(f"{min(refused)} cannot be given in a line; give it to the command")
        chosen: dict[str, Any] = {**options, **entry}
        return _Line(head, engine.submit(prompt, **chosen))
    except Exception as error:  # whatever it is, the other lines have nothing to do with it
        return _Line(head, error)


def _record_of(line: _Line, report: BatchReport) -> dict[str, Any]:
    """The record of a line when its text has ended, without its head."""
    try:
        if isinstance(line.text, Exception):
            raise line.text
        generation = line.text.result()
    except Exception as error:  # as above
        report.failed += 1
        return {"error": {"type": type(error).__name__, "message": " ".join(str(error).split())}}
    report.tokens += len(generation.tokens)
    return _record(generation)


def _entry(text: str) -> dict[str, Any]:
    """The object of a line; a string alone is a prompt."""
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})") from None
    if not isinstance(entry, str | dict):
        raise InputError(f"a line is an object or a string, not {_short(entry)}")
    return {"prompt": entry} if isinstance(entry, str) else entry


def _prompt(entry: dict[str, Any]) -> Any:
    """Take the prompt or the messages out of a line's object."""
    if ("prompt" in entry) == ("messages" in entry):
        found = "both prompt and messages" if "prompt" in entry else "neither prompt nor messages"
        raise InputError(f"{found} in it; give one of them")
    if "messages" in entry:
        messages = entry.pop("messages")
        if not _is_list(messages, dict):
            raise InputError(f"messages are a list of objects with role and content, not {_short(messages)}")
        return messages
    prompt = entry.pop("prompt")
    if not isinstance(prompt, str) and not _is_list(prompt, int):
        raise InputError(f"a prompt is text or a list of token ids, not {_short(prompt)}")
    return prompt


def _is_list(value: object, kind: type) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, kind) for each in value)


def _short(value: object) -> str:
    return json.dumps(value)[:60]


def _record(generation: "Generation") -> dict[str, Any]:
    record = {
        "text": generation.text,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "seconds": generation.seconds,
    }
    extra = {"logprobs": generation.logprobs, "top_logprobs": generation.top_logprobs}
    return record | {name: value for name, value in extra.items() if value is not None}


def _digest(line: str, command: object) -> str:
    return hashlib.sha256(f"{line.strip()}\n{command!r}".encode(errors="surrogatepass")).hexdigest()[:16]
