"""Passes over trees in a few fixed shapes on fixed memory, as CUDA graphs need them.

A launch costs the host as much time as a small kernel takes, so a pass that is recorded once and replayed can be many
times faster. Nothing in it may depend on the host: node counts are rounded up to a bucket, attention spans the whole
capacity of the cache, and how much of it is in use are numbers on the device, from which the pass makes its own mask.
Buffers of finished texts are kept with what was recorded on them, and serve the next text.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from drafttree.models.base import Output
from drafttree.models.fused import Layer, LeanModel
from drafttree.models.kv_cache import TreeCache

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Nodes of a pass; larger ones, which are prompts, run as they come."""
DRAFTED = 1024
"""Drafted rows a pass can see; where there are more, it runs as it comes."""
SHORTEST = 512
"""Rows of the smallest cache; larger ones have a power of two."""
KEPT = 2
"""Buffers of finished texts that are kept."""

Run = Callable[[], tuple[Tensor, ...]]
"""A pass on fixed memory; its outputs are `[1, bucket, ...]`."""
Recorder = Callable[[Run], Run | None]
"""Makes something that repeats a pass out of the pass, or None where it cannot."""


class Arguments(NamedTuple):
    """What a recorded pass reads, in memory that stays where it is.

    Attributes:
        tokens: `[1, bucket]` token ids.
        positions: `[1, bucket]`.
        where: `[bucket]` rows of the cache that are the tokens'.
        mask: additive `[1, 1, groups * bucket, capacity]`.
        rows: per layer keys and values `[1, heads, capacity, width]`.
        hidden: `[1, bucket, hidden]` the states a head reads; none for a model.
    """

    tokens: Tensor
    positions: Tensor
    where: Tensor
    mask: Tensor
    rows: list[tuple[Tensor, Tensor]]
    hidden: Tensor


class StaticModel(LeanModel):
    """A lean model whose passes over trees are recorded. See `drafttree.models.base.Model` for the contract.

    Texts may take turns on it, threads may not: every pass reads its arguments from the same memory. Where a pass
    cannot be recorded, it and all later ones run as they come.

    Args:
        lean: to record; its weights stay where they are from then on.
        recorder: of passes.
    """

    def __init__(self, lean: LeanModel, recorder: Recorder) -> None:
        self.__dict__.update(vars(lean))
        self._recordings = Recordings(recorder, self._blocks[0], self._embed.weight)

    def new_cache(self, batch: int, capacity: int) -> TreeCache:
        return super().new_cache(batch, capacity) if batch > 1 else self._recordings.new_cache(self._layers, capacity)

    @torch.inference_mode()
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
        model = weakref.proxy(self)

        def run(given: Arguments) -> tuple[Tensor, ...]:
            tokens, positions, where, mask, rows, _ = given
            output = model.run(tokens, positions, mask, rows, where, False, hidden_layers)
            return output.logits, *output.hidden

        outputs = self._recordings.replay(cache, tokens, positions, visible, run, variant=hidden_layers)
        if outputs is None:
            return super().forward(cache, tokens, positions, visible, last_only=last_only, hidden_layers=hidden_layers)
        logits, *hidden = outputs
        return Output(logits[:, -1:] if last_only else logits, tuple(hidden))


class Recordings:
    """The passes of a model or head over trees, recorded at their first use on the memory of a static cache.

    Args:
        recorder: of passes.
        layer: any of the layers that read the cache.
        like: a weight, of the cache's dtype and device.
        hidden: width of the states a head reads.
    """

    def __init__(self, recorder: Recorder, layer: Layer, like: Tensor, hidden: int = 0) -> None:
        self._recorder: Recorder | None = recorder
        self._layer = layer
        self._like = like
        self._pool = Pool()
        self._inputs = Inputs(like, hidden)

    def new_cache(self, layers: int, capacity: int) -> "StaticCache":
        """A cache for one sequence whose passes can be recorded."""
        return StaticCache(layers, capacity, self._pool)

    def replay(
        self,
        cache: TreeCache,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        run: Callable[[Arguments], tuple[Tensor, ...]],
        *,
        variant: tuple[int, ...] = (),
        hidden: Tensor | None = None,
    ) -> tuple[Tensor, ...] | None:
        """The outputs `[1, nodes, ...]` of a pass, its rows counted; None where it has to run as it comes.

        Args:
            cache: and `tokens`, `positions`, `visible` as for `Model.forward`.
            run: the pass, given its arguments; used where it was not recorded before.
            variant: tells passes over the same number of nodes apart.
            hidden: `[1, nodes, hidden]` the states a head reads.
        """
        nodes, drafted = visible.shape[1:]
        if not isinstance(cache, StaticCache) or nodes > BUCKETS[-1] or drafted > DRAFTED:
            return None
        bucket = next(size for size in BUCKETS if size >= nodes)
        cache.rows(self._like, self._layer.key_heads, self._layer.width, bucket)
        self._inputs.load(cache, tokens, positions, visible, hidden)
        repeat = self._recorded(cache.slot, bucket, variant, run)
        if repeat is None:
            return None
        outputs = repeat()
        cache.grow(positions)
        return tuple(output[:, :nodes].clone() for output in outputs)

    def _recorded(
        self, slot: "Slot", bucket: int, variant: tuple[int, ...], run: Callable[[Arguments], tuple[Tensor, ...]]
    ) -> Run | None:
        """What repeats a pass. Its arguments are in place: recording runs it, and so writes rows of the cache."""
        key = (bucket, variant)
        if key not in slot.passes and self._recorder:
            groups, inputs = self._layer.groups, self._inputs
            rows = [(keys, values) for keys, values in slot.buffer.unbind(0)]
            recorded = self._recorder(lambda: run(inputs.read(bucket, groups, rows)))
            if recorded is None:
                self._recorder = None
            else:
                slot.passes[key] = recorded
        return slot.passes.get(key)


