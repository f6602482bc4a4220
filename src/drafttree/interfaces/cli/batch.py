"""`drafttree batch`: generate a text for every line of a file."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from drafttree.core.counts import MAX_BATCH
from drafttree.core.errors import ConfigError, InputError
from drafttree.core.requirements import check_requirements
from drafttree.interfaces.batch import (
    BatchReport,
    Job,
    Records,
    is_request,
    read_jobs,
    read_records,
    run_batch,
    write_texts,
)
from drafttree.interfaces.cli.option_groups import DecoderOptions, TextOptions, grouped
from drafttree.interfaces.cli.options import (
    AsJson,
    MaxBatch,
    Target,
)
from drafttree.interfaces.console import print_json, progress
from drafttree.interfaces.ray_workers import import_ray, write_texts_by_ray

SHOWN = 10
"""The most failed lines that are listed at the end of a run."""
IRRELEVANT_OPTIONS = {"source", "out", "json_", "device", "max_batch", "ray", "workers", "served_model_name"}
"""Options that do not change the texts of prompts."""


@dataclass(frozen=True)
class RayOptions:
    """Whether Ray workers write the texts, and how many."""

    ray: Annotated[bool, typer.Option("--ray", help="Distribute the work over Ray workers.")] = False
    workers: Annotated[
        int | None,
        typer.Option(
            "--workers", min=1, metavar="WORKERS", help="Number of Ray workers.", show_default="one per GPU, or one"
        ),
    ] = None

    def check(self) -> None:
        """Refuse workers without Ray, and Ray where it is not installed.

        Raises:
            ConfigError: `workers` is given without `ray`, or Ray is missing.
        """
        if self.workers and not self.ray:
            raise ConfigError(f"--workers {self.workers} is for --ray; add it, or leave --workers out")
        if self.ray:
            import_ray()

    def write_texts(
        self,
        models: DecoderOptions,
        target: str,
        jobs: Sequence[Job],
        options: Mapping[str, Any],
        max_batch: int,
        names: Sequence[str],
    ) -> Records:
        """The records of lines in their order. Without Ray, this call loads the models into this process.

        Args:
            models: the models of the decoder; with Ray, every worker loads them.
            target: the name or folder of the target.
            jobs: the lines to write texts for.
            options: options of `Decoder.generate`, where a line does not have its own.
            max_batch: the most texts at once, per worker.
            names: model names that request lines use.
        """
        load = partial(models.load, target)
        if not self.ray:
            return write_texts(load(), jobs, options, max_batch, names)
        use_gpus = models.device != "cpu"
        return write_texts_by_ray(load, jobs, options, max_batch, self.workers, names=names, use_gpus=use_gpus)


@grouped
def batch(
    context: typer.Context,
    models: DecoderOptions,
    writing: TextOptions,
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="Prompts, one JSON value per line.")],
    out: Annotated[
        Path, typer.Argument(metavar="OUT.jsonl", help="File to write: one record per prompt, in the same order.")
    ],
    target: Target = "embedded",
    served_model_name: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Model name that OpenAI batch lines use. May be repeated.",
            show_default="the target's name",
        ),
    ] = None,
    max_batch: MaxBatch = MAX_BATCH,
    *,
    cluster: RayOptions,
    json_: AsJson = False,
) -> None:
    """Generate a text for every line of a file, many at once.

    After an interruption, the same command continues where it stopped.

    A line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}, or a JSON string, which is a
    prompt. It may have an "id", and options of `Decoder.generate`, which override those of the command. For models that
    read images, the content of a message is a list such as [{"type": "image", "path": "photo.jpg"}, {"type": "text",
    "text": "..."}]. A line that fails becomes a record with an "error". Failures are listed at the end, and the exit
    code is 1.

    A line may also have the form of OpenAI's batches, {"custom_id": "...", "method": "POST", "url":
    "/v1/chat/completions", "body": {...}}. Its record then has OpenAI's form too.
    """
    options = writing.to_dict()
    models.check()
    cluster.check()
    if source.resolve() == out.resolve():
        raise InputError("the texts would go into the file of the prompts; name another file")
    jobs = read_jobs(source, _command(context, served_model_name))
    if any(map(is_request, jobs)):
        _check_requests(options)
    records = read_records(out, jobs)
    open_jobs = jobs[len(records) :]
    names = served_model_name or [target]
    new_records = cluster.write_texts(models, target, open_jobs, options, max_batch, names)
    report = _write(new_records, jobs, out, records)
    if json_:
        print_json(report.summary())
    else:
        print(*_failures(report, out), _sentence(report), sep="\n", file=sys.stderr)
    raise typer.Exit(1 if report.failed else 0)


def _command(context: typer.Context, served_model_name: list[str] | None) -> list[tuple[str, str]]:
    """The options that the texts depend on, and the model names that appear in replies."""
    options = sorted((name, str(value)) for name, value in context.params.items() if name not in IRRELEVANT_OPTIONS)
    if served_model_name:
        options.append(("served_model_name", str(served_model_name)))
    return options


def _check_requests(options: dict[str, Any]) -> None:
    """Check that requests can be answered: the server's packages are installed, and the command has no text options.

    Raises:
        ConfigError: a package is missing, or a text option is given.
    """
    check_requirements("a file of requests", "serve")
    for name, value in options.items():
        if value is not False:
            raise ConfigError(f"{name} is given, but requests have their options in their bodies; leave it out")


def _write(new_records: Records, jobs: Sequence[Job], out: Path, records: Sequence[Mapping[str, Any]]) -> BatchReport:
    """Append new records to the file, with a progress bar. After Ctrl-C, say how to continue.

    Args:
        new_records: makes the records of the lines that have none.
        jobs: all lines.
        out: the file of the records.
        records: the records that the file has already.
    """
    try:
        with progress(len(jobs) - len(records)) as advance:
            return run_batch(new_records, jobs, out, records, advance)
    except KeyboardInterrupt:
        print(f"drafttree: interrupted; the same command continues from {out}", file=sys.stderr)
        raise


def _failures(report: BatchReport, out: Path) -> list[str]:
    """One line for each of the first failed lines, then one with the number of the others."""
    lines = [f"line {failure['line']}: {failure['type']}: {failure['message']}" for failure in report.failures[:SHOWN]]
    unlisted_failures = report.failed - len(lines)
    if unlisted_failures:
        lines.append(f"{unlisted_failures} more lines failed; their records in {out} have the reason as their error")
    return lines


def _sentence(report: BatchReport) -> str:
    speed = f"{report.tokens / report.seconds:.1f} tokens/s" if report.seconds else "nothing generated"
    return f"{report.lines} lines: {report.skipped} had a record already, {report.failed} failed; {speed}"
