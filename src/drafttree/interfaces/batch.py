"""Generates a text for every line of a file, and appends a record per line, in order. An interrupted run can continue.

A line is a prompt as a JSON string, or an object with "prompt" (text or token ids) or "messages". The object may also
have an "id" and options of `Decoder.generate`. A record has the line's number, "id" and prompt, and the text with its
finish reason and whether it is lossless, or the error. Its "input" is a digest of line and command, by which a later
run recognises the line. A line may also be a request of OpenAI's batches, see `drafttree.interfaces.batch_requests`.
Its record then also has the fields of OpenAI's records.
"""

import hashlib
import json
import math
import time
from collections import deque
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from drafttree.core.counts import MAX_BATCH
from drafttree.core.errors import InputError
from drafttree.measure.json_lines import append_line, whole_lines
from drafttree.measure.prompts import read_text

if TYPE_CHECKING:
    from drafttree.engine import Decoder, Generation
    from drafttree.interfaces.batch_requests import RequestLines

LINES_AHEAD = 4
"""Lines submitted ahead of the oldest unfinished one, per running text, so that a long text does not delay others."""

OBJECTS = {"generation_config", "grammar", "logits_processor", "stopping_criteria", "unstopped", "watermarking_config"}
"""Options of `Decoder.generate` whose values JSON cannot express."""


Records = Generator[dict[str, Any], None, None]
"""Yields the records of lines, each made on demand. The generator may be closed early."""


class Job(NamedTuple):
    """A line of the input: its number, its JSON, and the digest of line and command."""

    line: int
    text: str
    digest: str


@dataclass
class BatchReport:
    """Figures of a run.

    Attributes:
        lines: the number of lines, without blank ones.
        skipped: the number of lines with a record from an earlier run, also of failed lines.
        failures: line number and error of each failed line, also from earlier runs.
        tokens: the number of tokens generated in this run.
        seconds: wall-clock seconds of their generation.
    """

    lines: int
    skipped: int = 0
    failures: list[dict[str, Any]] = field(default_factory=list)
    tokens: int = 0
    seconds: float = 0.0

    @property
    def failed(self) -> int:
        """The number of lines that failed."""
        return len(self.failures)

    def note(self, record: Mapping[str, Any]) -> None:
        """Add the record of a line to the failures if it has an error."""
        if error := _error_of(record):
            self.failures.append({"line": record["line"], **error})

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "failed": self.failed}


def read_jobs(source: Path, command: object) -> list[Job]:
    """Read the lines of a file, except blank ones.

    Args:
        source: a file with a prompt or a request on each line.
        command: the options that the texts depend on; they become part of each digest.

    Raises:
        InputError: the file cannot be read, is empty, or has the same custom_id on two lines.
    """
    lines = enumerate(read_text(source).removeprefix("\ufeff").split("\n"), start=1)
    jobs = [Job(number, line, _digest(line, command)) for number, line in lines if line.strip()]
    if not jobs:
        raise InputError(f"{source}: the file has no lines")
    _check_custom_ids(source, jobs)
    return jobs


def _check_custom_ids(source: Path, jobs: Sequence[Job]) -> None:
    """Refuse two requests with the same custom_id. Other mistakes in a line are reported in its record."""
    first_lines = dict[str, int]()
    for job in jobs:
        custom_id = _custom_id(job)
        if custom_id is None:
            continue
        first_line = first_lines.setdefault(custom_id, job.line)
        if first_line != job.line:
            raise InputError(
                f"{source}: lines {first_line} and {job.line} have the custom_id {_short(custom_id)}; give each its own"
            )


def _custom_id(job: Job) -> str | None:
    """The custom_id of a line; None if it has none, or one that is not text."""
    try:
        custom_id = _entry(job.text).get("custom_id")
    except InputError:
        return None
    return custom_id if isinstance(custom_id, str) else None


def is_request(job: Job) -> bool:
    """Whether a line has the form of OpenAI's batches."""
    try:
        return _is_request(_entry(job.text))
    except InputError:
        return False


