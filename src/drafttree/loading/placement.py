"""Devices and dtypes by name.

Which of two dtypes multiplies a model's weights faster on a CPU is measured in a second and kept on disk. Instructions
for bfloat16 are no promise: a small product takes longer to set up than to compute, and in bfloat16 longer than in
float32, so small models are faster in float32 and large ones, which wait for memory, in bfloat16. Over many rows a
product waits for the CPU, and without AMX float32 may be the faster again: the rows are those of the trees to be grown.
"""

import logging
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import torch
from transformers import PreTrainedModel

from drafttree.core.disk_cache import DiskCache
from drafttree.core.errors import ConfigError, unknown
from drafttree.engine.costs.cost_file import machine
from drafttree.loading.pretrained import ModelSource, linear_shapes
from drafttree.models import input_device
from drafttree.models.fused.fused_linear import FusedLinear, multiplies_bfloat16_fast

logger = logging.getLogger("drafttree")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
ROWS = (1, 8, 16, 32)
"""Rows of the products that are measured: a pass of plain decoding, and those over trees."""
ELEMENTS = 1 << 25
"""Elements of the measured weights, the first of a model: more than fit a cache, and few enough to take no time."""
ROUNDS = 6
SECONDS = 1.0
"""Time after which no further round begins: on a busy machine one may take that long, and its times are not kept."""
Shape = tuple[int, int]


def is_auto(value: object) -> bool:
    """Whether an option is "auto"; an array, which compares its elements, is not."""
    return isinstance(value, str) and value == "auto"


def find_placement(
    target: ModelSource, dtype: str | torch.dtype, device: str, quantize: str | None = None, nodes: Sequence[int] = (1,)
) -> tuple[torch.device, torch.dtype]:
    """The device and dtype to load with, which are a loaded target's own; "auto" is faster for passes over `nodes`.

    With int8 weights "auto" is bfloat16, since all weights are read in that dtype before they are rounded.

    Raises:
        ConfigError: there are none of that name, or a loaded target has others.
    """
    if not isinstance(target, PreTrainedModel):
        on = find_device(device)
        if is_auto(dtype) and quantize:
            return on, torch.bfloat16
        return on, _faster_dtype(target, on, nodes) if is_auto(dtype) else find_dtype(dtype, on)
    on = input_device(target)
    if not is_auto(device) and find_device(device).type != on.type:
        raise ConfigError(f"the target is on {on}, not on {device!r}; move it there, or leave out device")
    if not is_auto(dtype) and find_dtype(dtype, on) != target.dtype:
        raise ConfigError(f"the target is in {target.dtype}, not in {dtype!r}; convert it, or leave out dtype")
    return on, target.dtype


def find_device(name: str) -> torch.device:
    """The device of a name.

    Raises:
        ConfigError: there is no such device here.
    """
    if is_auto(name):
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(1, device=device).tolist()
    except (RuntimeError, AssertionError, NotImplementedError, TypeError, ValueError):
        here = ", ".join(["cpu", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))])
        raise ConfigError(f"device {name!r} is not available; here there is: {here}") from None
    return device


def find_dtype(name: str | torch.dtype, device: torch.device) -> torch.dtype:
    """The dtype of a name; "auto" is bfloat16 where the device multiplies it fast, else float32.

    Raises:
        ConfigError: there is no such dtype, or the device cannot compute in it.
    """
    if is_auto(name):
        return torch.bfloat16 if multiplies_bfloat16_fast(device) else torch.float32
    name = next((known for known, dtype in DTYPES.items() if dtype is name), name)
    if not isinstance(name, str) or name not in DTYPES:
        raise unknown("dtype", name, [*DTYPES, "auto"])
    if device.type == "cuda" and name == "bfloat16" and not torch.cuda.is_bf16_supported():
        raise ConfigError(f"{torch.cuda.get_device_name(device)} has no bfloat16; use float16")
    return DTYPES[name]


def _faster_dtype(target: str | Path, device: torch.device, nodes: Sequence[int]) -> torch.dtype:
    """The dtype for "auto": of a CPU that has bfloat16 the one that multiplies faster, else that of `find_dtype`."""
    found = find_dtype("auto", device)
    if device.type != "cpu" or found == torch.float32:
        return found
    with suppress(Exception):  # a model that cannot be read is refused when it is loaded
        rows = [next((rows for rows in ROWS if rows >= each), ROWS[-1]) for each in nodes]
        measured = measured_times(linear_shapes(target))
        times = {name: sum(own[str(each)] for each in rows) for name, own in measured.items()}
        found = DTYPES[min(times, key=times.__getitem__)]
        told = ", ".join(f"{name} {seconds * 1e3:.1f} ms" for name, seconds in times.items())
        logger.info("dtype: %s (products, rows = %s: %s)", str(found).removeprefix("torch."), _list(rows), told)
    return found


def _list(rows: Sequence[int]) -> str:
    return " and ".join(map(str, rows))


def measured_times(shapes: Sequence[Shape]) -> dict[str, dict[str, float]]:
    """Seconds of products with weights of these shapes, by dtype and rows; measured once a machine and threads.

    Args:
        shapes: `(out, in)`.
    """
    shapes = _first(shapes)
    cache, key = DiskCache("dtype"), f"{machine(torch.device('cpu'))} {torch.__version__} {ROWS} {shapes}"
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
def _measure(shapes: Sequence[Shape]) -> tuple[dict[str, dict[str, float]], int]:
    """The fastest of a few rounds by turns, since a busy machine only makes them slower, and the number of rounds."""
    products = {"float32": _Products(shapes, torch.float32), "bfloat16": _Products(shapes, torch.bfloat16)}
    best = {(name, rows): float("inf") for name in products for rows in ROWS}
    rounds, began = 0, time.perf_counter()
    while rounds < 2 or (rounds < ROUNDS and time.perf_counter() < began + SECONDS):
        for name, rows in best:
            best[name, rows] = min(best[name, rows], products[name].seconds(rows))
        rounds += 1
    return {name: {str(rows): best[name, rows] for rows in ROWS} for name in products}, rounds


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
