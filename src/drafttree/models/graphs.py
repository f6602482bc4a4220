"""CUDA graphs: a pass is captured once and launched as a whole from then on."""

import warnings
from typing import Any

import torch

from drafttree.models.base import Output
from drafttree.models.static import Run

WARMUPS = 2


class CudaGraphs:
    """Records passes as CUDA graphs. They share one pool of memory: no two run at the same time.

    Where a capture fails, passes run as they come from then on, and a warning says why.
    """

    def __init__(self) -> None:
        self._memory: Any = None
        self._failed = False

    def __call__(self, run: Run) -> Run:
        if self._failed:
            return run
        try:
            return self._capture(run)
        except (RuntimeError, AssertionError) as error:
            self._failed = True
            reason = str(error).strip().split("\n")[0] or type(error).__name__
            warnings.warn(f"passes run without CUDA graphs, which is slower: {reason}", stacklevel=2)
            return run

    def _capture(self, run: Run) -> Run:
        """A launch of the captured pass; it writes its outputs to the same memory every time."""
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARMUPS):
                run()
        torch.cuda.current_stream().wait_stream(side)
        self._memory = self._memory or torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._memory):
            output = run()

        def replay() -> Output:
            graph.replay()
            return output

        return replay
