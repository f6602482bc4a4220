"""The backend that records passes over trees in a few fixed shapes on fixed memory, as CUDA graphs need them.

A launch costs the host as much time as a small kernel takes, so a pass that is recorded once and replayed can be many
times faster. Nothing in it may depend on the host: node counts are rounded up to a bucket, and how much of a KV cache
is in use are numbers on the device. Buffers of finished texts are kept with the passes recorded on them, and serve the
next text.
"""

from collections.abc import Sequence

from torch import Tensor

from drafttree.models.attention.span import EVERYTHING
from drafttree.models.attention.varlen_attention import VarlenAttention
from drafttree.models.base import Output
from drafttree.models.cache.buffer_pool import Recorder
from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.fused.fused_backend import FusedBackend
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.recorded.recorded_passes import RecordedPasses
from drafttree.models.segment import Segment


class RecordedBackend:
    """Replays recorded passes of fused layers. See `drafttree.models.base.Backend` for the protocol.

    Texts may take turns on it, threads may not: every pass reads its inputs from the same memory. If a pass cannot be
    recorded, it and all later ones run on the fused layers directly.

    Args:
        fused: its weights stay where they are from then on.
        recorder: of passes.
        varlen: attends to the prefixes of several requests at once; without, each has calls of its own, unrecorded.
    """

    exact_text = False
    lossy_window = None
    shares_passes = True

    def __init__(self, fused: FusedBackend, recorder: Recorder, varlen: VarlenAttention | None = None) -> None:
        self.device, self.packed_nbytes = fused.device, fused.packed_nbytes
        self._fused = fused
        varlen = varlen if fused.spans == (EVERYTHING,) else None
        self._passes = RecordedPasses(recorder, fused.layout, fused.layers[0].groups, fused.empty, varlen=varlen)

    def new_cache(self, capacity: int) -> TreeCache:
        return self._passes.new_cache(capacity)

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        fused = self._fused

        def run(inputs: PassInputs) -> tuple[Tensor, ...]:
            x, hidden = fused.run_layers(inputs, hidden_layers)
            return x, *hidden

        if not segments:
            return []
        x, *hidden = self._passes.replay(segments, run, variant=hidden_layers)
        return fused.outputs_of(segments, x, tuple(hidden))
