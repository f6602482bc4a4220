"""The backend that records passes over trees in a few fixed shapes on fixed memory, as CUDA graphs need them.

A launch costs the host as much time as a small kernel takes, so a pass that is recorded once and replayed can be many
times faster. Nothing in it may depend on the host: node counts are rounded up to a bucket, attention spans the whole
capacity of the KV cache, and how much of it is in use are numbers on the device, from which the pass makes its own
attention mask. Buffers of finished texts are kept with the passes recorded on them, and serve the next text.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from drafttree.models.base import Output
from drafttree.models.buffer_pool import BufferPool, PooledCache, RecordedPass
from drafttree.models.cache_layout import CacheLayout
from drafttree.models.fused import FusedBackend
from drafttree.models.kv_cache import TreeCache, layer_rows
from drafttree.models.packed import forward_each
from drafttree.models.pass_inputs import PassInputs, StaticInputs
from drafttree.models.segment import Segment

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Nodes of a recorded pass; larger passes, which are prompts, are not recorded."""
MAX_DRAFTED = 1024
"""Drafted rows a recorded pass can see; one behind more of them is not recorded."""

Recorder = Callable[[RecordedPass], RecordedPass | None]
"""Makes something that repeats a pass out of the pass, or None where it cannot."""


class RecordedBackend:
    """Replays recorded passes of fused layers. See `drafttree.models.base.PackedBackend` for the protocol.

    Texts may take turns on it, threads may not: every pass reads its inputs from the same memory. If a pass cannot be
    recorded, it and all later ones run on the fused layers directly.

    Args:
        fused: its weights stay where they are from then on.
        recorder: of passes.
    """

    shares_passes = True

    def __init__(self, fused: FusedBackend, recorder: Recorder) -> None:
        self.device = fused.device
        self._fused = fused
        self._passes = RecordedPasses(recorder, fused.layout, fused.layers[0].groups, fused.empty)

    def new_cache(self, batch: int, capacity: int) -> TreeCache:
        return self._fused.new_cache(batch, capacity) if batch > 1 else self._passes.new_cache(capacity)

    def forward(
        self,
        cache: TreeCache,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        last_only: bool = False,
        hidden_layers: tuple[int, ...] = (),
    ) -> Output:
        fused = self._fused

        def run(inputs: PassInputs) -> tuple[Tensor, ...]:
            x, hidden = fused.run_layers(inputs, hidden_layers)
            return fused.logits(x), *hidden

        outputs = self._passes.replay(cache, tokens, positions, visible, run, variant=hidden_layers)
        if outputs is None:
            return fused.forward(cache, tokens, positions, visible, last_only=last_only, hidden_layers=hidden_layers)
        logits, *hidden = outputs
        return Output(logits[:, -1:] if last_only else logits, tuple(hidden))

    def forward_packed(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        """As the protocol says: one segment in a recorded pass, several in one on the fused layers."""
        if len(segments) > 1:
            return self._fused.forward_packed(segments, hidden_layers=hidden_layers)
        return forward_each(self, segments, hidden_layers)


class RecordedPasses:
    """The passes of a model or head over trees, recorded at their first use on the memory of a pooled KV cache.

    Args:
        recorder: of passes.
        layout: of the KV cache.
        groups: query heads that share a key head.
        like: a tensor of the cache's dtype, on its device.
        hidden: width of the states a head reads.
    """

    def __init__(self, recorder: Recorder, layout: CacheLayout, groups: int, like: Tensor, hidden: int = 0) -> None:
        self._recorder: Recorder | None = recorder
        self._layout = layout
        self._groups = groups
        self._like = like
        self._pool = BufferPool()
        self._inputs = StaticInputs(like, hidden, BUCKETS[-1], MAX_DRAFTED)

    def new_cache(self, capacity: int) -> PooledCache:
        """A KV cache for one sequence whose passes can be recorded, with room for the padding of the last pass."""
        return PooledCache(self._layout, capacity + BUCKETS[-1], self._pool)

    def replay(
        self,
        cache: TreeCache,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        run: Callable[[PassInputs], tuple[Tensor, ...]],
        *,
        variant: tuple[int, ...] = (),
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, ...] | None:
        """The outputs `[1, nodes, ...]` of a pass, whose rows are counted; None if it has to run unrecorded.

        Args:
            cache: and `tokens`, `positions`, `visible` as for `Backend.forward`. Passes on a cache of another
                backend, which may compute something else, are not replayed.
            run: the pass, given its inputs; used if it was not recorded before.
            variant: tells passes over the same number of nodes apart.
            hidden: `[1, nodes, hidden]` the states a head reads.
        """
        nodes, drafted = visible.shape[1:]
        if not isinstance(cache, PooledCache) or cache.pool is not self._pool or cache.window:
            return None  # a recorded pass makes a mask that knows no window
        if nodes > BUCKETS[-1] or drafted > MAX_DRAFTED:
            return None
        bucket = next(size for size in BUCKETS if size >= nodes)
        cache.rows(self._like, bucket)
        self._inputs.store(cache, tokens, positions, visible, hidden)
        replay = self._recorded(cache, bucket, variant, run)
        if replay is None:
            return None
        outputs = replay()
        cache.grow(positions)
        return tuple(output[:, :nodes].clone() for output in outputs)

    def _recorded(
        self,
        cache: PooledCache,
        bucket: int,
        variant: tuple[int, ...],
        run: Callable[[PassInputs], tuple[Tensor, ...]],
    ) -> RecordedPass | None:
        """A recorded pass. Its inputs must be in place: recording runs it, and so writes rows of the KV cache."""
        passes, key = cache.pooled.passes, (bucket, variant)
        if key not in passes and self._recorder:
            rows = layer_rows(self._layout, cache.pooled.buffers)
            recorded = self._recorder(lambda: run(self._inputs.of_bucket(bucket, self._groups, rows)))
            if recorded is None:
                self._recorder = None
            else:
                passes[key] = recorded
        return passes.get(key)
