"""Passes over trees that are recorded in a few fixed shapes on fixed memory, as CUDA graphs need them, and replayed.

A launch costs the host as much time as a small kernel takes. So a pass that is recorded once and replayed can be many
times faster. Nothing in it may depend on the host. So node counts are rounded up to a bucket, and the device itself
reads how many rows of a KV cache are in use. Buffers of finished texts are kept for the next text, with the passes
recorded on them.
"""

import logging
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from drafttree.core.vocab_ops import ranked
from drafttree.models.attention.varlen_attention import VarlenAttention
from drafttree.models.cache.buffer_pool import BufferPool, PooledCache, RangePool, RecordedPass, Recorder
from drafttree.models.cache.kv_cache import CacheLayout, TreeCache
from drafttree.models.fused.decoder_backend import DecoderBackend, run_in_groups
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.host_copies import as_placed, byte_places
from drafttree.models.recorded.masked_inputs import MaskedInputs
from drafttree.models.recorded.packed_inputs import PackedInputs
from drafttree.models.segment import Output, Segment, split, split_layers
from drafttree.models.windows import EVERYTHING
from drafttree.models.wrapped_backends import wrapped_name

logger = logging.getLogger("drafttree")

MOST_SCORED = 128
"""Nodes of the largest pass that computes logits itself, of all its nodes. In larger ones, few nodes want logits."""


