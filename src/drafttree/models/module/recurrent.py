"""Recurrent layers (gated delta rule, Mamba, short convolutions) over the nodes of a tree.

Such a layer reads one token after another into a state. In a tree every node's state follows from its parent's, so a
pass runs the layer level by level, the nodes of a level as a batch of single tokens: the module's own decoding step,
with the states of their parents. The states of all drafted nodes are kept until the next commit.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Cache

from drafttree.models.cache.recurrent_states import LayerStates, RecurrentStates, States
from drafttree.models.module.fingerprint import own_hooks


class StepCache:
    """The cache a recurrent layer is called with, of the methods that transformers' recurrent layers use.

    Args:
        states: states before the call; replaced or changed in place by those after it.
    """

    def __init__(self, states: States) -> None:
        self.states = states

    def get_conv_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.states.get(("conv", state_idx))

    def get_recurrent_state(self, layer_idx: int, state_idx: int = 0) -> Tensor | None:
        return self.states.get(("recurrent", state_idx))

    def update_conv_state(
        self, conv_states: Tensor, layer_idx: int, state_idx: int = 0, conv_kernel_size: int | None = None, **_: object
    ) -> Tensor:
        """Append inputs `[batch, channels, tokens]` of a convolution and return all it has to read."""
        before = self.get_conv_state(layer_idx, state_idx)
        if before is None:
            kernel = conv_kernel_size or conv_states.shape[-1]
            whole = nn.functional.pad(conv_states, (max(kernel - conv_states.shape[-1], 0), 0))
        else:
            kernel, whole = before.shape[-1], torch.cat((before, conv_states), -1)
        self.states["conv", state_idx] = whole[..., -kernel:].clone()
        return whole

    def update_recurrent_state(self, states: Tensor, layer_idx: int, state_idx: int = 0, **_: object) -> Tensor:
        self.states["recurrent", state_idx] = states
        return states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int = 0) -> bool:
        return bool(self.states)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


class TreeSteps:
    """The order in which a pass runs its nodes through recurrent layers.

    Args:
        positions: `[1, nodes]`.
        visible: bool `[1, nodes, drafted]`, as of a `Segment`.
        earlier: `[1, rows]` positions of the rows drafted by earlier passes, None if there are none.

    Attributes:
        rows: drafted rows, the new ones included.
        levels: nodes, and rows of their parents (None: the last committed token), both as indices.
        first: row of the first node.
    """

    def __init__(self, positions: Tensor, visible: Tensor, earlier: Tensor | None) -> None:
        own = positions[0]
        known = own if earlier is None else torch.cat((earlier[0], own))
        self.rows, self.first = len(known), len(known) - len(own)
        before = visible[0] & (known[None] == own[:, None] - 1)
        parents = torch.where(before.any(1), before.long().argmax(1), -1)
        self.levels: list[tuple[Tensor, Tensor | None]] = []
        for position in own.unique():
            nodes = (own == position).nonzero()[:, 0]
            above = parents[nodes]
            self.levels.append((nodes, None if int(above[0]) < 0 else above))


@contextmanager
def stepping(
    layers: dict[str, nn.Module], cache: Cache, states: RecurrentStates, steps: TreeSteps | None
) -> Iterator[None]:
    """Let recurrent layers run over a tree while a pass calls them.

    Args:
        layers: the recurrent layers by name.
        cache: what the module hands them as cache.
        states: the states of the text.
        steps: the tree; None for a pass that only reads tokens one after another.
    """
    with ExitStack() as undo:
        for name, layer in layers.items():
            undo.enter_context(_forward(layer, _Runner(layer, cache, states.layers[name], steps)))
        yield


class _Runner:
    """Replaces a layer's forward during a pass."""

    def __init__(self, layer: nn.Module, cache: Cache, states: LayerStates, steps: TreeSteps | None) -> None:
        self._layer = layer
        self._forward = layer.forward
        self._cache = cache
        self._states = states
        self._steps = steps

    def __call__(self, hidden_states: Tensor, *given: Any, **named: Any) -> Tensor:
        steps, states = self._steps, self._states
        if steps is None:
            out, states.drafted = self._call(hidden_states, states.before(1, None), given, named)
            return out
        parts = []
        with _Projections(self._layer, hidden_states) as projections:
            for nodes, parents in steps.levels:
                level = projections.begin(nodes)
                out, after = self._call(level, states.before(len(nodes), parents), given, named)
                parts.append(out[:, 0])
                states.store(after, nodes + steps.first, steps.rows)
        order = torch.cat([nodes for nodes, _ in steps.levels]).argsort()
        return projections.finish(torch.cat(parts)[order][None])

    def _call(self, hidden: Tensor, states: States, given: tuple, named: dict[str, Any]) -> tuple[Tensor, States]:
        """The layer's output for tokens `[sequences, tokens, hidden]`, and the states after them."""
        cache = StepCache(states)
        given = tuple(cache if each is self._cache else each for each in given)
        named = {name: cache if each is self._cache else each for name, each in named.items()}
        return self._forward(hidden, *given, **named), cache.states


class _Projections:
    """The linear layers at the beginning and end of a recurrent layer, computed for all levels at once.

    Most of a layer's weights are in them, and would be read anew for every level. While levels run, a projection of the
    layer's own input gives rows of the product with all nodes, and the output projection passes its input on. One with
    hooks, which would see that, runs with every level.

    Args:
        layer: recurrent; its projections are called `in_proj...` and `out_proj` in all of transformers.
        hidden: its input `[1, nodes, hidden]`.
    """

    def __init__(self, layer: nn.Module, hidden: Tensor) -> None:
        self._hidden = hidden
        self._undo = ExitStack()
        self._inputs = [part for name, part in layer.named_children() if name.startswith("in_proj")]
        output: Any = getattr(layer, "out_proj", None)
        self._output = None if output is None or own_hooks(output) else output
        self._products: dict[nn.Module, Tensor] = {}
        self._nodes = self._level = hidden

    def __enter__(self) -> "_Projections":
        for part in self._inputs:
            self._undo.enter_context(_forward(part, partial(self._project, part, part.forward)))
        if self._output is not None:
            self._undo.enter_context(_forward(self._output, lambda x: x))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def begin(self, nodes: Tensor) -> Tensor:
        """The layer's input `[nodes, 1, hidden]` for a level."""
        self._nodes, self._level = nodes, self._hidden[0, nodes, None]
        return self._level

    def finish(self, out: Tensor) -> Tensor:
        """The layer's output `[1, nodes, hidden]` from what its last projection was given."""
        return out if self._output is None else self._output(out)

    def _project(self, part: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if x is not self._level:
            return forward(x)
        if part not in self._products:
            self._products[part] = forward(self._hidden)[0]
        return self._products[part][self._nodes, None]


@contextmanager
def _forward(part: nn.Module, replacement: Callable[..., Tensor]) -> Iterator[None]:
    """Another forward for a module, for a while."""
    own = vars(part).get("forward")
    part.forward = replacement
    try:
        yield
    finally:
        vars(part).pop("forward")
        if own is not None:
            part.forward = own
