"""Passes over trees in a few fixed shapes on fixed memory, as CUDA graphs need them.

A launch costs the host as much time as a small kernel takes, so a pass that is recorded once and replayed can be many
times faster. Nothing in it may depend on the host: node counts are rounded up to a bucket, attention spans the whole
capacity of the cache, and how much of it is in use are numbers on the device, from which the pass makes its own mask.
Buffers of finished texts are kept with what was recorded on them, and serve the next text.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from drafttree.models.base import Output
from drafttree.models.cache import TreeCache
from drafttree.models.lean import LeanModel

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128)
"""Nodes of a pass; larger ones, which are prompts, run as they come."""
DRAFTED = 1024
"""Drafted rows a pass can see; where there are more, it runs as it comes."""
SHORTEST = 512
"""Rows of the smallest cache; larger ones have a power of two."""
KEPT = 2
"""Buffers of finished texts that are kept."""

Run = Callable[[], Output]
Recorder = Callable[[Run], Run | None]
"""Makes something that repeats a pass out of the pass, or None where it cannot."""


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
        self._recorder: Recorder | None = recorder
        self._pool = Pool()
        self._inputs = Inputs(self.device)

    def new_cache(self, batch: int, capacity: int) -> TreeCache:
        return super().new_cache(batch, capacity) if batch > 1 else StaticCache(self._layers, capacity, self._pool)

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
        nodes = tokens.shape[1]
        replay = self._recorded(cache, tokens, positions, visible, hidden_layers)
        if replay is None:
            return super().forward(cache, tokens, positions, visible, last_only=last_only, hidden_layers=hidden_layers)
        output = replay()
        cache.grow(positions)
        scored = slice(nodes - 1, nodes) if last_only else slice(nodes)
        return Output(output.logits[:, scored].clone(), tuple(state[:, :nodes].clone() for state in output.hidden))

    def _recorded(
        self, cache: TreeCache, tokens: Tensor, positions: Tensor, visible: Tensor, hidden_layers: tuple[int, ...]
    ) -> Run | None:
        """What does this pass, its arguments in place; None where it has to run as it comes.

        They are in place before a pass is recorded: recording runs it, and so writes rows of the cache.
        """
        nodes, drafted = visible.shape[1:]
        if not isinstance(cache, StaticCache) or nodes > BUCKETS[-1] or drafted > DRAFTED:
            return None
        bucket, first = next(size for size in BUCKETS if size >= nodes), self._blocks[0]
        cache.rows(self._embed.weight, first.key_heads, first.width, bucket)
        self._inputs.load(cache, tokens, positions, visible)
        key, passes = (bucket, hidden_layers), cache.slot.passes
        if key not in passes and self._recorder:
            recorded = self._recorder(self._pass_over(cache.slot, *key))
            if recorded is None:
                self._recorder = None
            else:
                passes[key] = recorded
        return passes.get(key)

    def _pass_over(self, slot: "Slot", bucket: int, hidden_layers: tuple[int, ...]) -> Run:
        """The pass over so many nodes on a slot's memory."""
        groups, capacity, inputs = self._blocks[0].groups, slot.buffer.shape[-2], self._inputs
        rows = [(keys, values) for keys, values in slot.buffer.unbind(0)]
        model = weakref.proxy(self)

        def once() -> Output:
            tokens, positions, where, mask = inputs.read(bucket, groups, capacity, model.dtype)
            return model.run(tokens, positions, mask, rows, where, False, hidden_layers)

        return once


@dataclass(eq=False)
class Slot:
    """A cache's buffer, and the passes recorded on it by nodes and hidden layers."""

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

    Attributes:
        tokens: `[1, largest bucket]` token ids; past the nodes of a pass lies what was there before.
        positions: likewise.
        visible: bool `[largest bucket, DRAFTED]`: which drafted rows each token attends to.
        bounds: committed rows, rows before the pass, and rows after it.
    """

    def __init__(self, device: torch.device) -> None:
        self.tokens = torch.zeros(1, BUCKETS[-1], dtype=torch.long, device=device)
        self.positions = torch.zeros_like(self.tokens)
        self.visible = torch.zeros(BUCKETS[-1], DRAFTED, dtype=torch.bool, device=device)
        self.bounds = torch.zeros(3, dtype=torch.long, device=device)

    def load(self, cache: TreeCache, tokens: Tensor, positions: Tensor, visible: Tensor) -> None:
        """Store the arguments of a pass."""
        nodes, drafted = visible.shape[1:]
        self.tokens[:, :nodes] = tokens
        self.positions[:, :nodes] = positions
        self.visible[:nodes, :drafted] = visible[0]
        length, start = cache.length, cache.get_seq_length()
        for place, bound in enumerate((length, start, start + nodes)):
            self.bounds[place].fill_(bound)

    def read(self, bucket: int, groups: int, capacity: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
        """Tokens and positions `[1, bucket]`, rows `[bucket]` and additive mask `[1, 1, groups * bucket, capacity]`.

        A row past the nodes of the pass is garbage, which no other row sees; it sees itself, so that it is finite.
        """
        length, start, end = self.bounds
        where = start + torch.arange(bucket, device=start.device)
        columns = torch.arange(capacity, device=start.device)
        drafted = columns - length
        tree = self.visible[:bucket].index_select(1, drafted.clamp(0, DRAFTED - 1)) & (columns < end)
        seen = (drafted < 0) | tree | (columns == where[:, None])
        mask = torch.zeros(seen.shape, dtype=dtype, device=start.device).masked_fill_(~seen, -torch.inf)
        return self.tokens[:, :bucket], self.positions[:, :bucket], where, mask.repeat(groups, 1)[None, None]
