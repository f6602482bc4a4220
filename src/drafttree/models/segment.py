"""Segments, the parts of a pass by request, and the outputs of a pass."""

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor

from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.host_copies import send

LONGEST_KEPT = 512
"""Nodes of a chain up to which its visibility is kept for later passes."""
BEFORE_NORM = -1
"""Stands among `hidden_layers` for the states that the last norm reads."""


class Segment(NamedTuple):
    """The nodes of one request in a pass: a tree, a single node or a part of a prompt.

    All of it is on the host; `PassTensors` copies the segments of a pass to its device.

    Attributes:
        cache: a KV cache made by the backend that runs the pass; no other segment of the pass has it. The nodes attend
            to its committed rows, all or those in its window, and to the drafted rows that `visible` allows.
        tokens: int64 `[nodes]` token ids.
        positions: int64 `[nodes]` absolute positions.
        visible: bool `[nodes, drafted]`: which drafted rows each token attends to. The last `nodes` of
            them are the tokens themselves.
        wanted: the nodes whose logits are wanted, which are consecutive: `slice(0, 0)` for none, `slice(-1, None)` for
            the last.
    """

    cache: TreeCache
    tokens: Array
    positions: Array
    visible: Array
    wanted: slice = slice(None)

    @classmethod
    def of_text(cls, cache: TreeCache, tokens: Sequence[int]) -> "Segment":
        """The next tokens of a text, each of which attends to those before it; the last one's logits are wanted."""
        start_position = cache.next_position
        count = len(tokens)
        positions = np.arange(start_position, start_position + count)
        return cls(cache, np.array(tokens, dtype=np.int64), positions, causal(count), slice(-1, None))

    @property
    def nodes(self) -> int:
        """Number of tokens."""
        return len(self.tokens)

    @property
    def wanted_nodes(self) -> range:
        """Indices of the nodes whose logits are wanted."""
        return range(len(self.tokens))[self.wanted]

    def wanted_of(self, states: Tensor) -> Tensor:
        """The states of the nodes whose logits are wanted, given those of all nodes `[1, nodes, hidden]`."""
        return states if self.wanted == slice(None) else states[:, self.wanted]

    def part(self, start: int, stop: int) -> "Segment":
        """The nodes from `start` to `stop`, for a pass after that over the nodes before `start`."""
        wanted_nodes = self.wanted_nodes
        wanted_slice = slice(max(wanted_nodes.start - start, 0), max(wanted_nodes.stop - start, 0))
        drafted_rows = self.visible.shape[1] - self.nodes + stop
        nodes = slice(start, stop)
        return Segment(
            self.cache, self.tokens[nodes], self.positions[nodes], self.visible[nodes, :drafted_rows], wanted_slice
        )


def causal(nodes: int) -> Array:
    """Bool `[nodes, nodes]`: each node attends to itself and all before it. The array is shared: do not write to it."""
    return _short_causal(nodes) if nodes <= LONGEST_KEPT else np.tri(nodes, dtype=bool)


@lru_cache(maxsize=64)
def _short_causal(nodes: int) -> Array:
    return np.tri(nodes, dtype=bool)


class PassTensors(NamedTuple):
    """The segments of a pass on its device.

    Attributes:
        tokens: `[1, nodes]` token ids of all segments, one after the other.
        positions: `[1, nodes]` positions of all segments.
        own_positions: by segment, its positions `[1, nodes]`.
        visible: by segment, bool `[1, nodes, drafted]`.
    """

    tokens: Tensor
    positions: Tensor
    own_positions: Sequence[Tensor]
    visible: Sequence[Tensor]

    @classmethod
    def of(cls, segments: Sequence[Segment], device: torch.device) -> "PassTensors":
        """Copy segments to a device, all arrays at once."""
        if len(segments) == 1:
            _, *arrays, _ = segments[0]
            tokens, positions, visible = send([array[None] for array in arrays], device)
            return cls(tokens, positions, [positions], [visible])
        _, token_arrays, position_arrays, visible_arrays, _ = zip(*segments, strict=True)
        joined_arrays = [np.concatenate(token_arrays)[None], np.concatenate(position_arrays)[None]]
        joined_arrays.append(np.concatenate([array.reshape(-1) for array in visible_arrays]))
        tokens, positions, flat_visible = send(joined_arrays, device)
        flat_masks = flat_visible.split([array.size for array in visible_arrays])
        visible = []
        for flat_mask, array in zip(flat_masks, visible_arrays, strict=True):
            visible.append(flat_mask.view(1, *array.shape))
        return cls(tokens, positions, positions.split([*map(len, token_arrays)], 1), visible)


class Output(NamedTuple):
    """The result of a forward pass for one segment.

    Attributes:
        logits: `[1, wanted, vocab]`.
        hidden: the states of all nodes for each layer asked for, `[1, nodes, hidden]`.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


def split(states: Tensor, sizes: Sequence[int], dim: int = 1) -> Sequence[Tensor]:
    """Split states into parts of these sizes. A single part is the whole: that saves a lone request an operation."""
    return states.split(sizes, dim) if len(sizes) > 1 else (states,)


def join(parts: Sequence[Tensor], dim: int = 1) -> Tensor:
    """Concatenate parts; a single one is not copied."""
    return torch.cat([*parts], dim) if len(parts) > 1 else parts[0]


def split_layers(segments: Sequence[Segment], layers: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Split the states `[1, nodes, hidden]` of layers by segment: for each segment those of all layers."""
    sizes = [segment.nodes for segment in segments]
    if not layers:
        return [()] * len(sizes)
    return [*zip(*(split(layer, sizes) for layer in layers), strict=True)]


def forward_in_groups(
    segments: Sequence[Segment],
    group_of: Callable[[Segment], Hashable],
    run: Callable[[list[Segment]], list[Output]],
) -> list[Output]:
    """Run segments of the same group in one pass; outputs are in the order of the segments."""
    groups: dict[Hashable, list[int]] = {}
    for index, segment in enumerate(segments):
        groups.setdefault(group_of(segment), []).append(index)
    outputs: dict[int, Output] = {}
    for indices in groups.values():
        outputs.update(zip(indices, run([segments[index] for index in indices]), strict=True))
    return [outputs[index] for index in range(len(segments))]
