"""How long a target pass takes, by the number of its nodes."""

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from drafttree.models import Model, Segment, prefill


@torch.inference_mode()
def time_passes(
    model: Model,
    sizes: Sequence[int],
    context: int,
    repeats: int,
    seconds: float | None = None,
    typical: Callable[[Sequence[float]], float] = statistics.median,
) -> dict[int, float]:
    """Typical seconds of target passes over chains of these sizes, interleaved, after one of each to warm up.

    Args:
        model: the target.
        sizes: nodes of the passes.
        context: tokens before them.
        repeats: repeats of each size.
        seconds: stop when so much time has passed, but measure the first two sizes at least; None for no limit. What
            was run only once counts with that run.
        typical: chooses among the seconds of one size; their minimum is the same on a machine that does other work
            beside.
    """
    cache = model.new_cache(context + max(sizes))
    prefill(model, cache, [0] * context)
    times: dict[int, list[float]] = {size: [] for size in sizes}
    end = time.perf_counter() + (seconds or float("inf"))
    for _ in range(1 + repeats):
        for size in sizes:
            if time.perf_counter() > end and all(times[first] for first in sizes[:2]):
                break
            times[size].append(_time_pass(model, cache, size, context))
    return {size: typical(spent[1:] or spent) for size, spent in times.items() if spent}


def _time_pass(model: Model, cache, size: int, context: int) -> float:
    tokens = torch.zeros(1, size, dtype=torch.long, device=model.device)
    positions = torch.arange(context, context + size, device=model.device)[None]
    visible = torch.ones(1, size, size, dtype=torch.bool, device=model.device).tril()
    wait_for(model.device)
    started = time.perf_counter()
    model.forward([Segment(cache, tokens, positions, visible)])
    wait_for(model.device)
    spent = time.perf_counter() - started
    cache.commit([])
    return spent


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished what it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
