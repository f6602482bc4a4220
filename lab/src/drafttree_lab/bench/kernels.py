"""The time of single kernels on a CUDA device, and the share of the memory's speed that they reach.

Times are those of calls in a CUDA graph, without the host's. Weights, and keys and values, are read in as many copies
as it takes for none to be in the cache. A rate counts the bytes that must be moved once. Its share is that of the
fastest large copy or sum. A ratio is taken in each repeat, and its interval is over the repeats.
"""

import math
import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache, partial
from itertools import chain, filterfalse
from operator import attrgetter, itemgetter
from typing import TYPE_CHECKING, Annotated, Any

import typer

from drafttree import measure
from drafttree.core.lazy import torch
from drafttree.interfaces.cli.option_groups import grouped
from drafttree.interfaces.cli.options import Device, Repeats, parse_numbers
from drafttree.interfaces.cli.results import ResultOptions
from drafttree.interfaces.console import make_console, progress
from drafttree.measure.shapes import Shape, find_shape
from drafttree_lab.speed_rows import group_by

if TYPE_CHECKING:
    from drafttree.measure.driver import Cell
    from drafttree.measure.run_store import RunStore
    from drafttree_lab.device_clock import DeviceClock
    from drafttree_lab.kernel_calls import Point

MEMORY = 1 << 30
"""Bytes of a copy and of a sum, by which the memory's speed is measured."""
SHOWN_WAYS = ("triton", "torch", "mm")
LAYER_PRODUCTS = 4
RATIOS = {"torch / triton": ".2f", "mm / triton": ".2f"}
TIMES = {"triton us": ".1f", "torch us": ".1f", "mm us": ".1f", "GB/s": ".0f", "of memory": ".0%", **RATIOS}
SPEED = {"way": "", "us": ".0f", "GB/s": ".0f"}
PRODUCTS = {"product": "", "weights": "", "rows": ".0f", **TIMES}
PASSES = {"weights": "", "rows": ".0f", "triton ms": ".2f", "torch ms": ".2f", "mm ms": ".2f", "of memory": ".0%"}
ATTENTION = {"prefix": ".0f", "nodes": ".0f", **TIMES}


@dataclass(frozen=True)
class KernelOptions:
    """The sizes at which kernels are timed."""

    shape: Annotated[str, typer.Option(help="Shape of the Llama whose products and heads are timed.")] = "llama-8b"
    vocab: Annotated[int, typer.Option(min=1, help="Outputs of the language-model head.")] = 128256
    rows: Annotated[str, typer.Option(help="Numbers of rows of the products.")] = "1,4,16,64"
    prefixes: Annotated[str, typer.Option(help="Rows before the trees that attend.")] = "1024,8192,32768,65536"
    nodes: Annotated[str, typer.Option(help="Nodes of the trees that attend.")] = "1,16,64"
    repeats: Repeats = 5
    device: Device = "auto"


@grouped
def bench(context: typer.Context, results: ResultOptions, options: KernelOptions = KernelOptions()) -> None:
    """Time the kernels in Triton beside torch's, on CUDA.

    Products of a layer and of the head, with weights of sixteen and eight bits, then attention of trees. Rates are
    compared with the memory's, which is measured too.
    """
    shape = find_shape(options.shape)
    row_counts = parse_numbers(options.rows, "--rows", 1)
    prefixes = parse_numbers(options.prefixes, "--prefixes", 1)
    node_counts = parse_numbers(options.nodes, "--nodes", 1)

    from drafttree.loading import find_device
    from drafttree.models.triton.triton_support import why_not_kernels
    from drafttree_lab.device_clock import open_clock
    from drafttree_lab.kernel_calls import TRITON, WAYS, MemoryPoint, attention_points, product_points

    clock = open_clock(find_device(options.device), context.command_path)
    points = [
        MemoryPoint(MEMORY),
        *product_points(shape, options.vocab, row_counts),
        *attention_points(shape, prefixes, node_counts),
    ]
    reason = why_not_kernels(torch.bfloat16, clock.device)
    store = results.open_store(context)
    ways = [way for point in points for way in WAYS[point.group] if not (reason and way == TRITON)]
    with progress(options.repeats * len(ways)) as advance:
        cells = time_points(points, clock, reason is None, options.repeats, store, advance)
    rows = [*_rows(cells, points)]
    report = {"rows": rows, "passes": [*_passes(rows, shape)], "device": _name(clock.device), "no_triton": reason}
    results.finish(store, measure.to_json(report), lambda: _show(report))


def time_points(
    points: "Sequence[Point]",
    clock: "DeviceClock",
    has_kernels: bool,
    repeats: int,
    store: "RunStore | None" = None,
    advance: Callable[[str], None] = lambda _: None,
) -> "list[Cell]":
    """Time every way at every point; ways take turns.

    Args:
        points: what is timed.
        clock: the clock of the device.
        has_kernels: whether the kernels in Triton run there.
        repeats: how often everything is timed.
        store: keeps finished runs; by default none.
        advance: called after every run with its way.
    """
    from drafttree_lab.device_clock import copies
    from drafttree_lab.kernel_calls import COPY, MM, READ, TORCH, TRITON, WAYS

    @lru_cache(maxsize=1)
    def make(point: "Point") -> Any:
        return point.make(clock.device, copies(point.item_bytes, clock))

    def run(way: str, point: "Point") -> dict[str, float | str]:
        try:
            with torch.inference_mode():
                return clock.time(make(point)[way]())._asdict()
        except Exception as error:  # a compiler may raise anything, and what it cannot compile stops no other kernel
            first_line = str(error).strip().partition("\n")[0]
            return {"error": f"{type(error).__name__}: {first_line}"}

    names = [name for name in (COPY, READ, TRITON, TORCH, MM) if name != TRITON or has_kernels]
    return measure.race(
        {name: partial(run, name) for name in names},
        [(point.group, point) for point in points],
        dict[str, float | str],
        repeats=repeats,
        runs=lambda way, group: way in WAYS[group],
        store=store,
        progress=advance,
    )


