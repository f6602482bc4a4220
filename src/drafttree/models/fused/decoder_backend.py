"""What backends have in common that run a decoder layer by layer, each with layers of its own."""

from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, Protocol

import torch
from torch import Tensor

from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.families import Architecture, Entry, LayerKind, describe
from drafttree.models.fused.fused_layer import LayerOutput, NormCall, PassContext
from drafttree.models.fused.pass_inputs import PassInputs
from drafttree.models.fused.rotary_angles import RotaryAngles
from drafttree.models.module.mtp_embedding import mtp_embedding_of
from drafttree.models.segment import BEFORE_NORM, Output, Segment, forward_in_groups, join, split, split_layers


class DecoderLayer(Protocol):
    """One decoder layer.

    Attributes:
        kind: kind of the layer; all layers of a kind share a `PassContext`.
    """

    kind: LayerKind

    def forward(self, x: Tensor, attention_input: Tensor | None, context: PassContext, rows: Any) -> LayerOutput:
        """Run the layer.

        Args:
            x: the residual stream `[nodes, hidden]` before the layer.
            attention_input: input of attention, None for the residual stream after the norm before attention.
            context: values that all layers of this kind share.
            rows: the layer's entry of `PassInputs.rows`.
        """
        ...


class Product(Protocol):
    """A linear layer.

    Attributes:
        width: number of outputs.
    """

    @property
    def width(self) -> int: ...

    def __call__(self, x: Tensor) -> Tensor:
        """`[rows, in]` to `[rows, out]`."""
        ...


