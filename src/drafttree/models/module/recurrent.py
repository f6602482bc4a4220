"""Recurrent layers (gated delta rule, Mamba, short convolutions) over the nodes of a tree.

Such a layer reads one token after another into a state. In a tree every node's state follows from its parent's, so a
pass runs the layer level by level, the nodes of a level of all texts as a batch of single tokens: the module's own
decoding step, with the states of their parents. The states of all drafted nodes are kept until the next commit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from transformers import Cache

from drafttree.models.cache.recurrent_states import LayerStates, RecurrentStates, StatePool, States
from drafttree.models.host_copies import send
from drafttree.models.module.unseen_state import own_hooks
from drafttree.models.segment import Segment

FIRST_MAMBA = "x_proj", "x_proj_weight"
"""Weights of Mamba's first version (Jamba, Zamba), whose scan of several tokens takes no state to go on from."""


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
        conv_state = self.get_conv_state(layer_idx, state_idx)
        if conv_state is None:
            kernel = conv_kernel_size or conv_states.shape[-1]
            conv_input = nn.functional.pad(conv_states, (max(kernel - conv_states.shape[-1], 0), 0))
        else:
            kernel = conv_state.shape[-1]
            conv_input = torch.cat((conv_state, conv_states), -1)
        self.states["conv", state_idx] = conv_input[..., -kernel:].clone()
        return conv_input

    def update_recurrent_state(self, states: Tensor, layer_idx: int, state_idx: int = 0, **_: object) -> Tensor:
        self.states["recurrent", state_idx] = states
        return states

    def has_previous_state(self, layer_idx: int | None = None, state_idx: int = 0) -> bool:
        return bool(self.states)

    def is_recording_past(self, layer_idx: int) -> bool:
        return False


class Level(NamedTuple):
    """Nodes that recurrent layers run as one batch.

    Attributes:
        nodes: indices into the nodes of the pass.
        parents: where a `StatePool` has the states they go on from; None for the first tokens of texts.
    """

    nodes: Tensor
    parents: Tensor | None


class TreeSteps:
    """The order in which a pass runs its nodes through recurrent layers.

    Args:
        segments: the parts of the pass, whose caches are as before it.
        device: the device of the layers' inputs.

    Attributes:
        levels: the nodes of all segments, a node after its parent.
        order: `[nodes]` where a node is among those of all levels.
        rows: by segment, where a `StatePool` has the states of its drafted rows, the new ones included.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        trees = [_tree(segment) for segment in segments]
        levels = np.concatenate([tree.levels for tree in trees])
        nodes = levels.argsort(kind="stable")
        order = nodes.argsort()
        new_rows = np.split(
            order + sum(tree.before for tree in trees), [*accumulate(len(tree.levels) for tree in trees)]
        )
        starts = accumulate((tree.before for tree in trees), initial=0)
        rows = []
        parents = []
        for tree, start, segment_rows in zip(trees, starts, new_rows, strict=False):
            rows.append(np.concatenate((np.arange(start + tree.committed, start + tree.before), segment_rows)))
            parents.append(np.where(tree.parents < 0, start, rows[-1][tree.parents]))
        index_arrays = [nodes, np.concatenate(parents)[nodes], order, *rows]
        (joined_indices,) = send([np.concatenate(index_arrays)], device)
        indices = joined_indices.split([*map(len, index_arrays)])
        sizes = np.bincount(levels).tolist()
        level_indices = zip(indices[0].split(sizes), indices[1].split(sizes), strict=True)
        self.levels = [
            Level(level_nodes, level_parents if level else None)
            for level, (level_nodes, level_parents) in enumerate(level_indices)
            if len(level_nodes)
        ]
        self.order = indices[2]
        self.rows = indices[3:]


class _Tree(NamedTuple):
    """The nodes of a segment.

    Attributes:
        levels: `[nodes]` by level, from 1; from 0 where the first have no state to go on from.
        parents: `[nodes]` drafted rows of their parents, -1 for the last committed token.
        committed: states of committed tokens that there are, 0 or 1.
        before: states that there are before the pass, drafted ones included.
    """

    levels: np.ndarray
    parents: np.ndarray
    committed: int
    before: int


def _tree(segment: Segment) -> _Tree:
    """The tree of a segment's nodes, from positions and what they see."""
    cache = segment.cache
    node_positions = segment.positions
    drafted_positions = np.concatenate((cache.positions, node_positions))
    is_parent = segment.visible & (drafted_positions == node_positions[:, None] - 1)
    parents = np.where(is_parent.any(1), is_parent.argmax(1), -1)
    committed = int(cache.recurrent.has_committed)
    levels = node_positions - node_positions.min() + int(committed or parents.min() >= 0)
    return _Tree(levels, parents, committed, committed + cache.drafted)