def _rows(cells: "Sequence[Cell]", points: "Sequence[Point]") -> Iterator[dict[str, Any]]:
    """The figures of each point: microseconds and rates by way, shares of the memory's rate, and ratios."""
    memory_rate = math.nan
    for number, point_cells in group_by(cells, attrgetter("prompt")).items():
        point = points[number]
        row: dict[str, Any] = {"group": point.group, **asdict(point), "us": {}, "rate": {}, "errors": {}}
        seconds: dict[str, list[float]] = {}
        for way, way_cells in group_by(point_cells, attrgetter("way")).items():
            results = [cell.result for cell in way_cells]
            if error := next((result["error"] for result in results if "error" in result), None):
                row["errors"][way] = error
                continue
            seconds[way] = [result["seconds"] for result in results]
            row["us"][way] = 1e6 * statistics.median(seconds[way])
            row["rate"][way] = point.moved_bytes(way) / statistics.median(seconds[way])
        if point.group == "memory" and row["rate"]:
            memory_rate = max(row["rate"].values())
        row["of_memory"] = {way: rate / memory_rate for way, rate in row["rate"].items()}
        yield row | _ratios(seconds)


def _ratios(seconds: dict[str, list[float]]) -> "dict[str, measure.Interval]":
    """The times of other ways over those of our kernels, in each repeat."""
    ours = seconds.get("triton", [])
    ratios: dict[str, measure.Interval] = {}
    for way, way_seconds in seconds.items():
        if ours and way != "triton":
            quotients = [other_time / own_time for other_time, own_time in zip(way_seconds, ours, strict=True)]
            ratios[f"{way} / triton"] = measure.Interval.by_student(quotients)
    return ratios


def _passes(rows: Sequence[Mapping[str, Any]], shape: Shape) -> Iterator[dict[str, Any]]:
    """By weights and number of rows, the sums over all products of a pass, where all of them were timed.

    The head has sixteen bits in any pass. What is left out is attention, the embedding and the first norm.
    """
    products = [row for row in rows if "ending" in row]
    heads = {row["rows"]: row for row in products if row["name"] == "head" and not row["int8"]}
    for (group, row_count), product_rows in group_by(products, itemgetter("group", "rows")).items():
        layer_rows = [row for row in product_rows if row["name"] != "head"]
        if len(layer_rows) < LAYER_PRODUCTS or row_count not in heads:
            continue
        counted_rows = [(shape.layers, row) for row in layer_rows] + [(1, heads[row_count])]
        us: dict[str, float] = {}
        of_memory: dict[str, float] = {}
        for way in SHOWN_WAYS:
            if all(way in row["us"] for _, row in counted_rows):
                us[way] = sum(count * row["us"][way] for count, row in counted_rows)
                ideal_us = sum(count * row["us"][way] * row["of_memory"][way] for count, row in counted_rows)
                of_memory[way] = ideal_us / us[way]
        yield {"group": group, "rows": row_count, "us": us, "of_memory": of_memory}


def _name(device: "torch.device") -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)


def _show(report: Mapping[str, Any]) -> None:
    console = make_console()
    (memory,), *others = group_by(report["rows"], itemgetter("group")).values()
    speeds = ({"way": way, "us": us, "GB/s": memory["rate"][way] / 1e9} for way, us in memory["us"].items())
    console.print(measure.to_table(f"memory of {report['device']}, {MEMORY >> 20} MiB", speeds, SPEED), "")
    if reason := report["no_triton"]:
        print(f"without the kernels in Triton: {reason}\n")
    rows = [*map(_shown, chain.from_iterable(others))]
    products = filter(itemgetter("product"), rows)
    console.print(measure.to_table("products, with what a layer does to their results", products, PRODUCTS), "")
    console.print(measure.to_table("all products of a pass", map(_shown, report["passes"]), PASSES), "")
    console.print(measure.to_table("attention, bfloat16", filterfalse(itemgetter("product"), rows), ATTENTION))
    for row in report["rows"]:
        for way, error in row["errors"].items():
            print(f"{way} failed at {_place(row)}: {error}")
    print('"GB/s" and "of memory": triton, or torch without it; the latter over the fastest copy or sum')


def _shown(row: Mapping[str, Any]) -> dict[str, Any]:
    """The columns of a row of figures."""
    shown_way = next((way for way in SHOWN_WAYS if way in row["us"]), "")
    columns = {**row, "product": row.get("name"), "weights": row["group"]}
    columns["of memory"] = row["of_memory"].get(shown_way)
    if shown_way and "rate" in row:
        columns["GB/s"] = row["rate"][shown_way] / 1e9
    for way, us in row["us"].items():
        columns |= {f"{way} us": us, f"{way} ms": us / 1e3}
    return columns


def _place(row: Mapping[str, Any]) -> str:
    """The point of a row in words."""
    if "ending" in row:
        return f"{row['name']}, {row['group']}, {row['rows']} rows"
    return f"attention, {row['nodes']} nodes behind {row['prefix']}" if "prefix" in row else "memory"
