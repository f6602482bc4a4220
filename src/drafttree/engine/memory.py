"""How much memory the rows of KV caches may take, unless a user sets it.

                                               on a GPU, of free memory     elsewhere, of all memory
    rows of an engine, kept texts included     1/2                          1/2
    kept texts, at least 8,192 tokens          1/16                         1/256

The rest is for weights, passes and other programs. Kept texts are dropped when a request needs their rows.
"""

import math
import sys

import torch

from drafttree.core.counts import check_count
from drafttree.core.errors import ContextError
from drafttree.core.machine_memory import machine_memory
from drafttree.engine.compatibility import is_sharded
from drafttree.engine.prefixes import PrefixCache
from drafttree.models import Model
from drafttree.models.tensor_parallel import of_first_process

SHARE = 1 / 2
KEPT_SHARE, KEPT_GPU_SHARE, LEAST_KEPT = 1 / 256, 1 / 16, 8192
"""8,192 tokens of an 8B Llama take 1 GiB in bfloat16."""


def kept_tokens(target: Model) -> int:
    """The number of tokens of finished texts that are kept by default for a target."""
    rows = rows_in_memory(target, KEPT_GPU_SHARE if target.device.type == "cuda" else KEPT_SHARE)
    token_count = LEAST_KEPT if math.isinf(rows) else max(int(rows), LEAST_KEPT)
    return of_first_process(token_count) if is_sharded(target) else token_count


def rows_in_memory(target: Model, share: float) -> float:
    """The number of KV rows that fit into a share of the memory; infinite if the size of a row or memory is unknown.

    Args:
        target: the target whose rows they are.
        share: the share of the free memory of a GPU, or of all memory on other devices.
    """
    if target.device.type == "cuda":
        memory = torch.cuda.mem_get_info(target.device)[0]
    else:
        memory = machine.total if (machine := machine_memory()) else math.inf
    row = row_nbytes(target)
    return share * memory // row if row and memory < math.inf else math.inf


def row_nbytes(target: Model) -> int:
    """The bytes of one row of a target's KV cache; 0 if unknown."""
    layout = getattr(target.new_cache(1), "layout", None)
    width = getattr(target, "dtype", torch.float32).itemsize
    return width * sum(heads * size * slots for heads, size, slots in layout.buffers) if layout is not None else 0


class KVMemory:
    """Reserves rows of KV caches, so that an admitted request has room up to its end.

    Args:
        target: the target whose rows they are.
        prefixes: the kept texts. Their rows count too, and are dropped if a request needs them.
        max_tokens: maximum number of rows in all; None for half of the device's memory.

    Attributes:
        rows: maximum number of rows in all; infinite if the size of a row or of the memory is unknown.
        reserved: rows reserved for requests that run or pause.
        prefixes: as given.

    Raises:
        ConfigError: if `max_tokens` is not a whole number of at least 1.
    """

    def __init__(self, target: Model, prefixes: PrefixCache, max_tokens: int | None = None) -> None:
        if max_tokens is not None:
            check_count("max_kv_tokens", max_tokens, ", or None for what fits")
        self.rows = rows_in_memory(target, SHARE) if max_tokens is None else float(min(max_tokens, sys.float_info.max))
        self.reserved = 0
        self.prefixes = prefixes

    def check(self, rows: int) -> None:
        """Check that a request with this number of rows can run.

        Raises:
            ContextError: if there are fewer rows in all.
        """
        if rows > self.rows:
            raise ContextError(
                f"the request needs {rows} rows of the KV cache for its prompt, max_new_tokens and the largest tree, "
                f"but the engine has {self.rows:.0f}; shorten them, or raise max_kv_tokens"
            )

    def fits(self, rows: int) -> bool:
        """Whether `rows` more rows can be reserved. If so, kept texts are dropped as needed."""
        room = self.rows - self.reserved - rows
        if room < 0:
            return False
        self.prefixes.shrink(room)
        return True
