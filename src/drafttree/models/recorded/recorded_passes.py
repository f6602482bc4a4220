"""Passes over trees that are recorded in a few fixed shapes on fixed memory, as CUDA graphs need them, and replayed.

A launch costs the host as much time as a small kernel takes. So a pass that is recorded once and replayed can be many
times faster. Nothing in it may depend on the host. So node counts are rounded up to a bucket, and the device itself
reads how many rows of a KV cache are in use. Buffers of finished texts are kept for the next text, with the passes
recorded on them.
"""

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from drafttree.models.attention.varlen_attention import VarlenAttention
from drafttree.models.cache.buffer_pool import BufferPool, PooledCache, RangePool, RecordedPass, Recorder
from drafttree.models.cache.kv_cache import CacheLayout, TreeCache
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.recorded.masked_inputs import BUCKETS, MaskedInputs
from drafttree.models.recorded.packed_inputs import PackedInputs
from drafttree.models.segment import Output, Segment
from drafttree.models.windows import EVERYTHING

logger = logging.getLogger("drafttree")


class InputBuilder(Protocol):
    """Makes the inputs of recorded passes in memory that does not move."""

    def make_room(self, segments: Sequence[Segment], reference_tensor: Tensor) -> Any:
        """Make room for a pass, and return its padded sizes; None if it is too large.

        Args:
            segments: the parts of the pass.
            reference_tensor: a tensor of the pass's dtype, on its device.
        """
        ...

    def recorded(self, segments: Sequence[Segment]) -> dict[Any, Any]:
        """The passes recorded on the buffers of these requests; `make_room` must have been called."""
        ...

    def rows(self, segments: Sequence[Segment]) -> list[Any]:
        """Per layer the rows that a pass over these requests reads and writes."""
        ...

    def store(self, segments: Sequence[Segment], hidden_states: Tensor, sizes: Any, memory: Any) -> Any:
        """Store what a pass reads, in `memory` of an earlier pass if it is not None, and return the memory."""
        ...

    def inputs(self, memory: Any, sizes: Any, rows: list[Any]) -> PassInputs:
        """The inputs of a pass, computed on the device from what is stored."""
        ...

    def unrecorded(self, segments: Sequence[Segment], hidden_states: Tensor) -> PassInputs:
        """The inputs of a pass that is not recorded, of any size."""
        ...


