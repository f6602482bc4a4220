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
"""Masks of chains of up to this many nodes are kept for later passes."""
BEFORE_NORM = -1
"""Among `hidden_layers`, means the input of the last norm."""


class Segment(NamedTuple):
    """The nodes of one request in a pass: a tree, a single node or a part of a prompt.

    Its arrays are on the host; `PassTensors` copies those of a whole pass to the device.

    Attributes:
        cache: the request's KV cache, made by the backend that runs the pass. The nodes attend to its committed rows
            (those in its window if it has one) and to the drafted rows that `visible` allows.
        tokens: int64 `[nodes]` token ids.
        positions: int64 `[nodes]` absolute positions.
        visible: bool `[nodes, drafted]`: which drafted rows each token attends to. The last `nodes` rows are those of
            the tokens themselves.
        wanted: slice of the nodes whose logits are wanted: `slice(0, 0)` for none, `slice(-1, None)` for the last.
        ranked: number of best tokens of each of these nodes that a recorded pass ranks too (`Output.ranks`).
    """

    cache: TreeCache
    tokens: Array
    positions: Array
    visible: Array
    wanted: slice = slice(None)
    ranked: int = 0

    @classmethod
    def of_text(cls, cache: TreeCache, tokens: Sequence[int]) -> "Segment":
        """The next tokens of a text, each attending to all before it; the logits of the last are wanted."""
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
        """Select the states of the nodes whose logits are wanted from those of all nodes `[1, nodes, hidden]`."""
        return states if self.wanted == slice(None) else states[:, self.wanted]

    def part(self, start: int, stop: int) -> "Segment":
        """The segment of the nodes from `start` to before `stop`, for a pass after the one over the earlier nodes."""
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
        segment_positions: by segment, its positions `[1, nodes]`.
        visible: by segment, bool `[1, nodes, drafted]`.
    """

    tokens: Tensor
    positions: Tensor
    segment_positions: Sequence[Tensor]
    visible: Sequence[Tensor]

    @classmethod
    def of(cls, segments: Sequence[Segment], device: torch.device) -> "PassTensors":
        """Copy segments to a device, all arrays at once."""
        if len(segments) == 1:
            (segment,) = segments
            arrays = [segment.tokens[None], segment.positions[None], segment.visible[None]]
            tokens, positions, visible = send(arrays, device)
            return cls(tokens, positions, [positions], [visible])
        joined_tokens = np.concatenate([segment.tokens for segment in segments])[None]
        joined_positions = np.concatenate([segment.positions for segment in segments])[None]
        joined_visible = np.concatenate([segment.visible.reshape(-1) for segment in segments])
        tokens, positions, flat_visible = send([joined_tokens, joined_positions, joined_visible], device)
        flat_masks = flat_visible.split([segment.visible.size for segment in segments])
        visible = []
        for flat_mask, segment in zip(flat_masks, segments, strict=True):
            visible.append(flat_mask.view(1, *segment.visible.shape))
        return cls(tokens, positions, positions.split([segment.nodes for segment in segments], 1), visible)


class Output(NamedTuple):
    """The result of a forward pass for one segment.

    Attributes:
        logits: `[1, wanted, vocab]`.
        hidden: the states of all nodes for each layer asked for, `[1, nodes, hidden]`.
        ranks: `[2, wanted, count]` log-probabilities and ids of each row's best tokens, as of
            `drafttree.core.vocab_ops.ranked`; None if the pass has not ranked them.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()
    ranks: Tensor | None = None


def split(states: Tensor, sizes: Sequence[int], dim: int = 1) -> Sequence[Tensor]:
    """Split states along a dimension. With a single size nothing is split, which saves a lone request an operation."""
    return states.split(sizes, dim) if len(sizes) > 1 else (states,)


def join(tensors: Sequence[Tensor], dim: int = 1) -> Tensor:
    """Concatenate tensors; a single one is not copied."""
    return torch.cat([*tensors], dim) if len(tensors) > 1 else tensors[0]


def split_layers(segments: Sequence[Segment], layers: Sequence[Tensor]) -> list[tuple[Tensor, ...]]:
    """Split the states `[1, nodes, hidden]` of layers by segment; per segment, the states of all layers."""
    sizes = [segment.nodes for segment in segments]
    if not layers:
        return [()] * len(sizes)
    return [*zip(*(split(layer, sizes) for layer in layers), strict=True)]


def undo_pass(segments: Sequence[Segment]) -> None:
    """Drop the rows that an unfinished pass has counted as drafted, so that it can be run again."""
    for segment in segments:
        cache = segment.cache
        cache.drop_last(cache.drafted - (segment.visible.shape[1] - segment.nodes))


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
