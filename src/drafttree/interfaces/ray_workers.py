"""Writes texts in the processes of a Ray cluster, each with its own engine.

Ray Data distributes the lines in blocks and returns the records in order. If a process dies, Ray starts another one,
which writes the same blocks again. Texts depend only on prompt and seed, so they stay the same.
"""

import json
import logging
import math
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple

from drafttree.core import errors
from drafttree.core.counts import MAX_BATCH
from drafttree.core.errors import ConfigError, DraftTreeError
from drafttree.core.requirements import check_requirements
from drafttree.interfaces.batch import LINES_AHEAD, Job, LineWriter, Records

if TYPE_CHECKING:
    from drafttree.engine import Decoder


REFUSAL = "refusal"
"""Key of a record with the class and message of an error that is not about a single line."""


class Worker:
    """An engine in a process of Ray, which writes all blocks of that process.

    Args:
        load: makes the decoder, when the first block arrives.
        options: as for `write_texts`.
        max_batch: as for `write_texts`.
        names: as for `write_texts`.
    """

    def __init__(
        self, load: "Callable[[], Decoder]", options: Mapping[str, Any], max_batch: int, names: Sequence[str] = ()
    ) -> None:
        self._load = load
        self._arguments = (options, max_batch, names)

    @cached_property
    def _writer(self) -> LineWriter:
        return LineWriter(self._load(), *self._arguments)

    def __call__(self, block: Mapping[str, Sequence[Any]]) -> dict[str, list[str]]:
        """The records of a block of lines, as JSON; if the decoder cannot be loaded, one `REFUSAL` record."""
        columns = (block[name] for name in Job._fields)
        jobs = [Job(int(line), str(text), str(digest)) for line, text, digest in zip(*columns, strict=True)]
        try:
            writer = self._writer
        except DraftTreeError as error:  # Ray would wrap it and change its message
            return {"record": [json.dumps({REFUSAL: [type(error).__name__, str(error)]})]}
        return {"record": [json.dumps(record) for record in writer.records(jobs, len(jobs))]}


class WorkerShare(NamedTuple):
    """The number of workers, and the CPU cores and GPUs of each."""

    workers: int
    cpus: int
    gpus: int


def share_cluster(nodes: Sequence[Mapping[str, float]], workers: int | None, *, use_gpus: bool = True) -> WorkerShare:
    """Divide the cores or GPUs of a cluster among workers, each of which runs on one machine.

    Args:
        nodes: per machine, the numbers of its cores ("CPU") and GPUs ("GPU").
        workers: the number of workers; None for one per GPU, or a single one without GPUs.
        use_gpus: whether workers use GPUs if there are any.

    Raises:
        ConfigError: there are too few cores or GPUs for the workers.
    """
    resource = "GPU" if use_gpus and any(node.get("GPU") for node in nodes) else "CPU"
    counts = [int(node.get(resource, 0)) for node in nodes]
    worker_count = workers or (sum(counts) if resource == "GPU" else 1)
    units_per_worker = next(
        (size for size in range(max(counts, default=0), 0, -1) if sum(n // size for n in counts) >= worker_count), 0
    )
    if not units_per_worker:
        raise ConfigError(
            f"--workers is {worker_count}, but the cluster has {sum(counts)} {resource}s; give as many at most"
        )
    return WorkerShare(worker_count, 1, 1) if resource == "GPU" else WorkerShare(worker_count, units_per_worker, 0)


def block_size(lines: int, workers: int, max_batch: int) -> int:
    """The number of lines of a block: several times `max_batch`, but at least two blocks for each worker."""
    return max(1, min(LINES_AHEAD * max_batch, math.ceil(lines / (2 * workers))))


def import_ray() -> Any:
    """Import Ray with Ray Data.

    Raises:
        ConfigError: Ray is not installed.
    """
    check_requirements("--ray", "ray")
    import_module("ray.data")
    return import_module("ray")


def write_texts_by_ray(
    load: "Callable[[], Decoder]",
    jobs: Sequence[Job],
    options: Mapping[str, Any],
    max_batch: int = MAX_BATCH,
    workers: int | None = None,
    *,
    names: Sequence[str] = (),
    use_gpus: bool = True,
) -> Records:
    """Like `drafttree.interfaces.batch.write_texts`, on the Ray cluster at RAY_ADDRESS, or on this machine without it.

    Args:
        load: makes the decoder, in every worker; it is pickled.
        jobs: the lines, from `read_jobs`.
        options: options of `Decoder.generate` that a line does not have itself; they are pickled.
        max_batch: the most texts at once, per worker.
        workers: the number of workers; None for one per GPU, or a single one without GPUs.
        names: model names that requests may use; if empty, the target's own name.
        use_gpus: whether workers use GPUs if there are any.

    Raises:
        ConfigError: Ray is not installed, its cluster cannot be reached or is too small, or its workers failed.
        DraftTreeError: a worker cannot load the decoder.
    """
    if not jobs:
        return
    ray = import_ray()
    try:
        _connect(ray)
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        share = share_cluster(nodes, workers, use_gpus=use_gpus)
        arguments = load, dict(options), max_batch, tuple(names)
        for row in _dataset(ray, jobs, arguments, share).iter_rows():
            yield checked(json.loads(row["record"]))
    except ray.exceptions.RayError as error:
        last_line = str(error).strip().rpartition("\n")[2]
        raise ConfigError(
            f"the workers of Ray failed ({last_line}); the same command continues from what is written"
        ) from None
    finally:
        ray.shutdown()


def checked(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a line as it is.

    Raises:
        DraftTreeError: it is a `REFUSAL` record: the worker cannot load the decoder.
    """
    if REFUSAL in record:
        error_name, message = record[REFUSAL]
        raise getattr(errors, error_name)(message)
    return record


def _connect(ray: Any) -> None:
    try:
        ray.init(log_to_driver=False, include_dashboard=False, logging_level="ERROR")
    except ConnectionError as error:
        address = os.environ.get("RAY_ADDRESS")
        raise ConfigError(
            f"no Ray cluster at RAY_ADDRESS={address!r} ({error}); start it, or unset RAY_ADDRESS"
        ) from None
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)  # it logs tracebacks of errors that it also raises


def _dataset(ray: Any, jobs: Sequence[Job], arguments: tuple[Any, ...], share: WorkerShare) -> Any:
    """The dataset of the records, in the order of the lines. It is lazy: workers start when it is read.

    Args:
        ray: the module `ray`.
        jobs: the lines, from `read_jobs`.
        arguments: arguments of `Worker`.
        share: the number of workers, and the cores and GPUs of each.
    """
    settings = ray.data.DataContext.get_current()
    settings.execution_options.preserve_order = True
    settings.enable_progress_bars = False
    settings.execution_no_progress_timeout_s = -1  # do not give up on long texts
    blocks = math.ceil(len(jobs) / block_size(len(jobs), share.workers, arguments[2]))
    lines = ray.data.from_items([job._asdict() for job in jobs], override_num_blocks=blocks)
    return lines.map_batches(
        Worker,
        batch_size=None,
        compute=ray.data.ActorPoolStrategy(size=share.workers),
        fn_constructor_args=arguments,
        num_cpus=share.cpus,
        num_gpus=share.gpus,
    )
