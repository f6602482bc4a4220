"""Passes over trees that are recorded in a few fixed shapes on fixed memory, as CUDA graphs need them, and replayed.

A launch costs the host as much time as a small kernel takes, so a pass that is recorded once and replayed can be many
times faster. Nothing in it may depend on the host: node counts are rounded up to a bucket, and the device reads how
many rows of a KV cache are in use. Buffers of finished texts are kept with the passes recorded on them, for the next
text.
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

    def make_room(self, segments: Sequence[Segment], like: Tensor) -> Any:
        """Make room for the rows of a pass, in the dtype of `like`; its padded sizes, None if it is too large."""
        ...

    def recorded(self, segments: Sequence[Segment]) -> dict[Any, Any]:
        """The passes recorded on the buffers of these requests; `make_room` must have been called."""
        ...

    def rows(self, segments: Sequence[Segment]) -> list[Any]:
        """Per layer the rows that a pass over these requests reads and writes."""
        ...

    def store(self, segments: Sequence[Segment], hidden: Tensor, sizes: Any, memory: Any) -> Any:
        """Store what a pass reads, in the memory of an earlier pass if that is given, and return the memory."""
        ...

    def inputs(self, memory: Any, sizes: Any, rows: list[Any]) -> PassInputs:
        """The inputs of a pass, computed on the device from what is stored."""
        ...

    def unrecorded(self, segments: Sequence[Segment], hidden: Tensor) -> PassInputs:
        """The inputs of a pass that is not recorded, of any size."""
        ...


class RecordedPasses:
    """The passes of a model or head over trees.

    One request is recorded wherever layers are fused: its attention is one call of torch's for every dtype and device,
    with a mask (`MaskedInputs`). Several requests need a kernel for their prefixes that few devices have
    (`find_varlen_attention`), and a second call for their trees, with which it is joined (`PackedInputs`).

    Args:
        recorder: records a pass.
        layout: layout of the KV caches.
        groups: query heads that share a key head.
        like: a tensor of the cache's dtype, on its device.
        hidden: width of the states that a draft head reads, 0 for a model.
        varlen: attends to the prefixes of several requests in one call. If it is None, passes over several requests
            are not recorded, and each request has calls of its own.
    """

    def __init__(
        self,
        recorder: Recorder,
        layout: CacheLayout,
        groups: int,
        like: Tensor,
        hidden: int = 0,
        varlen: VarlenAttention | None = None,
    ) -> None:
        self._recorder: Recorder | None = recorder
        self._layout = layout
        self._like = like
        self._masked = MaskedInputs(layout, groups, like, hidden)
        self._packed = PackedInputs(RangePool(layout), layout, groups, varlen) if varlen else None
        self._pool = self._packed.pool if self._packed else BufferPool(layout)

    def new_cache(self, capacity: int) -> PooledCache:
        """A KV cache whose passes can be recorded; its capacity includes the padding of the last pass."""
        return PooledCache(self._layout, capacity + BUCKETS[-1], self._pool)

    def reserve(self, rows: int) -> None:
        """Make room for so many rows of KV caches: passes recorded later stay valid until more are in use."""
        if self._packed:
            self._packed.pool.reserve(rows, self._like)

    def replay(
        self,
        segments: Sequence[Segment],
        run: Callable[[PassInputs], tuple[Tensor, ...]],
        *,
        variant: tuple[int, ...] = (),
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, ...]:
        """Run a pass, recorded where it can be, and count its rows in the KV caches.

        Args:
            segments: the parts of the pass.
            run: runs the pass on given inputs.
            variant: tells passes of the same sizes apart.
            hidden: `[1, nodes, hidden]` states that a draft head reads.

        Returns:
            The outputs of `run`, each `[1, nodes, ...]`.
        """
        hidden = self._like if hidden is None else hidden
        builder = self._builder(segments)
        outputs = self._replay(builder, segments, run, hidden, variant) if builder else None
        if outputs is None:
            outputs = run((builder or self._masked).unrecorded(segments, hidden))
        for segment in segments:
            segment.cache.grow(segment.positions)
        return outputs

    def _builder(self, segments: Sequence[Segment]) -> InputBuilder | None:
        """The builder for these requests; None if one has a KV cache with a window or of another pool."""
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
        hidden: Tensor,
        variant: tuple[int, ...],
    ) -> tuple[Tensor, ...] | None:
        """The outputs of a recorded pass; None where there is none."""
        sizes = builder.make_room(segments, hidden)
        if sizes is None or self._recorder is None:
            return None
        recorded_passes = builder.recorded(segments)
        key = sizes, variant
        memory, replay = recorded_passes.get(key, (None, None))
        memory = builder.store(segments, hidden, sizes, memory)
        if replay is None:
            rows = builder.rows(segments)  # a recorded pass must not keep the KV caches alive
            replay = self._record(lambda: run(builder.inputs(memory, sizes, rows)), sizes)
            if replay is None:
                return None
            recorded_passes[key] = memory, replay
        nodes = sum(segment.nodes for segment in segments)
        return tuple(output[:, :nodes].clone() for output in replay())

    def _record(self, run: RecordedPass, sizes: Any) -> RecordedPass | None:
        """A recorded pass. Its inputs must be in place: recording runs it, and so writes rows of the KV cache."""
        assert self._recorder
        device = self._like.device
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

    Texts may take turns on it, threads may not: every pass reads its inputs from the same memory. If a pass cannot be
    recorded, it and all later ones run on the fused layers directly.

    Args:
        fused: runs the layers; its weights must stay where they are from then on.
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
        """Make room for so many rows of KV caches; see `RecordedPasses.reserve`."""
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
        x, *hidden_states = self._passes.replay(segments, run, variant=hidden_layers, hidden=states)
        return fused.outputs_of(segments, x, tuple(hidden_states))
