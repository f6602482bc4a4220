"""CUDA graphs: a pass is captured once and launched as a whole from then on."""

import warnings
from typing import Any

import torch
from torch import Tensor

from drafttree.models.cache.buffer_pool import RecordedPass

WARMUPS = 2
"""Runs of a pass before its capture."""


class CudaGraphs:
    """Records passes as CUDA graphs. If a capture fails, it warns of the reason and returns None.

    The graphs share one memory pool, so no two of them may run at the same time.

    Args:
        device: the device where the passes run.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side_stream: Any = None
        self._memory_pool: Any = None

    def __call__(self, run: RecordedPass) -> RecordedPass | None:
        try:
            with torch.cuda.device(self._device):
                return self._capture(run)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            warnings.warn(f"passes run without CUDA graphs, which is slower: {reason}", stacklevel=2)
            return None

    def _capture(self, run: RecordedPass) -> RecordedPass:
        """Capture a pass; each replay writes its outputs to the same memory."""
        self._side_stream = self._side_stream or torch.cuda.Stream()
        self._memory_pool = self._memory_pool or torch.cuda.graph_pool_handle()
        self._side_stream.wait_stream(torch.cuda.current_stream())
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.stream(self._side_stream):
                for _ in range(WARMUPS):
                    run()
                # a global capture would fail if another thread used the device meanwhile
                options = {"stream": self._side_stream, "capture_error_mode": "thread_local"}
                with torch.cuda.graph(graph, pool=self._memory_pool, **options):
                    outputs = run()
        finally:
            torch.cuda.current_stream().wait_stream(self._side_stream)

        def replay() -> tuple[Tensor, ...]:
            graph.replay()
            return outputs

        return replay