def read_records(target: Path, jobs: Sequence[Job]) -> list[dict[str, Any]]:
    """Read the records of an earlier run of the same command, and remove an incomplete last line from the file.

    Raises:
        InputError: the file cannot be written, or has other content than these records.
    """
    records = []
    for number, line in enumerate(whole_lines(target), start=1):
        try:
            record = json.loads(line)
            matches_job = number <= len(jobs) and record["input"] == jobs[number - 1].digest
        except (ValueError, TypeError, KeyError):
            raise InputError(
                f"{target}, line {number}: this is not a record of drafttree batch; name another file"
            ) from None
        if not matches_job:
            raise InputError(
                f"{target}, line {number}: this record belongs to another prompt or another command; name another file"
            )
        records.append(record)
    return records


def run_batch(
    new_records: Records,
    jobs: Sequence[Job],
    target: Path,
    records: Sequence[Mapping[str, Any]],
    progress: Callable[[str], None] = lambda _: None,
) -> BatchReport:
    """Append the records of the remaining lines to a file, each as soon as it is made.

    Args:
        new_records: the new records, in the order of the lines, from `write_texts`; closed at the end.
        jobs: all lines, from `read_jobs`.
        target: the file that records are appended to.
        records: the records that the file has already, from `read_records`.
        progress: called after every line with its number.

    Raises:
        InputError: the file cannot be written.
    """
    report = BatchReport(len(jobs), len(records))
    for record in records:
        report.note(record)
    start_time = time.perf_counter()
    with closing(new_records):
        for record in new_records:
            append_line(target, record)
            report.note(record)
            report.tokens += _tokens_of(record)
            report.seconds = time.perf_counter() - start_time
            progress(f"line {record['line']}")
    return report


def write_texts(
    decoder: "Decoder",
    jobs: Sequence[Job],
    options: Mapping[str, Any],
    max_batch: int = MAX_BATCH,
    names: Sequence[str] = (),
) -> Records:
    """Write the texts of lines, many at once, and yield their records in the order of the lines.

    The record of a failed line has an "error".

    Args:
        decoder: writes the texts.
        jobs: the lines, from `read_jobs`.
        options: options of `Decoder.generate` that a line does not have itself; requests do not use them.
        max_batch: the most texts at once.
        names: model names that requests may use; if empty, the target's own name.

    Raises:
        ConfigError: `max_batch` is not a whole number of at least 1.
    """
    with closing(LineWriter(decoder, options, max_batch, names)) as writer:
        yield from writer.records(jobs, LINES_AHEAD * max_batch)


class LineWriter:
    """Writes the texts of lines, many at once. Arguments and errors are those of `write_texts`."""

    def __init__(
        self, decoder: "Decoder", options: Mapping[str, Any], max_batch: int, names: Sequence[str] = ()
    ) -> None:
        from drafttree.engine import Engine

        self._decoder = decoder
        self._options = options
        self._max_batch = max_batch
        self._names = names
        self._engine = Engine(decoder, max_batch=max_batch, max_token_gap=math.inf)
        self._ends = ExitStack()
        self._ends.callback(self._engine.close)

    def records(self, jobs: Sequence[Job], ahead: int) -> Records:
        """Yield the records of lines in their order.

        Args:
            jobs: the lines, from `read_jobs`.
            ahead: the number of lines that are submitted beyond the line whose record is yielded next.
        """
        pending_records: deque[Callable[[], dict[str, Any]]] = deque()
        for job in jobs:
            pending_records.append(self._submit(job))
            if len(pending_records) > ahead:
                yield pending_records.popleft()()
        yield from (record() for record in pending_records)

    def close(self) -> None:
        """Cancel all texts, and close the engine."""
        self._ends.close()

    @cached_property
    def _requests(self) -> "RequestLines":
        from drafttree.interfaces.batch_requests import RequestLines

        request_lines = RequestLines(self._decoder, self._names, self._max_batch)
        self._ends.callback(request_lines.close)
        return request_lines

    def _submit(self, job: Job) -> Callable[[], dict[str, Any]]:
        """Submit the text of a line; return a function that waits for its record."""
        head: dict[str, Any] = {"line": job.line, "input": job.digest}
        try:
            entry = _entry(job.text)
            if _is_request(entry):
                head |= {"id": f"batch_req_{job.digest}", "custom_id": entry.get("custom_id"), "response": None}
                return partial(_record_of, head, self._requests.submit(entry))
            if "id" in entry:
                head["id"] = entry.pop("id")
            head |= {name: entry[name] for name in ("prompt", "messages") if name in entry}
            prompt = _prompt(entry)
            if refused_fields := OBJECTS.intersection(entry):
                raise InputError(f"{min(refused_fields)} cannot be given in a line; give it to the command")
            options: dict[str, Any] = {**self._options, **entry}
            handle = self._engine.submit(prompt, **options)
            return partial(_record_of, head, lambda: _record(handle.result()))
        except Exception as error:  # of any kind, because the other lines go on
            return partial(_record_of, head, error)