class RecordedPasses:
    """Records and replays the passes of a model or draft head over trees.

    A pass over one request is recorded for every dtype and device. Its attention is one call of torch with a mask
    (`MaskedInputs`). A pass over several requests has two calls, whose results are joined (`PackedInputs`). One is for
    the trees. The other is for the prefixes, with a kernel that few devices have (`find_varlen_attention`).

    Args:
        recorder: records a pass, as `CudaGraphs` does.
        layout: layout of the KV caches.
        groups: query heads that share a key head.
        reference_tensor: a tensor of the cache's dtype, on its device.
        hidden_size: width of the states that a draft head reads, 0 for a model.
        varlen: attends to the prefixes of several requests in one call. If it is None, passes over several requests
            are not recorded, and each request has its own calls.
    """

    def __init__(
        self,
        recorder: Recorder,
        layout: CacheLayout,
        groups: int,
        reference_tensor: Tensor,
        hidden_size: int = 0,
        varlen: VarlenAttention | None = None,
    ) -> None:
        self._recorder: Recorder | None = recorder
        self._layout = layout
        self._reference_tensor = reference_tensor
        self._masked = MaskedInputs(layout, groups, reference_tensor, hidden_size)
        self._packed = PackedInputs(RangePool(layout), layout, groups, varlen) if varlen else None
        self._pool = self._packed.pool if self._packed else BufferPool(layout)

    def new_cache(self, capacity: int) -> PooledCache:
        """A KV cache whose passes can be recorded. Its capacity includes room for the padding of a pass."""
        return PooledCache(self._layout, capacity + BUCKETS[-1], self._pool)

    def reserve(self, rows: int) -> None:
        """Make room for this many rows of KV caches. Passes recorded later stay valid until more rows are in use."""
        if self._packed:
            self._packed.pool.reserve(rows, self._reference_tensor)

    def replay(
        self,
        segments: Sequence[Segment],
        run: Callable[[PassInputs], tuple[Tensor, ...]],
        *,
        variant: tuple[int, ...] = (),
        hidden_states: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Run a pass, recorded where it can be, and count its rows in the KV caches.

        Args:
            segments: the parts of the pass.
            run: runs the pass on given inputs.
            variant: distinguishes passes of the same sizes.
            hidden_states: `[1, nodes, hidden]` states that a draft head reads.

        Returns:
            The outputs of `run`, each `[1, nodes, ...]`.
        """
        hidden_states = self._reference_tensor if hidden_states is None else hidden_states
        builder = self._builder(segments)
        outputs = self._replay(builder, segments, run, hidden_states, variant) if builder else None
        if outputs is None:
            outputs = run((builder or self._masked).unrecorded(segments, hidden_states))
        for segment in segments:
            segment.cache.grow(segment.positions)
        return outputs

    def _builder(self, segments: Sequence[Segment]) -> InputBuilder | None:
        """The builder for these requests; None if a KV cache has a window or is of another pool."""
        caches = [segment.cache for segment in segments]
        if not all(
            isinstance(cache, PooledCache) and cache.pool is self._pool and not cache.windowed for cache in caches
        ):
            return None
        return self._masked if len(segments) == 1 else self._packed

    def _replay(
        self,
        builder: InputBuilder,
        segments: Sequence[Segment],
        run: Callable[[PassInputs], tuple[Tensor, ...]],
        hidden_states: Tensor,
        variant: tuple[int, ...],
    ) -> tuple[Tensor, ...] | None:
        """The outputs of a recorded pass; None where there is none."""
        sizes = builder.make_room(segments, hidden_states)
        if sizes is None or self._recorder is None:
            return None
        recorded_passes = builder.recorded(segments)
        key = sizes, variant
        memory, replay = recorded_passes.get(key, (None, None))
        memory = builder.store(segments, hidden_states, sizes, memory)
        if replay is None:
            rows = builder.rows(segments)  # a recorded pass must not keep the KV caches alive
            replay = self._record(lambda: run(builder.inputs(memory, sizes, rows)), sizes)
            if replay is None:
                return None
            recorded_passes[key] = memory, replay
        nodes = sum(segment.nodes for segment in segments)
        return tuple(output[:, :nodes].clone() for output in replay())

    def _record(self, run: RecordedPass, sizes: Any) -> RecordedPass | None:
        """Record a pass. Its inputs must be stored before, since recording runs it and writes rows of the KV cache."""
        assert self._recorder
        device = self._reference_tensor.device
        reserved_bytes = torch.cuda.memory_reserved(device) if device.type == "cuda" else 0
        start_seconds = time.perf_counter()
        replay = self._recorder(run)
        if replay is None:
            self._recorder = None
            return None
        pass_bytes = (torch.cuda.memory_reserved(device) if device.type == "cuda" else 0) - reserved_bytes
        logger.info(
            "recorded a pass of size %s: %.2f s, %.1f MiB",
            sizes,
            time.perf_counter() - start_seconds,
            pass_bytes / 2**20,
        )
        return replay


class RecordedBackend:
    """Replays recorded passes of fused layers. See `drafttree.models.base.Backend` for the protocol.

    Several texts may use it alternately, but not several threads, since every pass reads its inputs from the same
    memory. If a pass cannot be recorded, it and all later ones run on the fused layers directly.

    Args:
        fused: runs the layers. Its weights must not move from then on.
        recorder: records a pass.
        varlen: as of `RecordedPasses`; it is used if no layer has a window.
    """

    exact_text = False
    fallback_reason = None
    lossy_window = None
    shares_passes = True

    def __init__(self, fused: FusedBackend, recorder: Recorder, varlen: VarlenAttention | None = None) -> None:
        self.device = fused.device
        self.packed_nbytes = fused.packed_nbytes
        self._fused = fused
        varlen = varlen if fused.spans == (EVERYTHING,) else None
        self._passes = RecordedPasses(recorder, fused.layout, fused.groups, fused.empty, fused.hidden, varlen)

    def new_cache(self, capacity: int) -> TreeCache:
        return self._passes.new_cache(capacity)

    def reserve(self, rows: int) -> None:
        """Make room for this many rows of KV caches; see `RecordedPasses.reserve`."""
        self._passes.reserve(rows)

    def forward(
        self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = (), states: Tensor | None = None
    ) -> list[Output]:
        """A pass; see `FusedBackend.forward`."""
        fused = self._fused

        def run(inputs: PassInputs) -> tuple[Tensor, ...]:
            x, hidden_states = fused.run_layers(inputs, hidden_layers)
            return x, *hidden_states

        if not segments:
            return []
        x, *hidden_states = self._passes.replay(segments, run, variant=hidden_layers, hidden_states=states)
        return fused.outputs_of(segments, x, tuple(hidden_states))
