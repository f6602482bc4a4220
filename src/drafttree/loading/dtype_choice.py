"""Which of two dtypes multiplies a model's weights faster on a CPU, by a short measurement that is kept on disk.

Instructions for bfloat16 are no promise: a small product takes longer to set up than to compute, and in bfloat16 longer
than in float32, so small models are faster in float32 and large ones, which wait for memory, in bfloat16.
"""

import time
from collections.abc import Sequence

import torch

from drafttree.core.disk_cache import DiskCache
from drafttree.engine.costs.cost_file import machine
from drafttree.models.fused.fused_linear import FusedLinear

ROWS = (1, 8)
"""Of the products: a pass of plain decoding, and one over a small tree."""
ELEMENTS = 1 << 25
"""Of the weights that are measured, the first of a model: more than fit a cache, and few enough to take no time."""
ROUNDS = 6
SECONDS = 1.0
"""After which no further round begins: on a busy machine one may take that long, and its times are not kept."""

Shape = tuple[int, int]


def measured_times(shapes: Sequence[Shape]) -> dict[str, float]:
    """Seconds of products with weights of these shapes, by dtype; measured once a machine and number of threads.

    Args:
        shapes: `(out, in)`.
    """
    shapes = _first(shapes)
    cache, key = DiskCache("dtype"), f"{machine(torch.device('cpu'))} {torch.__version__} {shapes}"
    if times := cache.get(key):
        return times
    times, rounds = _measure(shapes)
    if rounds == ROUNDS:
        cache.put(key, times)
    return times


def _first(shapes: Sequence[Shape]) -> list[Shape]:
    """The first shapes, up to `ELEMENTS`."""
    taken, elements = [], 0
    for out, width in shapes:
        taken.append((out, width))
        elements += out * width
        if elements >= ELEMENTS:
            break
    return taken


@torch.inference_mode()
def _measure(shapes: Sequence[Shape]) -> tuple[dict[str, float], int]:
    """The fastest of a few rounds by turns, since a busy machine only makes them slower, and the number of rounds."""
    products = {"float32": _Products(shapes, torch.float32), "bfloat16": _Products(shapes, torch.bfloat16)}
    best = {(name, rows): float("inf") for name in products for rows in ROWS}
    rounds, began = 0, time.perf_counter()
    while rounds < 2 or (rounds < ROUNDS and time.perf_counter() < began + SECONDS):
        for name, rows in best:
            best[name, rows] = min(best[name, rows], products[name].seconds(rows))
        rounds += 1
    return {name: sum(best[name, rows] for rows in ROWS) for name in products}, rounds


class _Products:
    """Products with a weight of each shape, laid out as loaded models have them."""

    def __init__(self, shapes: Sequence[Shape], dtype: torch.dtype) -> None:
        input_major = dtype == torch.float32
        weights = [torch.full(shape[::-1] if input_major else shape, 0.01, dtype=dtype) for shape in shapes]
        self._products = [FusedLinear(weight.t() if input_major else weight, None) for weight in weights]
        self._shapes, self._dtype = shapes, dtype

    def seconds(self, rows: int) -> float:
        """The time of one run over all of them."""
        inputs = {width: torch.ones(rows, width, dtype=self._dtype) for _, width in self._shapes}
        started = time.perf_counter()
        for product, (_, width) in zip(self._products, self._shapes, strict=True):
            product(inputs[width])
        return time.perf_counter() - started
