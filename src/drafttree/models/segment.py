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

BEFORE_NORM = -1
"""Stands, where layers are asked for whose states are wanted, for what the last norm reads."""


class Segment(NamedTuple):
    """The nodes of one request in a pass: a tree, a single node or a part of a prompt.

    It is all on the host, which made it; `PassTensors` brings the segments of a pass to its device.

    Attributes:
        cache: made by the backend that runs the pass; no other segment of the pass has it. The nodes attend to all of
            its committed rows, or to those in its window, and to the drafted rows that `visible` allows.
        tokens: int64 `[nodes]` token ids.
        positions: int64 `[nodes]` absolute positions.
        visible: bool `[nodes, drafted]`: which drafted rows each token attends to. The last `nodes` of
            them are the tokens themselves.
        wanted: the nodes whose logits are wanted, side by side: `slice(0, 0)` for none, `slice(-1, None)` for the last.
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

    def wanted_of(self, states: Tensor) -> Tensor:
        """The states, of `[1, nodes, hidden]`, of the nodes whose logits are wanted."""
        return states if self.wanted == slice(None) else states[:, self.wanted]

    def part(self, start: int, stop: int) -> "Segment":
        """The nodes from `start` to `stop`, to be scored after those before `start`."""
        wanted_nodes = range(self.nodes)[self.wanted]
        wanted_slice = slice(max(wanted_nodes.start - start, 0), max(wanted_nodes.stop - start, 0))
        drafted_rows = self.visible.shape[1] - self.nodes + stop
        nodes = slice(start, stop)
        return Segment(
            self.cache, self.tokens[nodes], self.positions[nodes], self.visible[nodes, :drafted_rows], wanted_slice
        )


@lru_cache(maxsize=64)
def causal(nodes: int) -> Array:
    """Bool `[nodes, nodes]`: each node attends to itself and all before it. It is not to be written to."""
    return np.tri(nodes, dtype=bool)


class PassTensors(NamedTuple):
    """The segments of a pass on its device.

    Attributes:
        tokens: `[1, nodes]` token ids of all segments, one behind the other.
        positions: `[1, nodes]`.
        own_positions: the positions by segment, `[1, nodes]`.
        visible: by segment, bool `[1, nodes, drafted]`.
    """

    tokens: Tensor
    positions: Tensor
    own_positions: Sequence[Tensor]
    visible: Sequence[Tensor]

    @classmethod
    def of(cls, segments: Sequence[Segment], device: torch.device) -> "PassTensors":
        """Bring segments to a device, in one copy."""
        if len(segments) == 1:
            _, *arrays, _ = segments[0]
            tokens, positions, visible = send([array[None] for array in arrays], device)
            return cls(tokens, positions, [positions], [visible])
        joined_arrays = [np.concatenate([segment.tokens for segment in segments])[None]]
        joined_arrays.append(np.concatenate([segment.positions for segment in segments])[None])
        joined_arrays.append(np.concatenate([segment.visible.reshape(-1) for segment in segments]))
        tokens, positions, flat_visible = send(joined_arrays, device)
        flat_masks = flat_visible.split([segment.visible.size for segment in segments])
        visible = [
            flat_mask.view(1, *segment.visible.shape) for flat_mask, segment in zip(flat_masks, segments, strict=True)
        ]
        return cls(tokens, positions, positions.split([segment.nodes for segment in segments], 1), visible)


class Output(NamedTuple):
    """The result of a forward pass for one segment.

    Attributes:
        logits: `[1, wanted, vocab]`.
        hidden: the hidden states of the layers asked for, each `[1, nodes, hidden]`, of all nodes.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


def split(states: Tensor, sizes: Sequence[int], dim: int = 1) -> Sequence[Tensor]:
    """The parts of these sizes; the only one is the whole, since a lone pass is mostly the price of its operations."""
    return states.split(sizes, dim) if len(sizes) > 1 else (states,)


def join(parts: Sequence[Tensor], dim: int = 1) -> Tensor:
    """Parts behind each other; the only one is not copied."""
    return torch.cat([*parts], dim) if len(parts) > 1 else parts[0]


def split_layers(segments: Sequence[Segment], layers: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """The states `[1, nodes, hidden]` of some layers by segment."""
    sizes = [segment.nodes for segment in segments]
    states_by_layer = [split(layer, sizes) for layer in layers]
    return [tuple(layer_states[index] for layer_states in states_by_layer) for index in range(len(sizes))]


def forward_in_groups(
    segments: Sequence[Segment],
    group_of: Callable[[Segment], Hashable],
    run: Callable[[list[Segment]], list[Output]],
) -> list[Output]:
    """Run the segments of each group together; the outputs in the order of all segments."""
    groups: dict[Hashable, list[int]] = {}
    for index, segment in enumerate(segments):
        groups.setdefault(group_of(segment), []).append(index)
    outputs: dict[int, Output] = {}
    for indices in groups.values():
        outputs.update(zip(indices, run([segments[index] for index in indices]), strict=True))
    return [outputs[index] for index in range(len(segments))]
