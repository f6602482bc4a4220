"""The inputs of layers of transformers in a pass: tokens, a KV cache, and a plan of which nodes attend to which rows.

In a pass over a single request, the layers get all of its rows. In a shared pass, the layers' cache stores the new rows
of each request in the request's own KV cache. There our attention function finds them.
"""

from collections.abc import Sequence
from functools import lru_cache
from inspect import signature
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from transformers import Cache

from drafttree.core.errors import ModelError
from drafttree.models.attention.tree_attention import AttentionPart, Plan, TreePlan
from drafttree.models.segment import PassTensors, Segment

CACHE_NAMES = "cache", "past_key_values", "cache_params"
"""Names of the cache's parameter: from transformers 5.24 on, before, and in Mamba. Other modules use any of them."""


@lru_cache(maxsize=256)
def cache_name(module: type[nn.Module]) -> str | None:
    """The name of the KV cache's parameter in the forward of a class, None if there is none."""
    parameters = signature(module.forward).parameters
    return next((name for name in CACHE_NAMES if name in parameters), None)


def as_cache(module: nn.Module, cache: Cache) -> dict[str, Any]:
    """The KV cache as a keyword argument for a module."""
    return {cache_name(type(module)) or CACHE_NAMES[0]: cache}


class SegmentCache(Cache):
    """The KV cache of one request, as layers of transformers see it in a pass.

    Args:
        segment: the only segment of the pass.
        positions: `[1, nodes]` its positions, on the device of the pass.
    """

    def __init__(self, segment: Segment, positions: Tensor) -> None:
        super().__init__(layers=[])
        self._cache = segment.cache
        self._positions = positions
        self.update = segment.cache.update  # no method around it, since every layer calls it

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        """The number of rows in use. For a layer, the offsets by which it counts positions (see `_offsets`)."""
        return self._cache.get_seq_length() if layer_idx is None else _offsets(self._positions)


class SharedCache(Cache):
    """Stores the new rows of every segment in its own KV cache, and returns them to the layer unchanged.

    The layer passes them on to its attention function, which looks up all rows of every segment by these tensors.

    Args:
        segments: the parts of the pass, in order.
        positions: `[1, nodes]` positions of all segments, on the device of the pass.
    """

    def __init__(self, segments: Sequence[Segment], positions: Tensor) -> None:
        super().__init__(layers=[])
        self._segments = segments
        self._positions = positions
        self._sizes = [segment.nodes for segment in segments]
        self._rows: dict[int, tuple[Tensor, Tensor, list[tuple[Tensor, Tensor]]]] = {}

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object):
        """Store a layer's new rows `[1, heads, nodes, width]`, and return them."""
        rows = self._store(key_states, value_states, layer_idx)
        self._rows[id(key_states)] = key_states, value_states, rows
        return key_states, value_states

    def rows_of(self, key: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """By segment, all keys and values `[1, heads, rows, width]`, looked up by the tensors that `update` returned.

        Raises:
            ModelError: the layer attends with other tensors than `update` returned.
        """
        keys, values, rows = self._rows.get(id(key), (None, None, []))
        if keys is not key or values is not value:
            raise ModelError("keys and values that are changed after they are stored cannot be packed as new rows only")
        return rows

    def get_seq_length(self, layer_idx: int | None = None) -> Any:
        """For a layer, the offsets by which it counts positions (see `_offsets`); else 0."""
        return 0 if layer_idx is None else _offsets(self._positions)

    def _store(self, keys: Tensor, values: Tensor, layer: int) -> list[tuple[Tensor, Tensor]]:
        """Store new rows, and return all rows of the layer by segment."""
        new_keys = keys.split(self._sizes, 2)
        new_values = values.split(self._sizes, 2)
        rows = []
        for segment, segment_keys, segment_values in zip(self._segments, new_keys, new_values, strict=True):
            rows.append(segment.cache.update(segment_keys, segment_values, layer))
        return rows


class JoinedCache(SharedCache):
    """Returns all rows of all segments, concatenated, for layers that expand what they stored (latent attention).

    This copies all rows in every layer, so it is used only where `SharedCache` gives wrong logits.
    """

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: object, **__: object):
        """Store new rows `[1, heads, nodes, width]`, and return all rows of all segments `[1, heads, rows, width]`."""
        keys, values = zip(*self._store(key_states, value_states, layer_idx), strict=True)
        return torch.cat(keys, 2), torch.cat(values, 2)

    def rows_of(self, key: Tensor, value: Tensor) -> list[tuple[Tensor, Tensor]]:
        """By segment, all keys and values, split from those that a layer made of the rows that `update` returned."""
        counts = [segment.cache.get_seq_length() + segment.nodes for segment in self._segments]
        return [*zip(key.split(counts, 2), value.split(counts, 2), strict=True)]


class SharedPlan:
    """The plans of all segments of a pass, handed to our attention function as `tree_plan`.

    Args:
        segments: the parts of the pass, whose KV caches are as before it.
        tensors: the segments on the device of the pass.
        cache: the KV cache that the layers are given.
        dtype: dtype of the additive masks.
    """

    def __init__(
        self, segments: Sequence[Segment], tensors: PassTensors, cache: SharedCache, dtype: torch.dtype
    ) -> None:
        self._cache = cache
        self._sizes = [segment.nodes for segment in segments]
        plan_arguments = zip(segments, tensors.segment_positions, tensors.visible, strict=True)
        self._plans = [TreePlan(*arguments, dtype) for arguments in plan_arguments]

    def parts(self, query: Tensor, key: Tensor, value: Tensor) -> list[AttentionPart]:
        """Split by segment what a layer hands to its attention function."""
        segment_inputs = zip(query.split(self._sizes, 2), self._cache.rows_of(key, value), self._plans, strict=True)
        return [AttentionPart(segment_query, *rows, plan) for segment_query, rows, plan in segment_inputs]


class ModuleInputs(NamedTuple):
    """The inputs of a pass.

    Attributes:
        tokens: `[1, nodes]` of all segments.
        positions: `[1, nodes]`.
        cache: the layers' KV cache.
        plan: the `tree_plan` of our attention function.
    """

    tokens: Tensor
    positions: Tensor
    cache: Cache
    plan: Plan

    @classmethod
    def of(
        cls,
        segments: Sequence[Segment],
        dtype: torch.dtype,
        device: torch.device,
        cache_class: type[SharedCache] = SharedCache,
    ) -> "ModuleInputs":
        """The inputs of a pass over segments.

        Args:
            segments: the parts of the pass.
            dtype: dtype of the additive masks.
            device: the device of the layers' inputs.
            cache_class: the class of the cache that several segments share.
        """
        tensors = PassTensors.of(segments, device)
        tokens = tensors.tokens
        positions = tensors.positions
        if len(segments) == 1:
            plan = TreePlan(segments[0], positions, tensors.visible[0], dtype)
            return cls(tokens, positions, SegmentCache(segments[0], positions), plan)
        shared_cache = cache_class(segments, positions)
        return cls(tokens, positions, shared_cache, SharedPlan(segments, tensors, shared_cache, dtype))


def _offsets(positions: Tensor) -> Tensor:
    """`[nodes]`: the numbers that layers which count positions themselves (Llama 4) add to each node's index."""
    node_positions = positions[0]
    return node_positions - torch.arange(len(node_positions), device=node_positions.device)