class DecoderBackend:
    """Runs the layers of a decoder one after the other. See `drafttree.models.base.Backend` for the protocol.

    A subclass makes the layers, norms and products of a module, and the inputs of a pass.

    Args:
        module: a model of a known family, or a draft head that describes itself.

    Attributes:
        inputs: makes the inputs of passes over KV caches of a pool, recorded or not; None if every recorded pass needs
            inputs of its own.
        layout: layout of its KV caches.
        spans: the different spans of the layers.
        groups: number of query heads that share a key head in the first layer.
        hidden: width of the states that a draft head reads; 0 for a model.
        has_long_rope: whether rotary embeddings have other frequencies beyond their original context.
        is_uniform: whether the heads of all layers have one shape, and no layers share keys and values.
        empty: an empty tensor of the model's dtype, on its device.
    """

    name: str
    exact_text = False
    lossy_window = None
    shares_passes = True
    packed_nbytes = 0
    fallback_reason: str | None = None
    inputs: Any = None

    def __init__(self, module: Any) -> None:
        architecture = describe(module)
        self.device = module.device
        self.empty = torch.empty(0, dtype=module.dtype, device=module.device)
        self.layout = architecture.layout
        self.spans = architecture.spans
        self.has_long_rope = architecture.has_long_rope
        first_attention = architecture.blocks[0].attention
        shapes = set[tuple[int, int, int]]()
        for block in architecture.blocks:
            shapes.add((block.attention.key_heads, block.attention.kind.groups, block.attention.width))
        self.is_uniform = len(shapes) == 1 and len(architecture.layout.slots) == len(architecture.blocks)
        self.groups = first_attention.kind.groups
        self.hidden = architecture.embedding.embedding_dim if architecture.entry else 0
        self._mtp_embedding = mtp_embedding_of(module)
        self._embed = architecture.embedding
        self._layers = self.make_layers(architecture)
        self._owners = architecture.owners
        self._entry = _Entry(architecture.entry, self) if architecture.entry else None
        self._compute_layer_inputs = self.make_layer_inputs(architecture)
        self._norm = self.make_norm(architecture.norm)
        self._head = self.make_product(architecture.head)
        dtype = self.empty.dtype
        self._angles: dict[LayerKind, RotaryAngles] = {}
        self._long_angles: dict[LayerKind, RotaryAngles] = {}
        for layer_kind in dict.fromkeys(layer.kind for layer in self._layers):
            rotary = architecture.rotaries[layer_kind.layer_type]
            angles = RotaryAngles(rotary.frequencies, rotary.scaling, dtype)
            self._angles[layer_kind] = self._long_angles[layer_kind] = angles
            if rotary.long_frequencies is not None:
                self._long_angles[layer_kind] = RotaryAngles(rotary.long_frequencies, rotary.scaling, dtype)
        self._embedding_scale = 1.0 if architecture.embedding_multiplier is None else architecture.embedding_multiplier
        self._logits_divisor = architecture.logits_divisor
        self._logits_cap = architecture.logits_cap

    def make_layers(self, architecture: Architecture) -> Sequence[DecoderLayer]:
        """The decoder layers."""
        raise NotImplementedError

    def make_layer_inputs(self, architecture: Architecture) -> Callable[[Tensor, Tensor], Tensor | None]:
        """What computes `PassContext.layer_inputs` from the tokens `[1, nodes]` and the first residual stream."""
        raise NotImplementedError

    def make_norm(self, norm: Any) -> NormCall:
        """A norm of rows; None for one that does nothing."""
        raise NotImplementedError

    def make_product(self, layer: Any) -> Product:
        """The product of a linear layer."""
        raise NotImplementedError

    def make_inputs(self, segments: Sequence[Segment], states: Tensor) -> PassInputs:
        """The inputs of a pass over segments; `states` are empty for a model."""
        raise NotImplementedError

    def new_cache(self, capacity: int) -> TreeCache:
        return TreeCache(self.layout, capacity)

    def forward(
        self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = (), states: Tensor | None = None
    ) -> list[Output]:
        """A pass; see `drafttree.models.base.Backend.forward`.

        Args:
            segments: the texts.
            hidden_layers: layers whose states are wanted, `BEFORE_NORM` for what the last norm reads.
            states: `[1, nodes, hidden]` that a draft head reads.
        """
        if not segments:
            return []
        return run_in_groups(
            segments, self.states_of(segments, states), self.group_of, partial(self._run, hidden_layers)
        )

    def states_of(self, segments: Sequence[Segment], states: Tensor | None) -> Tensor | None:
        """The states that a pass reads: the given ones, or those of an MTP layer that is run as a language model."""
        if states is None and self._mtp_embedding:
            return self._mtp_embedding.read_states(segments)
        return states

    def group_of(self, segment: Segment) -> Hashable:
        """Segments of the same group can share a pass: they have the same rotary frequencies."""
        return segment.cache.long_rope

    def _run(self, hidden_layers: tuple[int, ...], segments: Sequence[Segment], states: Tensor | None) -> list[Output]:
        """A pass over segments of one group."""
        inputs = self.make_inputs(segments, self.empty if states is None else states)
        x, hidden_states = self.run_layers(inputs, hidden_layers, segments[0].cache.long_rope)
        for segment in segments:
            segment.cache.grow(segment.positions)
        return self.outputs_of(segments, x, hidden_states)

    def outputs_of(self, segments: Sequence[Segment], x: Tensor, hidden_states: tuple[Tensor, ...]) -> list[Output]:
        """The output of each segment, made from the states that `run_layers` returns."""
        states_by_segment = zip(split(x, [segment.nodes for segment in segments]), segments, strict=True)
        wanted_states = [segment.wanted_of(segment_states) for segment_states, segment in states_by_segment]
        logits = split(self.logits(join(wanted_states)), [states.shape[1] for states in wanted_states])
        return [*map(Output, logits, split_layers(segments, hidden_states))]

    def run_layers(
        self, inputs: PassInputs, hidden_layers: tuple[int, ...], long_rope: bool = False
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Run the layers; the states `[1, nodes, hidden]` after the last norm, and those of each of `hidden_layers`.

        Args:
            inputs: the inputs of the pass.
            hidden_layers: the layers whose states are wanted, as of `forward`.
            long_rope: whether LongRoPE's long frequencies apply.
        """
        x = self._embed(inputs.tokens).flatten(0, 1)
        if self._embedding_scale != 1:
            x = x * self._embedding_scale
        layer_inputs = self._compute_layer_inputs(inputs.tokens, x)
        contexts = {
            layer_kind: PassContext(
                *angles.of(inputs.positions), inputs.attention(layer_kind.span, layer_kind.groups), layer_inputs
            )
            for layer_kind, angles in (self._long_angles if long_rope else self._angles).items()
        }
        normed = None
        if self._entry:
            x, normed = self._entry(x, inputs.hidden.flatten(0, 1))
        states: dict[int, Tensor] = {}
        rows_by_layer = dict(zip(self.layout.slots, inputs.rows, strict=True))
        for index, (layer, owner) in enumerate(zip(self._layers, self._owners, strict=True)):
            if index in hidden_layers:
                states[index] = x
            x, normed = layer.forward(x, normed, contexts[layer.kind], rows_by_layer[owner])
        states[BEFORE_NORM] = x
        x = states[len(self._layers)] = self._norm(x) if normed is None else normed
        shape = *inputs.tokens.shape, -1
        return x.view(shape), tuple(states[layer].view(shape) for layer in hidden_layers)

    def logits(self, x: Tensor) -> Tensor:
        """`[1, nodes, vocab]` of states after the last norm."""
        if not x.shape[1]:
            return x.new_empty(*x.shape[:2], self._head.width)
        logits = self._head(x.flatten(0, 1)).unflatten(0, x.shape[:2])
        if self._logits_divisor != 1:
            logits.div_(self._logits_divisor)
        return logits if self._logits_cap is None else logits.div_(self._logits_cap).tanh_().mul_(self._logits_cap)


def run_in_groups(
    segments: Sequence[Segment],
    states: Tensor | None,
    group_of: Callable[[Segment], Hashable],
    run: Callable[[Sequence[Segment], Tensor | None], list[Output]],
) -> list[Output]:
    """Run segments of the same group in one pass; outputs are in the order of the segments.

    Args:
        segments: the segment_states of all passes.
        states: `[1, nodes, hidden]` that a draft head reads, for the nodes of all segments.
        group_of: the group of a segment.
        run: runs segments of one group, given their states.
    """
    if len(segments) == 1 or len({*map(group_of, segments)}) == 1:
        return run(segments, states)
    if states is None:
        return forward_in_groups(segments, group_of, lambda group: run(group, None))
    segment_states = split(states, [segment.nodes for segment in segments])
    states_of = dict(zip(map(id, segments), segment_states, strict=True))
    return forward_in_groups(
        segments, group_of, lambda group: run(group, join([states_of[id(segment)] for segment in group]))
    )


class _Entry:
    """The beginning of a draft head, on a backend's norms and products."""

    def __init__(self, entry: Entry, backend: DecoderBackend) -> None:
        self._entry = entry
        self._token_norm = backend.make_norm(entry.token_norm)
        self._state_norm = backend.make_norm(entry.state_norm)
        self._projection = None if entry.projection is None else backend.make_product(entry.projection)

    def __call__(self, embedded: Tensor, states: Tensor) -> tuple[Tensor, Tensor | None]:
        """The first residual stream, and the input of the first layer's attention; None if that reads the stream."""
        normed_states = self._state_norm(states)
        normed_inputs = [self._token_norm(embedded), normed_states]
        joined_inputs = torch.cat(normed_inputs[::-1] if self._entry.states_first else normed_inputs, -1)
        if self._projection:
            return self._projection(joined_inputs), None
        return normed_states if self._entry.normed_residual else states, joined_inputs
