"""The time of a linear layer's product by dtype and rows, and of whole passes, whose weights are read from memory."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from drafttree.engine.drafting.measure import time_passes
from drafttree.evaluation.by_turns import by_turns
from drafttree.evaluation.inflation import load_inflated
from drafttree.models import TargetModel
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.fused.fused_linear import FusedProduct, fuse, multiplies_bfloat16_fast
from drafttree.models.native.kernels import native
from drafttree.models.native.native_backend import NativeBackend, is_native
from drafttree_lab.experiment.law import copy_bandwidth

INPUTS, OUTPUTS = 1024, 5888
"""Sizes of the product: the first half of the MLP of a model of 300 M parameters."""
LAYERS = 24
"""Weights that take turns, so that none is in a cache when it is read again."""
ROWS = (1, 4, 8, 16, 32, 64)
CONTEXT = 256
"""Tokens before the passes."""
KINDS = {"float32": torch.float32, "bfloat16": torch.bfloat16}
"""The kinds of weights that torch multiplies."""


@dataclass(frozen=True)
class ProductTimes:
    """One kind of weights; medians in seconds by rows.

    Attributes:
        kind: "float32", "bfloat16" or "int8".
        weight_bytes: the bytes of a product's weight.
        product: the seconds of a product on torch; None for int8, which torch is not asked for.
        passes: the seconds of a pass over the whole model on torch, None where it was not asked for.
        native: the same in one call of drafttree-native, None where that is not installed or was not asked for.
    """

    kind: str
    weight_bytes: int
    product: dict[int, float] | None
    passes: dict[int, float] | None
    native: dict[int, float] | None

    @property
    def bandwidth(self) -> float | None:
        """Bytes of weights per second in products over one row."""
        return self.weight_bytes / self.product[min(self.product)] if self.product else None


@dataclass(frozen=True)
class ProductBench:
    """All measurements.

    Attributes:
        rows: one for each kind of weights.
        copy: bytes per second, read and written, of a large copy.
        threads: the threads of the CPU.
        shape: the model of the passes, None without passes.
        multiplies_bfloat16: whether the CPU has instructions for bfloat16.
        build: the build of drafttree-native that runs here, None without.
    """

    rows: list[ProductTimes]
    copy: float
    threads: int
    shape: str | None
    multiplies_bfloat16: bool
    build: str | None

    def summary(self) -> dict[str, object]:
        """Every figure, for JSON."""
        return {**asdict(self), "bandwidth": {row.kind: row.bandwidth for row in self.rows}}


@torch.inference_mode()
def bench_products(
    *,
    shape: str | None = "300m",
    rows: Sequence[int] = ROWS,
    repeats: int = 7,
    progress: Callable[[str], None] = lambda _: None,
) -> ProductBench:
    """Time products and passes on the CPU, the kinds of weights by turns.

    Args:
        shape: to which the embedded target is inflated for whole passes; None for products alone.
        rows: rows of the products, and nodes of the passes.
        repeats: times everything is run, after once that is not counted.
        progress: called after every turn of a kind with its name.
    """
    torch.manual_seed(0)
    layers = {kind: [_layer(kind) for _ in range(LAYERS)] for kind in KINDS}
    times: dict[str, dict[int, list[float]]] = {kind: {count: [] for count in rows} for kind in KINDS}
    for _, kind in by_turns([*KINDS], 1 + repeats):
        for count in rows:
            times[kind][count].append(_seconds(layers[kind], torch.randn(count, INPUTS).to(KINDS[kind])))
        progress(kind)
    medians = {kind: {count: statistics.median(each[1:]) for count, each in own.items()} for kind, own in times.items()}
    sizes = {"float32": 4, "bfloat16": 2} | ({"int8": 1} if native else {})
    return ProductBench(
        rows=[
            ProductTimes(
                kind,
                OUTPUTS * INPUTS * size,
                medians.get(kind),
                *(_passes(kind, shape, rows, repeats) if shape else (None, None)),
            )
            for kind, size in sizes.items()
        ],
        copy=copy_bandwidth(torch.device("cpu")),
        threads=torch.get_num_threads(),
        shape=shape,
        multiplies_bfloat16=multiplies_bfloat16_fast(torch.device("cpu")),
        build=native.variant if native else None,
    )


def _layer(kind: str) -> FusedProduct:
    return fuse(nn.Linear(INPUTS, OUTPUTS, bias=False).to(KINDS[kind]))


def _seconds(layers: Sequence[FusedProduct], x: Tensor) -> float:
    """Mean seconds of a product, over all weights."""
    begun = time.perf_counter()
    for layer in layers:
        layer(x)
    return (time.perf_counter() - begun) / len(layers)


def _passes(
    kind: str, shape: str, rows: Sequence[int], repeats: int
) -> tuple[dict[int, float] | None, dict[int, float] | None]:
    """The times of passes on torch, and of those in one call; each alone, since torch's threads spin between passes."""
    quantize, dtype = ("int8", "float32") if kind == "int8" else (None, kind)
    target: Any = load_inflated("embedded", "none", shape, dtype, "cpu", quantize).target
    module = target.module
    on_torch = None if quantize else time_passes(TargetModel(module, FusedBackend), rows, CONTEXT, repeats)
    native = time_passes(TargetModel(module, NativeBackend), rows, CONTEXT, repeats) if is_native(module) else None
    return on_torch, native
