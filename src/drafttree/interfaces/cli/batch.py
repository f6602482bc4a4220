"""`drafttree batch`: a text for every line of a file."""

import sys
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from drafttree.core.counts import MAX_BATCH
from drafttree.core.errors import ConfigError, InputError
from drafttree.core.requirements import check_requirements
from drafttree.interfaces.batch import BatchReport, is_request, read_jobs, read_records, run_batch, write_texts
from drafttree.interfaces.cli.option_groups import DecoderOptions, TextOptions, grouped
from drafttree.interfaces.cli.options import (
    AsJson,
    MaxBatch,
    Target,
)
from drafttree.interfaces.console import print_json, progress
from drafttree.interfaces.ray_workers import import_ray, write_texts_by_ray

SHOWN = 10
"""Lines that failed of which the end of a run tells, at most."""
NOT_OF_THE_TEXT = {"source", "out", "json_", "device", "max_batch", "ray", "workers", "served_model_name"}


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
        typer.Option(help="Model name that OpenAI batch lines use. Default: the target. May be repeated."),
    ] = None,
    max_batch: MaxBatch = MAX_BATCH,
    ray: Annotated[bool, typer.Option("--ray", help="Distribute the work over Ray workers.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Number of Ray workers. Default: one per GPU, or one.")
    ] = None,
    json_: AsJson = False,
) -> None:
    """Generate a text for every line of a file, many at once.

    After an interruption, the same command continues where it stopped.

    A line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}, or a JSON string, which is a
    prompt; it may have an "id", and options of `Decoder.generate` that go over those of the command. A line that fails
    becomes a record with an "error", which is told at the end, and the exit code is 1.

    A line may also be one of OpenAI's batches, {"custom_id": "...", "method": "POST", "url": "/v1/chat/completions",
    "body": {...}}. Its record is OpenAI's too.
    """
    options = writing.to_dict()
    models.check()
    if workers and not ray:
        raise ConfigError(f"--workers {workers} is for --ray; add it, or leave --workers out")
    if ray:
        import_ray()
    if source.resolve() == out.resolve():
        raise InputError("the texts would go into the file of the prompts; name another file")
    command = sorted((name, str(value)) for name, value in context.params.items() if name not in NOT_OF_THE_TEXT)
    command += [("served_model_name", str(served_model_name))] if served_model_name else []
    jobs = read_jobs(source, command)
    if any(map(is_request, jobs)):
        check_requirements("a file of requests", "serve")
        if option_names := [name for name, value in options.items() if value is not False]:
            raise ConfigError(
                f"{option_names[0]} is given, but requests have their options in their bodies; leave it out"
            )
    records = read_records(out, jobs)

    load = partial(models.load, target)
    names = served_model_name or [target]
    open_jobs = jobs[len(records) :]
    if ray:
        limits = max_batch, workers
        new_records = write_texts_by_ray(
            load, open_jobs, options, *limits, names=names, use_gpus=models.device != "cpu"
        )
    else:
        new_records = write_texts(load(), open_jobs, options, max_batch, names)
    try:
        with progress(len(open_jobs)) as advance:
            report = run_batch(new_records, jobs, out, records, advance)
    except KeyboardInterrupt:
        print(f"drafttree: interrupted; the same command goes on from {out}", file=sys.stderr)
        raise
    if json_:
        print_json(report.summary())
    else:
        print(*_failures(report, out), _sentence(report), sep="\n", file=sys.stderr)
    raise typer.Exit(1 if report.failed else 0)


def _failures(report: BatchReport, out: Path) -> list[str]:
    """A line for each line that failed, the first ones at least."""
    failure_lines = [
        f"line {failure['line']}: {failure['type']}: {failure['message']}" for failure in report.failures[:SHOWN]
    ]
    unlisted_failures = report.failed - len(failure_lines)
    return (
        [
            *failure_lines,
            f"{unlisted_failures} more lines failed; their records in {out} have the reason as their error",
        ]
        if unlisted_failures
        else failure_lines
    )


def _sentence(report: BatchReport) -> str:
    speed = f"{report.tokens / report.seconds:.1f} tokens/s" if report.seconds else "nothing generated"
    return f"{report.lines} lines: {report.skipped} had a record already, {report.failed} failed; {speed}"
