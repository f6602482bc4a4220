"""One request's part of a packed pass."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from drafttree.models.kv_cache import TreeCache


class Segment(NamedTuple):
    """The nodes of one request in a pass over several requests: a tree, a single node or a part of a prompt.

    Attributes:
        cache: for one sequence, made by the backend that runs the pass; no other segment of the pass has it.
        tokens: `[1, nodes]` token ids.
        positions: `[1, nodes]` absolute positions.
        visible: bool `[1, nodes, drafted]`: which drafted rows each token attends to, as for `Backend.forward`.
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

    def part(self, start: int, stop: int) -> "Segment":
        """The nodes from `start` to `stop`, to be scored after those before `start`."""
        wanted = range(self.nodes)[self.wanted]
        own = slice(max(wanted.start - start, 0), max(wanted.stop - start, 0))
        seen = self.visible.shape[2] - self.nodes + stop
        nodes = slice(start, stop)
        return Segment(self.cache, self.tokens[:, nodes], self.positions[:, nodes], self.visible[:, nodes, :seen], own)


def split_states(segments: Sequence[Segment], states: tuple[Tensor, ...]) -> list[tuple[Tensor, ...]]:
    """The states `[1, nodes, hidden]` of some layers by segment."""
    sizes = [segment.nodes for segment in segments]
    layers = [layer.split(sizes, -2) for layer in states]
    return [tuple(layer[index] for layer in layers) for index in range(len(sizes))]
