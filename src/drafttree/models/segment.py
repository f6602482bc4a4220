"""One request's part of a pass."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drafttree.models.cache.kv_cache import TreeCache


class Segment(NamedTuple):
    """The nodes of one request in a pass: a tree, a single node or a part of a prompt.

    Attributes:
        cache: made by the backend that runs the pass; no other segment of the pass has it. The nodes attend to all of
            its committed rows, or to those in its window, and to the drafted rows that `visible` allows.
        tokens: `[1, nodes]` token ids.
        positions: `[1, nodes]` absolute positions.
        visible: bool `[1, nodes, drafted]`: which drafted rows each token attends to. The last `nodes` of
            them are the tokens themselves.
        wanted: the nodes whose logits are wanted, side by side: `slice(0, 0)` for none, `slice(-1, None)` for the last.
    """

    cache: TreeCache
    tokens: Tensor
    positions: Tensor
    visible: Tensor
    wanted: slice = slice(None)

    @classmethod
    def of_text(cls, cache: TreeCache, tokens: list[int], device: torch.device) -> "Segment":
        """The next tokens of a text, each of which attends to those before it; the last one's logits are wanted."""
        count = len(tokens)
        ids = torch.tensor([tokens], device=device)
        positions = cache.next_position + torch.arange(count, device=device)[None]
        causal = torch.ones(1, count, count, dtype=torch.bool, device=device).tril()
        return cls(cache, ids, positions, causal, slice(-1, None))

    @property
    def nodes(self) -> int:
        """Number of tokens."""
        return self.tokens.shape[1]

    def wanted_of(self, states: Tensor) -> Tensor:
        """Those of the states `[1, nodes, hidden]` of which logits are wanted."""
        return states if self.wanted == slice(None) else states[:, self.wanted]

    def part(self, start: int, stop: int) -> "Segment":
        """The nodes from `start` to `stop`, to be scored after those before `start`."""
        wanted = range(self.nodes)[self.wanted]
        own = slice(max(wanted.start - start, 0), max(wanted.stop - start, 0))
        seen = self.visible.shape[2] - self.nodes + stop
        nodes = slice(start, stop)
        return Segment(self.cache, self.tokens[:, nodes], self.positions[:, nodes], self.visible[:, nodes, :seen], own)


def split(states: Tensor, sizes: Sequence[int], dim: int = 1) -> Sequence[Tensor]:
    """The parts of these sizes; the only one is the whole, since a lone pass is mostly the price of its operations."""
    return states.split(sizes, dim) if len(sizes) > 1 else (states,)


def join(parts: Sequence[Tensor], dim: int = 1) -> Tensor:
    """Parts behind each other; the only one is not copied."""
    return torch.cat([*parts], dim) if len(parts) > 1 else parts[0]


def split_layers(segments: Sequence[Segment], layers: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """The states `[1, nodes, hidden]` of some layers by segment."""
    sizes = [segment.nodes for segment in segments]
    parts = [split(layer, sizes) for layer in layers]
    return [tuple(own[index] for own in parts) for index in range(len(sizes))]
