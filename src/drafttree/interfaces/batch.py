"""A text for every line of a file: one record a line, in order, from which an interrupted run goes on.

A line is a JSON object with "prompt" (text or token ids) or "messages", perhaps an "id", and options of
`Decoder.generate`, or a string alone, which is a prompt. A record has the line's number, "id" and prompt, its text, why
it ends and whether it is lossless; of a line that fails, the error. "input" is a digest of the line and of the
command, by which a record is known again. A line may also be a request in the form of OpenAI's batches (see
`drafttree.interfaces.batch_requests`); its record then has their form besides.
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
"""Lines for each text at once that are submitted before the first of them has ended; a long one then holds up none."""

OBJECTS = {"generation_config", "grammar", "logits_processor", "stopping_criteria", "unstopped", "watermarking_config"}
"""Options of `Decoder.generate` that JSON cannot say."""


Records = Generator[dict[str, Any], None, None]
"""Records as they are made, of which the last may never be asked for."""


class Job(NamedTuple):
    """A line to write a text for: its number, its JSON, and the digest of it and of the command."""

    line: int
    text: str
    digest: str


@dataclass
class BatchReport:
    """What became of the lines.

    Attributes:
        lines: lines of the file, without blank ones.
        skipped: lines that had a record already, failed ones included.
        failures: number and error of each line that failed, in earlier runs too.
        tokens: tokens generated in this run.
        seconds: seconds in which they were generated, many texts at once.
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
        """Count the record of a line if it is an error."""
        if error := _error_of(record):
            self.failures.append({"line": record["line"], **error})

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "failed": self.failed}


def read_jobs(source: Path, command: object) -> list[Job]:
    """The lines of a file, blank ones left out.

    Args:
        source: a file with a prompt or a request on each line.
        command: what else decides what the texts are.

    Raises:
        InputError: it cannot be read, holds nothing, or has one custom_id on two lines.
    """
    lines = enumerate(read_text(source).removeprefix("\ufeff").split("\n"), start=1)
    jobs = [Job(number, line, _digest(line, command)) for number, line in lines if line.strip()]
    if not jobs:
        raise InputError(f"{source}: no lines in it")
    _check_custom_ids(source, jobs)
    return jobs


def _check_custom_ids(source: Path, jobs: Sequence[Job]) -> None:
    """Refuse two requests whose replies could not be told apart; what else is wrong with a line is its own error."""
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
    """The custom_id of a line, None where it has none that is text."""
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
    """The records of an earlier run of the same command; a line that was cut short is removed from the file.

    Raises:
        InputError: the file cannot be written, or holds something else.
    """
    records = []
    for number, line in enumerate(whole_lines(target), start=1):
        try:
            record = json.loads(line)
            matches_job = number <= len(jobs) and record["input"] == jobs[number - 1].digest
        except (ValueError, TypeError, KeyError):
            raise InputError(f"{target}, line {number}: no record of drafttree batch; name another file") from None
        if not matches_job:
            raise InputError(f"{target}, line {number}: made from another line or command; name another file")
        records.append(record)
    return records


def run_batch(
    made: Records,
    jobs: Sequence[Job],
    target: Path,
    records: Sequence[Mapping[str, Any]],
    progress: Callable[[str], None] = lambda _: None,
) -> BatchReport:
    """Add the records of the lines that have none yet to a file, each when it is made.

    Args:
        made: the records, in the order of the lines; see `write_texts`. It is closed in the end.
        jobs: the lines, as `read_jobs` gives them.
        target: the file that records are appended to.
        records: the records that are there already, as `read_records` gives them.
        progress: called after every line with its number.

    Raises:
        InputError: the file cannot be written.
    """
    report = BatchReport(len(jobs), len(records))
    for record in records:
        report.note(record)
    start_time = time.perf_counter()
    with closing(made):
        for record in made:
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
    """The records of lines in their order, many texts at once; those of a failed line have an "error".

    Args:
        decoder: writes the texts.
        jobs: the lines, as `read_jobs` gives them.
        options: options of `Decoder.generate`, where a line does not have its own; requests say all by themselves.
        max_batch: texts at once, at most.
        names: the names by which requests call the model, none for the target's own.

    Raises:
        ConfigError: `max_batch` is no whole number of at least 1.
    """
    with closing(LineWriter(decoder, options, max_batch, names)) as writer:
        yield from writer.records(jobs, LINES_AHEAD * max_batch)


class LineWriter:
    """Writes the texts of lines, many at once. For its arguments and errors see `write_texts`."""

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
        """The records of lines in their order.

        Args:
            jobs: the lines, as `read_jobs` gives them.
            ahead: lines that are submitted before the record of the first is given out.
        """
        pending_records: deque[Callable[[], dict[str, Any]]] = deque()
        for job in jobs:
            pending_records.append(self._submit(job))
            if len(pending_records) > ahead:
                yield pending_records.popleft()()
        yield from (record() for record in pending_records)

    def close(self) -> None:
        """End all texts."""
        self._ends.close()

    @cached_property
    def _requests(self) -> "RequestLines":
        from drafttree.interfaces.batch_requests import RequestLines

        request_lines = RequestLines(self._decoder, self._names, self._max_batch)
        self._ends.callback(request_lines.close)
        return request_lines

    def _submit(self, job: Job) -> Callable[[], dict[str, Any]]:
        """Begin the text of a line; what is returned waits for its record."""
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
        except Exception as error:  # whatever it is, the other lines have nothing to do with it
            return partial(_record_of, head, error)


def _record_of(head: dict[str, Any], text: "Callable[[], dict[str, Any]] | Exception") -> dict[str, Any]:
    """The record of a line, when its text has ended."""
    try:
        if isinstance(text, Exception):
            raise text
        return head | text()
    except Exception as error:  # as above
        type_key = "code" if "custom_id" in head else "type"
        return head | {"error": {type_key: type(error).__name__, "message": " ".join(str(error).split())}}


def _is_request(entry: Mapping[str, Any]) -> bool:
    """Whether the object of a line has the form of OpenAI's batches."""
    return "custom_id" in entry or "body" in entry


def _error_of(record: Mapping[str, Any]) -> dict[str, Any] | None:
    """The type and the message of the error of a record, which a reply has in its body; None for none."""
    error = record.get("error") or _body_of(record).get("error")
    return error and {"type": error.get("code") or error["type"], "message": error["message"]}


def _tokens_of(record: Mapping[str, Any]) -> int:
    usage = _body_of(record).get("usage") or {}
    return len(record.get("tokens", ())) + usage.get("completion_tokens", usage.get("output_tokens", 0))


def _body_of(record: Mapping[str, Any]) -> Mapping[str, Any]:
    return (record.get("response") or {}).get("body", {})


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
        field_names = "both prompt and messages" if "prompt" in entry else "neither prompt nor messages"
        raise InputError(f"{field_names} in it; give one of them")
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
    return isinstance(value, list) and bool(value) and all(isinstance(element, kind) for element in value)


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