class InputBuilder(Protocol):
    """Makes the inputs of recorded passes in memory that does not move.

    Attributes:
        padding: rows of a KV cache that a pass may write behind its own.
        takes_windows: whether KV caches may have a window.
    """

    @property
    def padding(self) -> int: ...

    @property
    def takes_windows(self) -> bool: ...

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

    Args:
        recorder: records a pass, as `CudaGraphs` does.
        layout: layout of the KV caches.
        reference_tensor: a tensor of the cache's dtype, on its device.
        pool: pool that KV caches are taken from.
        lone: makes the inputs of passes over one request, and of passes that are not recorded.
        packed: makes those of passes over several requests, perhaps `lone` itself. If it is None, they are not
            recorded.
    """

    def __init__(
        self,
        recorder: Recorder,
        layout: CacheLayout,
        reference_tensor: Tensor,
        pool: BufferPool,
        lone: InputBuilder,
        packed: InputBuilder | None,
    ) -> None:
        self._recorder: Recorder | None = recorder
        self._layout = layout
        self._reference_tensor = reference_tensor
        self._pool = pool
        self._lone = lone
        self._packed = packed
        self._output_memory = OutputMemory(reference_tensor.device)

    @classmethod
    def of(cls, backend: DecoderBackend, recorder: Recorder, varlen: VarlenAttention | None = None) -> "RecordedPasses":
        """The recorded passes of a backend.

        If it makes no inputs itself, a pass over one request is recorded for every dtype and device. Its attention is
        one call of torch with a mask (`MaskedInputs`). A pass over several requests has two calls, whose results are
        joined (`PackedInputs`). One is for the trees. The other is for the prefixes, with a kernel that few devices
        have (`find_varlen_attention`).

        Args:
            backend: runs the layers.
            recorder: records a pass.
            varlen: attends to the prefixes of several requests in one call, for a backend that makes no inputs itself.
                If it is None, passes over several requests are not recorded, and each request has its own calls.
        """
        layout = backend.layout
        if backend.inputs:
            return cls(recorder, layout, backend.empty, backend.inputs.pool, backend.inputs, backend.inputs)
        masked_inputs = MaskedInputs(layout, backend.groups, backend.empty, backend.hidden)
        if varlen is None or backend.spans != (EVERYTHING,):
            return cls(recorder, layout, backend.empty, BufferPool(layout), masked_inputs, None)
        packed_inputs = PackedInputs(RangePool(layout), layout, backend.groups, varlen)
        return cls(recorder, layout, backend.empty, packed_inputs.pool, masked_inputs, packed_inputs)

    def new_cache(self, capacity: int) -> PooledCache:
        """A KV cache whose passes can be recorded. Its capacity includes room for the padding of a pass."""
        return PooledCache(self._layout, capacity + self._lone.padding, self._pool)

    def reserve(self, rows: int) -> None:
        """Make room for this many rows of KV caches. Passes recorded later stay valid until more rows are in use."""
        if isinstance(self._pool, RangePool):
            self._pool.reserve(rows, self._reference_tensor)

    def replay(
        self,
        segments: Sequence[Segment],
        run: Callable[[PassInputs], tuple[Tensor, ...]],
        *,
        variant: Hashable = (),
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
            outputs = run((builder or self._lone).unrecorded(segments, hidden_states))
        for segment in segments:
            segment.cache.grow(segment.positions)
        return outputs

    def _builder(self, segments: Sequence[Segment]) -> InputBuilder | None:
        """The builder for these requests; None if a KV cache is of another pool, or has a window that none takes."""
        builder = self._lone if len(segments) == 1 else self._packed
        if builder is None:
            return None
        for segment in segments:
            cache = segment.cache
            if not isinstance(cache, PooledCache) or cache.pool is not self._pool:
                return None
            if cache.windowed and not builder.takes_windows:
                return None
        return builder

    def _replay(
        self,
        builder: InputBuilder,
        segments: Sequence[Segment],
        run: Callable[[PassInputs], tuple[Tensor, ...]],
        hidden_states: Tensor,
        variant: Hashable,
    ) -> tuple[Tensor, ...] | None:
        """The outputs of a recorded pass; None where there is none."""
        sizes = builder.make_room(segments, hidden_states)
        if sizes is None or self._recorder is None:
            return None
        recorded_passes = builder.recorded(segments)
        key = sizes, variant
        memory, replay, output_layouts = recorded_passes.get(key, (None, None, list[Tensor]()))
        memory = builder.store(segments, hidden_states, sizes, memory)
        if replay is None:
            rows = builder.rows(segments)  # a recorded pass must not keep the KV caches alive

            def run_and_write() -> tuple[Tensor]:
                outputs = run(builder.inputs(memory, sizes, rows))
                output_layouts[:] = [torch.empty_like(output, device="meta") for output in outputs]
                return (self._output_memory.write(outputs),)

            replay = self._record(run_and_write, sizes)
            if replay is None:
                return None
            recorded_passes[key] = memory, replay, output_layouts
        nodes = sum(segment.nodes for segment in segments)
        (output_bytes,) = replay()
        return tuple(output[:, :nodes] for output in copied_outputs(output_bytes, output_layouts))

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


class OutputMemory:
    """Memory to which all recorded passes write their outputs, one after the other.

    They may share it, since the outputs of a pass are copied before the next one runs (`copied_outputs`).

    Args:
        device: the device of the passes.
    """

    def __init__(self, device: torch.device) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8, device=device)

    def write(self, outputs: Sequence[Tensor]) -> Tensor:
        """Write the outputs of a pass at the offsets of `byte_places`, and return the bytes that they take."""
        byte_count = byte_places(outputs)[-1]
        if len(self._bytes) < byte_count:  # passes that write to the former bytes keep these
            self._bytes = self._bytes.new_empty(2 * byte_count)
        used_bytes = self._bytes[:byte_count]
        for output_view, output in zip(as_placed(used_bytes, outputs), outputs, strict=True):
            output_view.copy_(output)
        return used_bytes


def copied_outputs(output_bytes: Tensor, layouts: Sequence[Tensor]) -> list[Tensor]:
    """Copies of outputs in an `OutputMemory`, by one operation.

    Each has memory of its own: a text may keep hidden states for many rounds, and the logits are far larger.

    Args:
        output_bytes: the bytes of the outputs.
        layouts: tensors of their shapes and dtypes.
    """
    places = [place.flatten().view(torch.uint8) for place in as_placed(output_bytes, layouts)]
    copies = [torch.empty_like(place) for place in places]
    torch._foreach_copy_(copies, places)  # pyright: ignore[reportPrivateImportUsage]
    return [copy.view(layout.dtype).view(layout.shape) for copy, layout in zip(copies, layouts, strict=True)]


class RecordedBackend:
    """Replays recorded passes of another backend. See `drafttree.models.base.Backend` for the protocol.

    Several texts may use it alternately, but not several threads, since every pass reads its inputs from the same
    memory. If a pass cannot be recorded, it and all later ones run on that backend directly.

    Args:
        backend: runs the layers. Its weights must not move from then on.
        recorder: records a pass.
        varlen: as of `RecordedPasses.of`.
    """

    lossy_window = None
    shares_passes = True

    def __init__(self, backend: DecoderBackend, recorder: Recorder, varlen: VarlenAttention | None = None) -> None:
        self.name = wrapped_name(self, backend)
        self.device = backend.device
        self.exact_text = backend.exact_text
        self.fallback_reason = backend.fallback_reason
        self.packed_nbytes = backend.packed_nbytes
        self._backend = backend
        self._passes = RecordedPasses.of(backend, recorder, varlen)

    def new_cache(self, capacity: int) -> TreeCache:
        return self._passes.new_cache(capacity)

    def reserve(self, rows: int) -> None:
        """Make room for this many rows of KV caches; see `RecordedPasses.reserve`."""
        self._passes.reserve(rows)

    def forward(
        self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = (), states: Tensor | None = None
    ) -> list[Output]:
        """A pass; see `DecoderBackend.forward`."""
        if not segments:
            return []
        backend = self._backend
        return run_in_groups(
            segments, backend.states_of(segments, states), backend.group_of, partial(self._run, hidden_layers)
        )

    def _run(self, hidden_layers: tuple[int, ...], segments: Sequence[Segment], states: Tensor | None) -> list[Output]:
        """A pass over segments of one group, logits and their ranking included unless it is too large for that."""
        backend = self._backend
        long_rope = segments[0].cache.long_rope
        wants_logits = any(segment.wanted_nodes for segment in segments)
        scores = wants_logits and sum(segment.nodes for segment in segments) <= MOST_SCORED
        ranked_count = max(segment.ranked for segment in segments) if scores else 0

        def run(inputs: PassInputs) -> tuple[Tensor, ...]:
            x, hidden_states = backend.run_layers(inputs, hidden_layers, long_rope)
            if not scores:
                return x, *hidden_states
            logits = backend.logits(x)
            if not ranked_count:
                return logits, *hidden_states
            return logits, *hidden_states, ranked(logits[0], ranked_count)

        variant = hidden_layers, long_rope, scores, ranked_count
        first_output, *further_outputs = self._passes.replay(segments, run, variant=variant, hidden_states=states)
        hidden_states = tuple(further_outputs[: len(hidden_layers)])
        if not scores:
            return backend.outputs_of(segments, first_output, hidden_states)
        ranks = further_outputs[-1] if ranked_count else None
        return [*scored_outputs(segments, first_output, hidden_states, ranks)]


def scored_outputs(
    segments: Sequence[Segment], logits: Tensor, hidden_states: Sequence[Tensor], ranks: Tensor | None
) -> Iterator[Output]:
    """The output of each segment of a pass.

    Args:
        segments: the texts.
        logits: `[1, nodes, vocab]` of all nodes.
        hidden_states: for each layer asked for, the states `[1, nodes, hidden]` of all nodes.
        ranks: `[2, nodes, count]`, as of `Output`, None if nothing was ranked.
    """
    node_counts = [segment.nodes for segment in segments]
    logits_by_segment = split(logits, node_counts)
    hidden_by_segment = split_layers(segments, hidden_states)
    ranks_by_segment = [None] * len(segments) if ranks is None else split(ranks, node_counts)
    for index, segment in enumerate(segments):
        segment_ranks = ranks_by_segment[index]
        yield Output(
            segment.wanted_of(logits_by_segment[index]),
            hidden_by_segment[index],
            None if segment_ranks is None else segment.wanted_of(segment_ranks),
        )
