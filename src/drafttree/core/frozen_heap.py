"""The heap of a process that serves: what was loaded lives as long as it does."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Leave what is loaded by now out of garbage collections: each would hold up all texts for a tenth of a second."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