@contextmanager
def stepping(
    layers: dict[str, nn.Module], cache: Cache, texts: Sequence[RecurrentStates], steps: TreeSteps | None
) -> Iterator[None]:
    """Let recurrent layers run over trees while a pass calls them.

    Args:
        layers: the recurrent layers by name.
        cache: what the module hands them as cache.
        texts: the states of the texts of the pass.
        steps: the trees; None for a pass that only reads the tokens of one text one after another.
    """
    with ExitStack() as undo:
        for name, layer in layers.items():
            states = [text.layers[name] for text in texts]
            undo.enter_context(replaced_forward(layer, _Runner(layer, cache, states, steps)))
        yield


class _Runner:
    """Replaces a layer's forward during a pass."""

    def __init__(self, layer: nn.Module, cache: Cache, texts: list[LayerStates], steps: TreeSteps | None) -> None:
        self._layer = layer
        self._forward = layer.forward
        self._cache = cache
        self._texts = texts
        self._steps = steps

    def __call__(self, hidden_states: Tensor, *given: Any, **named: Any) -> Tensor:
        steps = self._steps
        named.pop("tree_plan", None)  # layers hand what they do not know to their kernels
        if steps is None:
            return self._read(hidden_states, given, named)
        pool = StatePool(self._texts, hidden_states.shape[1])
        outs = []
        with _Projections(self._layer, hidden_states) as projections:
            for nodes, parents in steps.levels:
                parent_states = {} if parents is None else pool.take(parents)
                out, node_states = self._call(projections.begin(nodes), parent_states, given, named)
                outs.append(out[:, 0])
                pool.append(node_states)
        for states, rows in zip(self._texts, steps.rows, strict=True):
            states.drafted = pool.take(rows)
        return projections.finish(torch.cat(outs)[steps.order][None])

    def _read(self, hidden: Tensor, given: tuple, named: dict[str, Any]) -> Tensor:
        """The layer's output for the next tokens of one text, of which only the last one's states are kept."""
        (text,) = self._texts
        states = text.copy_committed()
        outs = []
        if not (states and any(hasattr(self._layer, name) for name in FIRST_MAMBA)):
            out, text.drafted = self._call(hidden, states, given, named)
            return out
        with _Projections(self._layer, hidden) as projections:
            for node in torch.arange(hidden.shape[1], device=hidden.device).split(1):
                out, states = self._call(projections.begin(node), states, given, named)
                outs.append(out)
        text.drafted = states
        return projections.finish(torch.cat(outs, 1))

    def _call(self, hidden: Tensor, states: States, given: tuple, named: dict[str, Any]) -> tuple[Tensor, States]:
        """The layer's output for tokens `[sequences, tokens, hidden]`, and the states after them."""
        cache = StepCache(states)
        given = tuple(cache if argument is self._cache else argument for argument in given)
        named = {name: cache if argument is self._cache else argument for name, argument in named.items()}
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
        self._inputs = [projection for name, projection in layer.named_children() if name.startswith("in_proj")]
        output: Any = getattr(layer, "out_proj", None)
        self._output = None if output is None or own_hooks(output) else output
        self._products: dict[nn.Module, Tensor] = {}
        self._nodes = self._level = hidden

    def __enter__(self) -> "_Projections":
        for projection in self._inputs:
            self._undo.enter_context(
                replaced_forward(projection, partial(self._project, projection, projection.forward))
            )
        if self._output is not None:
            self._undo.enter_context(replaced_forward(self._output, lambda x: x))
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    def begin(self, nodes: Tensor) -> Tensor:
        """The layer's input `[nodes, 1, hidden]` for a level."""
        self._nodes = nodes
        self._level = self._hidden[0, nodes, None]
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
def replaced_forward(part: nn.Module, replacement: Callable[..., Tensor]) -> Iterator[None]:
    """Another forward for a module, for a while."""
    instance_forward = vars(part).get("forward")
    part.forward = replacement
    try:
        yield
    finally:
        vars(part).pop("forward")
        if instance_forward is not None:
            part.forward = instance_forward
