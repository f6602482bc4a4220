"""The backend that records passes over trees in a few fixed shapes on fixed memory, as CUDA graphs need them.

A launch costs the host as much time as a small kernel takes, so a pass that is recorded once and replayed can be many
times faster. Nothing in it may depend on the host: node counts are rounded up to a bucket, attention spans the whole
capacity of the KV cache, and how much of it is in use are numbers on the device, from which the pass makes its own
attention mask. Buffers of finished texts are kept with the passes recorded on them, and serve the next text.
"""

from collections.abc import Callable, Sequence

from torch import Tensor

from drafttree.models.base import Output
from drafttree.models.buffer_pool import BufferPool, PooledCache, RecordedPass, Recorder
from drafttree.models.cache_layout import CacheLayout
from drafttree.models.fused import FusedBackend
from drafttree.models.kv_cache import TreeCache, layer_rows
from drafttree.models.packed import forward_each
from drafttree.models.paged_inputs import PagedInputs
from drafttree.models.paged_passes import PagedPasses
from drafttree.models.paged_pool import PagedPool
from drafttree.models.pass_inputs import PassInputs, StaticInputs
from drafttree.models.segment import Segment
from drafttree.models.span import EVERYTHING
from drafttree.models.varlen_attention import VarlenAttention

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Nodes of a recorded pass; larger passes, which are prompts, are not recorded."""
MAX_DRAFTED = 1024
"""Drafted rows a recorded pass can see; one behind more of them is not recorded."""


class RecordedBackend:
    """Replays recorded passes of fused layers. See `drafttree.models.base.PackedBackend` for the protocol.

    Texts may take turns on it, threads may not: every pass reads its inputs from the same memory. If a pass cannot be
    recorded, it and all later ones run on the fused layers directly.

    Args:
        fused: its weights stay where they are from then on.
        recorder: of passes.
        varlen: attends to the prefixes of several requests at once; without, each has calls of its own, unrecorded.
    """

    shares_passes = True

    def __init__(self, fused: FusedBackend, recorder: Recorder, varlen: VarlenAttention | None = None) -> None:
        self.device = fused.device
        self._fused = fused
        varlen = varlen if fused.spans == (EVERYTHING,) else None
        self._passes = RecordedPasses(recorder, fused.layout, fused.layers[0].groups, fused.empty, varlen=varlen)

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
        if len(segments) <= 1:
            return forward_each(self, segments, hidden_layers)
        fused = self._fused

        def run(inputs: PagedInputs) -> tuple[Tensor, ...]:
            x, hidden = fused.run_layers(inputs, hidden_layers)
            return x, *hidden

        outputs = self._passes.replay_packed(segments, run, variant=hidden_layers)
        if outputs is None:
            return fused.forward_packed(segments, hidden_layers=hidden_layers)
        x, *hidden = outputs
        return fused.outputs_of(segments, x, tuple(hidden))


class RecordedPasses:
    """The passes of a model or head over trees, recorded at their first use on the memory of a pooled KV cache.

    Args:
        recorder: of passes.
        layout: of the KV cache.
        groups: query heads that share a key head.
        like: a tensor of the cache's dtype, on its device.
        hidden: width of the states a head reads.
        varlen: attends to the prefixes of several requests at once.
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
        self._groups = groups
        self._like = like
        self._paged = PagedPasses(recorder, PagedPool(layout), layout, groups, varlen) if varlen else None
        self._pool = self._paged.pool if self._paged else BufferPool(layout)
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

    def replay_packed(
        self,
        segments: Sequence[Segment],
        run: Callable[[PagedInputs], tuple[Tensor, ...]],
        *,
        variant: tuple[int, ...] = (),
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, ...] | None:
        """The outputs of a packed pass, recorded or not, whose rows are counted; None if it needs other attention.

        Args:
            segments: of the pass.
            run: and `variant`, `hidden` as for `replay`.
        """
        if self._paged is None or not self._paged.serves(segments):
            return None
        return self._paged.replay(segments, run, self._like if hidden is None else hidden, variant)

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
