"""A function of independent rows that is recorded for a few numbers of rows, as CUDA graphs need it, and replayed."""

from bisect import bisect_left
from collections.abc import Callable

from torch import Tensor

from drafttree.models.cache.buffer_pool import RecordedPass, Recorder

ROWS = (1, 4, 16, 64)
"""Numbers of rows for which a function is recorded. With more, it runs as it is."""


class RecordedFunction:
    """Replays a function of rows.

    Args:
        function: maps rows `[rows, width]` to tensors `[rows, ...]`, each row by itself. Its weights must not move.
        recorder: records it.
    """

    def __init__(self, function: Callable[[Tensor], tuple[Tensor, ...]], recorder: Recorder) -> None:
        self._function = function
        self._recorder: Recorder | None = recorder
        self._recorded = dict[int, tuple[Tensor, RecordedPass]]()

    def __call__(self, rows: Tensor) -> tuple[Tensor, ...]:
        """The function's outputs, in memory of their own."""
        count = len(rows)
        if self._recorder is None or count > ROWS[-1]:
            return self._function(rows)
        bucket = ROWS[bisect_left(ROWS, count)]
        if bucket not in self._recorded:
            memory = rows.new_zeros(bucket, rows.shape[1])
            replay = self._recorder(lambda: self._function(memory))
            if replay is None:
                self._recorder = None
                return self._function(rows)
            self._recorded[bucket] = memory, replay
        memory, replay = self._recorded[bucket]
        memory[:count] = rows
        return tuple(output[:count].clone() for output in replay())