@dataclass(eq=False)
class Slot:
    """A cache's buffer, and the passes recorded on it by nodes and variant."""

    buffer: Tensor
    passes: dict[tuple[int, tuple[int, ...]], Run] = field(default_factory=dict)


class Pool:
    """The slots of finished texts, the latest last."""

    def __init__(self) -> None:
        self._free: list[Slot] = []

    @torch.inference_mode()
    def take(self, capacity: int) -> Slot | None:
        """A slot of this capacity, None where none is free.

        Its rows are cleared: attention multiplies even those it does not see, by zero.
        """
        fitting = next((slot for slot in reversed(self._free) if slot.buffer.shape[-2] == capacity), None)
        if fitting:
            self._free.remove(fitting)
            fitting.buffer.zero_()
        return fitting

    def give(self, slot: Slot) -> None:
        """Take a slot back. Nothing is launched: a cache may be collected while a pass is being recorded."""
        self._free.append(slot)
        del self._free[:-KEPT]


class StaticCache(TreeCache):
    """A cache on a slot of a pool.

    Attributes:
        slot: set with the first pass, and whenever the cache grows.
    """

    slot: Slot

    def __init__(self, layers: int, capacity: int, pool: Pool) -> None:
        super().__init__(layers, 1, capacity + BUCKETS[-1])
        self._pool = pool

    def _allocate(self, like: Tensor, heads: int, width: int) -> Tensor:
        self._capacity = max(SHORTEST, 1 << (self._capacity - 1).bit_length())
        self.slot = self._pool.take(self._capacity) or Slot(super()._allocate(like, heads, width))
        weakref.finalize(self, self._pool.give, self.slot).atexit = False
        return self.slot.buffer


class Inputs:
    """Where a pass finds its tokens, and what it needs to know of the cache.

    Args:
        like: a weight, of the dtype and device of a pass.
        hidden: width of the states a head reads.

    Attributes:
        tokens: `[1, largest bucket]` token ids; past the nodes of a pass lies what was there before.
        positions: likewise.
        visible: bool `[largest bucket, DRAFTED]`: which drafted rows each token attends to.
        bounds: committed rows, rows before the pass, and rows after it.
        hidden: `[1, largest bucket, hidden]`; past the nodes of a pass zero, since it may have been infinite before.
    """

    def __init__(self, like: Tensor, hidden: int) -> None:
        most, device = BUCKETS[-1], like.device
        self.tokens = torch.zeros(1, most, dtype=torch.long, device=device)
        self.positions = torch.zeros_like(self.tokens)
        self.visible = torch.zeros(most, DRAFTED, dtype=torch.bool, device=device)
        self.bounds = torch.zeros(3, dtype=torch.long, device=device)
        self.hidden = torch.zeros(1, most, hidden, dtype=like.dtype, device=device)

    def load(self, cache: TreeCache, tokens: Tensor, positions: Tensor, visible: Tensor, hidden: Tensor | None) -> None:
        """Store the arguments of a pass."""
        nodes, drafted = visible.shape[1:]
        self.tokens[:, :nodes] = tokens
        self.positions[:, :nodes] = positions
        self.visible[:nodes, :drafted] = visible[0]
        if hidden is not None:
            self.hidden[:, :nodes] = hidden
            self.hidden[:, nodes:].zero_()
        length, start = cache.length, cache.get_seq_length()
        for place, bound in enumerate((length, start, start + nodes)):
            self.bounds[place].fill_(bound)

    def read(self, bucket: int, groups: int, rows: list[tuple[Tensor, Tensor]]) -> Arguments:
        """The arguments of a pass over a bucket of nodes on a slot's rows.

        A row past the nodes of the pass is garbage, which no other row sees; it sees itself, so that it is finite.
        """
        length, start, end = self.bounds
        where = start + torch.arange(bucket, device=start.device)
        columns = torch.arange(rows[0][0].shape[-2], device=start.device)
        drafted = columns - length
        tree = self.visible[:bucket].index_select(1, drafted.clamp(0, DRAFTED - 1)) & (columns < end)
        seen = (drafted < 0) | tree | (columns == where[:, None])
        mask = torch.zeros(seen.shape, dtype=self.hidden.dtype, device=start.device).masked_fill_(~seen, -torch.inf)
        mask = mask.repeat(groups, 1)[None, None]
        tokens, positions, hidden = (each[:, :bucket] for each in (self.tokens, self.positions, self.hidden))
        return Arguments(tokens, positions, where, mask, rows, hidden)