def _record_of(head: dict[str, Any], text: "Callable[[], dict[str, Any]] | Exception") -> dict[str, Any]:
    """The record of a line, once its text has ended or failed.

    Args:
        head: the fields of the record that are known before the text.
        text: a function that waits for the other fields, or the error of a line that could not be submitted.
    """
    try:
        if isinstance(text, Exception):
            raise text
        return head | text()
    except Exception as error:  # of any kind, because the other lines go on
        type_key = "code" if "custom_id" in head else "type"
        return head | {"error": {type_key: type(error).__name__, "message": " ".join(str(error).split())}}


def _is_request(entry: Mapping[str, Any]) -> bool:
    """Whether the object of a line has the form of OpenAI's batches."""
    return "custom_id" in entry or "body" in entry


def _error_of(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """Type and message of the error in a record, or in the body of the reply it holds; None without an error."""
    error = record.get("error") or _body_of(record).get("error")
    return error and {"type": error.get("code") or error["type"], "message": error["message"]}


def _tokens_of(record: Mapping[str, Any]) -> int:
    usage = _body_of(record).get("usage") or {}
    return len(record.get("tokens", ())) + usage.get("completion_tokens", usage.get("output_tokens", 0))


def _body_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return (record.get("response") or {}).get("body", {})


def _entry(text: str) -> dict[str, Any]:
    """Parse a line to its object; a string becomes one with that prompt.

    Raises:
        InputError: the line is not JSON, or neither an object nor a string.
    """
    try:
        entry = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON ({error})") from None
    if not isinstance(entry, str | dict):
        raise InputError(f"a line is an object or a string, not {_short(entry)}")
    return {"prompt": entry} if isinstance(entry, str) else entry


def _prompt(entry: dict[str, Any]) -> Any:
    """Remove the prompt or the messages from a line's object, and return them.

    Raises:
        InputError: the object has both or neither, or one of another type.
    """
    if ("prompt" in entry) == ("messages" in entry):
        field_names = "both prompt and messages" if "prompt" in entry else "neither prompt nor messages"
        raise InputError(f"it has {field_names}; give one of them")
    if "messages" in entry:
        messages = entry.pop("messages")
        if not _is_list_of(messages, dict):
            raise InputError(f"messages are a list of objects with role and content, not {_short(messages)}")
        return messages
    prompt = entry.pop("prompt")
    if not isinstance(prompt, str) and not _is_list_of(prompt, int):
        raise InputError(f"a prompt is text or a list of token ids, not {_short(prompt)}")
    return prompt


def _is_list_of(value: object, element_type: type) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(element, element_type) for element in value)


def _short(value: object) -> str:
    return json.dumps(value)[:60]


def _record(generation: "Generation") -> dict[str, Any]:
    record = {
        "text": generation.text,
        "tokens": generation.tokens,
        "finish_reason": generation.finish_reason,
        "seed": generation.seed,
        "seconds": generation.seconds,
        **generation.fidelity.to_json(),
    }
    logprob_fields = {"logprobs": generation.logprobs, "top_logprobs": generation.top_logprobs}
    return record | {name: value for name, value in logprob_fields.items() if value is not None}


def _digest(line: str, command: object) -> str:
    return hashlib.sha256(f"{line.strip()}\n{command!r}".encode(errors="surrogatepass")).hexdigest()[:16]
