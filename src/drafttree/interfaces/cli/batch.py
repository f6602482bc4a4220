"""`drafttree batch`: a text for every line of a file."""

import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree.core.counts import MAX_BATCH
from drafttree.core.errors import ConfigError, InputError
from drafttree.interfaces.batch import BatchReport, read_jobs, read_records, run_batch, write_texts
from drafttree.interfaces.cli.options import (
    AsJson,
    Device,
    Drafter,
    DraftTemperature,
    Dtype,
    ExactText,
    IgnoreEos,
    LossyWindow,
    MaxBatch,
    MaxNewTokens,
    PolicySpec,
    Quantize,
    QuantizeDrafter,
    SeedOrNone,
    Sinks,
    Stop,
    Target,
    VerifierName,
    given_options,
    shaped,
)
from drafttree.interfaces.console import print_json, progress
from drafttree.interfaces.ray_workers import import_ray, write_texts_by_ray
from drafttree.loading import find_policy, find_verifier
from drafttree.loading.specs import DEFAULT_POLICY

if TYPE_CHECKING:
    from drafttree.engine import Decoder

NOT_OF_THE_TEXT = {"source", "out", "json_", "device", "max_batch", "ray", "workers"}


@shaped
def batch(
    context: typer.Context,
    source: Annotated[Path, typer.Argument(metavar="IN.jsonl", help="The prompts, a line of JSON each.")],
    out: Annotated[Path, typer.Argument(metavar="OUT.jsonl", help="The texts, a line each, in the same order.")],
    target: Target = "embedded",
    drafter: Drafter = "auto",
    policy: PolicySpec = DEFAULT_POLICY,
    verifier: VerifierName = "auto",
    seed: SeedOrNone = None,
    draft_temperature: DraftTemperature = 1.0,
    stop: Stop = None,
    max_new_tokens: MaxNewTokens = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    exact_text: ExactText = False,
    lossy_window: LossyWindow = None,
    sinks: Sinks = 4,
    quantize: Quantize = None,
    quantize_drafter: QuantizeDrafter = None,
    ignore_eos: IgnoreEos = False,
    max_batch: MaxBatch = MAX_BATCH,
    ray: Annotated[bool, typer.Option("--ray", help="Write by workers of Ray, on this machine or a cluster.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Engines with --ray; by default one per GPU, or one where there are none.")
    ] = None,
    json_: AsJson = False,
    *,
    shaping: dict[str, Any],
) -> None:
    """Write a text for every line of a file, in order, many at once; the same command goes on where it was interrupted.

    A line is {"prompt": "..."} or {"messages": [{"role": "user", "content": "..."}]}, or a JSON string, which is a
    prompt; it may have an "id", and options of `Decoder.generate` that go over those of the command. A line that fails
    becomes a record with an "error", and the exit code is 1.
    """
    options = shaping | given_options({"seed": seed, "max_new_tokens": max_new_tokens, "stop": stop})
    options |= {"ignore_eos": ignore_eos, "draft_temperature": draft_temperature}
    chosen = find_policy(policy), find_verifier(verifier)
    if workers and not ray:
        raise ConfigError(f"--workers {workers} is for --ray; add it, or leave --workers out")
    if ray:
        import_ray()
    if source.resolve() == out.resolve():
        raise InputError("the texts would go into the file of the prompts; name another file")
    command = sorted((name, str(value)) for name, value in context.params.items() if name not in NOT_OF_THE_TEXT)
    jobs = read_jobs(source, command)
    records = read_records(out, jobs)

    kinds: dict[str, Any] = {"quantize": quantize, "quantize_drafter": quantize_drafter, "dtype": dtype}
    kinds |= {"exact_text": exact_text, "lossy_window": lossy_window, "sinks": sinks, "device": device}
    load = partial(_load, target, drafter, *chosen, **kinds)
    open_jobs = jobs[len(records) :]
    if ray:
        made = write_texts_by_ray(load, open_jobs, options, max_batch, workers, use_gpus=device != "cpu")
    else:
        made = write_texts(load(), open_jobs, options, max_batch)
    try:
        with progress(len(open_jobs)) as advance:
            report = run_batch(made, jobs, out, records, advance)
    except KeyboardInterrupt:
        print(f"drafttree: interrupted; the same command goes on from {out}", file=sys.stderr)
        raise
    if json_:
        print_json(report.summary())
    else:
        print(_sentence(report), file=sys.stderr)
    raise typer.Exit(1 if report.failed else 0)


def _load(*arguments: Any, **options: Any) -> "Decoder":
    from drafttree.interfaces.cli.decoders import load_named

    return load_named(*arguments, **options)


def _sentence(report: BatchReport) -> str:
    speed = f"{report.tokens / report.seconds:.1f} tokens/s" if report.seconds else "nothing generated"
    return f"{report.lines} lines: {report.skipped} had a record already, {report.failed} failed; {speed}"
