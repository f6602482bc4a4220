"""Packed passes over requests whose rows are in one allocation, recorded at their first use for a few sizes."""

from collections.abc import Callable, Sequence

from torch import Tensor

from drafttree.models.buffer_pool import PooledCache, Recorder
from drafttree.models.cache_layout import CacheLayout
from drafttree.models.kv_cache import layer_rows
from drafttree.models.paged_inputs import PagedInputs, PagedSizes, PagedTensors
from drafttree.models.paged_pool import PagedPool
from drafttree.models.segment import Segment
from drafttree.models.varlen_attention import VarlenAttention

BUCKETS = (8, 16, 32, 64, 128, 256, 512)
"""Nodes of a recorded pass, and its drafted rows; larger ones, which read prompts, are not recorded."""
MAX_REQUESTS = 64
"""Requests of a recorded pass."""


class PagedPasses:
    """Runs packed passes of a model or head.

    Args:
        recorder: of passes.
        pool: of the KV caches.
        layout: of the KV caches.
        groups: query heads that share a key head.
        varlen: attends to the committed rows.

    Attributes:
        pool: as given.
    """

    def __init__(
        self, recorder: Recorder, pool: PagedPool, layout: CacheLayout, groups: int, varlen: VarlenAttention
    ) -> None:
        self.pool = pool
        self._recorder: Recorder | None = recorder
        self._layout = layout
        self._groups = groups
        self._varlen = varlen

    def serves(self, segments: Sequence[Segment]) -> bool:
        """Whether all requests have their rows in the pool and attend to all of them."""
        caches = [segment.cache for segment in segments]
        return all(isinstance(cache, PooledCache) and cache.pool is self.pool and not cache.window for cache in caches)

    def replay(
        self,
        segments: Sequence[Segment],
        run: Callable[[PagedInputs], tuple[Tensor, ...]],
        hidden: Tensor,
        variant: tuple[int, ...],
    ) -> tuple[Tensor, ...]:
        """The outputs `[1, nodes, ...]` of a pass, whose rows are counted.

        Args:
            segments: that it serves.
            run: the pass, given its inputs.
            hidden: `[1, nodes, hidden]` the states a head reads; empty for a model.
            variant: tells passes of the same sizes apart.
        """
        for segment in segments:
            segment.cache.reserve(hidden, segment.nodes)
        outputs = self._replay_bucket(segments, run, hidden, variant)
        if outputs is None:
            sizes = PagedSizes.of(segments)
            outputs = run(self._inputs(PagedTensors.of(segments, hidden, sizes), sizes))
        for segment in segments:
            segment.cache.grow(segment.positions)
        return outputs

    def _replay_bucket(
        self,
        segments: Sequence[Segment],
        run: Callable[[PagedInputs], tuple[Tensor, ...]],
        hidden: Tensor,
        variant: tuple[int, ...],
    ) -> tuple[Tensor, ...] | None:
        """The outputs of a recorded pass; None where there is none."""
        nodes, sizes = sum(segment.nodes for segment in segments), self._bucket(segments)
        if sizes is None or self._recorder is None:
            return None
        tensors, key = PagedTensors.of(segments, hidden, sizes), (sizes, variant)
        if key in self.pool.passes:
            static, replay = self.pool.passes[key]
            for place, given in zip(static, tensors, strict=True):
                place.copy_(given)
        else:
            replay = self._recorder(lambda: run(self._inputs(tensors, sizes)))
            if replay is None:
                self._recorder = None
                return None
            self.pool.passes[key] = tensors, replay
        return tuple(output[:, :nodes].clone() for output in replay())

    def _bucket(self, segments: Sequence[Segment]) -> PagedSizes | None:
        """The sizes of a recorded pass that these requests fit in, None where they are too large."""
        own = PagedSizes.of(segments)
        nodes, drafted = (next((size for size in BUCKETS if size >= count), None) for count in own[:2])
        if nodes is None or drafted is None or own.requests > MAX_REQUESTS:
            return None
        return PagedSizes(nodes, drafted, min(nodes, MAX_REQUESTS), self.pool.pages, nodes)

    def _inputs(self, tensors: PagedTensors, sizes: PagedSizes) -> PagedInputs:
        layers = layer_rows(self._layout, self.pool.buffers)
        rows = [(keys[0], values[0]) for keys, values in layers]
        return PagedInputs(tensors, rows, self._groups, sizes.most_nodes, self._varlen)
