"""Recurrent layers (gated delta rule, Mamba, short convolutions) over the nodes of a tree.

Such a layer reads one token after another into a state. In a tree, every node's state follows from its parent's. So a
pass runs the layer level by level. The nodes of a level, of all texts, are a batch of single tokens for the module's
own decoding step, which gets their parents' states. The states of all drafted nodes are kept until the next commit.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
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
"""Attributes of layers of Mamba's first version (Jamba, Zamba), whose scan of several tokens takes no state."""


class StepCache:
    """The cache that a recurrent layer gets, with the methods that transformers' recurrent layers call.

    Args:
        states: states before the call, which the layer replaces or changes in place.
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
        """Append inputs `[batch, channels, tokens]` of a convolution, and return all that it has to read."""
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
    """Nodes that recurrent layers compute as one batch.

    Attributes:
        nodes: indices into the nodes of the pass.
        parents: rows of a `StatePool` with the states of their parents; None for the first tokens of texts.
    """

    nodes: Tensor
    parents: Tensor | None


class TreeSteps:
    """The order in which a pass runs its nodes through recurrent layers.

    Args:
        segments: the parts of the pass, whose KV caches are as before it.
        device: the device of the layers' inputs.

    Attributes:
        levels: the nodes of all segments, by level.
        order: `[nodes]` index of each node among the nodes in the order of levels.
        rows: by segment, the rows of a `StatePool` with the states of its drafted nodes, the new ones included.
    """

    def __init__(self, segments: Sequence[Segment], device: torch.device) -> None:
        trees = [_tree(segment) for segment in segments]
        levels = np.concatenate([tree.levels for tree in trees])
        nodes = levels.argsort(kind="stable")
        order = nodes.argsort()
        rows, parents = _pool_rows(trees, order)
        index_arrays = [nodes, parents[nodes], order, *rows]
        (joined_indices,) = send([np.concatenate(index_arrays)], device)
        indices = joined_indices.split([*map(len, index_arrays)])
        self.levels = _levels(indices[0], indices[1], np.bincount(levels).tolist())
        self.order = indices[2]
        self.rows = indices[3:]


class _Tree(NamedTuple):
    """The tree of a segment's nodes.

    Attributes:
        levels: `[nodes]` the level of each node, at least 1, or 0 if the text has no states yet.
        parents: `[nodes]` index of each node's parent among the drafted rows, -1 for the last committed token.
        committed: number of states of committed tokens, 0 or 1.
        before: number of states before the pass, including those of drafted nodes.
    """

    levels: np.ndarray
    parents: np.ndarray
    committed: int
    before: int


def _tree(segment: Segment) -> _Tree:
    """The tree of a segment's nodes, derived from their positions and visible rows."""
    cache = segment.cache
    node_positions = segment.positions
    drafted_positions = np.concatenate((cache.positions, node_positions))
    is_parent = segment.visible & (drafted_positions == node_positions[:, None] - 1)
    parents = np.where(is_parent.any(1), is_parent.argmax(1), -1)
    committed = int(cache.recurrent.has_committed)
    levels = node_positions - node_positions.min() + int(committed or parents.min() >= 0)
    return _Tree(levels, parents, committed, committed + cache.drafted)


def _pool_rows(trees: Sequence[_Tree], order: np.ndarray) -> tuple[list[np.ndarray], np.ndarray]:
    """The rows of a `StatePool` with the states of drafted nodes, and with those of the nodes' parents.

    Args:
        trees: the tree of each segment.
        order: `TreeSteps.order`, since the pool appends the states of new nodes by level.

    Returns:
        By segment, the rows of its drafted nodes, the new ones included; and `[nodes]` the row of each node's parent.
    """
    new_start = sum(tree.before for tree in trees)
    rows = []
    parents = []
    start = 0
    node = 0
    for tree in trees:
        new_rows = new_start + order[node : node + len(tree.levels)]
        rows.append(np.concatenate((np.arange(start + tree.committed, start + tree.before), new_rows)))
        parents.append(np.where(tree.parents < 0, start, rows[-1][tree.parents]))
        start += tree.before
        node += len(tree.levels)
    return rows, np.concatenate(parents)


def _levels(nodes: Tensor, parents: Tensor, sizes: list[int]) -> list[Level]:
    """Split nodes and parents, which are in the order of levels, by the number of nodes of each level."""
    levels = []
    for level, (level_nodes, level_parents) in enumerate(zip(nodes.split(sizes), parents.split(sizes), strict=True)):
        if len(level_nodes):
            levels.append(Level(level_nodes, level_parents if level else None))
    return levels


@contextmanager
def stepping(
    layers: dict[str, nn.Module], cache: Cache, texts: Sequence[RecurrentStates], steps: TreeSteps | None
) -> Iterator[None]:
    """Context manager: recurrent layers run over trees.

    Args:
        layers: the recurrent layers by name.
        cache: the cache that the module hands them.
        texts: the states of the texts of the pass.
        steps: the trees; None for a pass over tokens of a single text that will all be committed.
    """
    with ExitStack() as undo:
        for name, layer in layers.items():
            states = [text.layers[name] for text in texts]
            undo.enter_context(replaced_forward(layer, _Runner(layer, cache, states, steps)))
        yield


class _Runner:
    """The function that replaces a recurrent layer's forward during a pass."""

    def __init__(self, layer: nn.Module, cache: Cache, texts: list[LayerStates], steps: TreeSteps | None) -> None:
        self._layer = layer
        self._forward = layer.forward
        self._cache = cache
        self._texts = texts
        self._steps = steps

    def __call__(self, hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        steps = self._steps
        kwargs.pop("tree_plan", None)  # layers pass unknown arguments on to their kernels
        if steps is None:
            return self._read(hidden_states, args, kwargs)
        pool = StatePool(self._texts, hidden_states.shape[1])
        outs = []
        with _Projections(self._layer, hidden_states) as projections:
            for nodes, parents in steps.levels:
                parent_states = {} if parents is None else pool.take(parents)
                out, node_states = self._call(projections.begin(nodes), parent_states, args, kwargs)
                outs.append(out[:, 0])
                pool.append(node_states)
        for states, rows in zip(self._texts, steps.rows, strict=True):
            states.drafted = pool.take(rows)
        return projections.finish(torch.cat(outs)[steps.order][None])

    def _read(self, hidden_states: Tensor, args: tuple, kwargs: dict[str, Any]) -> Tensor:
        """The layer's output for the next tokens of a single text. Only the last token's states are kept."""
        (text,) = self._texts
        states = text.copy_committed()
        outs = []
        if not (states and any(hasattr(self._layer, name) for name in FIRST_MAMBA)):
            out, text.drafted = self._call(hidden_states, states, args, kwargs)
            return out
        with _Projections(self._layer, hidden_states) as projections:
            for node in torch.arange(hidden_states.shape[1], device=hidden_states.device).split(1):
                out, states = self._call(projections.begin(node), states, args, kwargs)
                outs.append(out)
        text.drafted = states
        return projections.finish(torch.cat(outs, 1))

    def _call(
        self, hidden_states: Tensor, states: States, args: tuple, kwargs: dict[str, Any]
    ) -> tuple[Tensor, States]:
        """The layer's output for inputs `[sequences, tokens, hidden]`, and the states after them."""
        cache = StepCache(states)
        args = tuple(cache if argument is self._cache else argument for argument in args)
        kwargs = {name: cache if argument is self._cache else argument for name, argument in kwargs.items()}
        return self._forward(hidden_states, *args, **kwargs), cache.states


class _Projections:
    """The linear layers at the beginning and end of a recurrent layer, computed for all levels at once.

    They have most of a layer's weights, which every level would read again. So projections of the layer's input are
    computed once for all nodes, and each level gets its rows of the result. While levels run, the output projection
    returns its input. If it has hooks, which would notice, it runs in every level instead.

    Args:
        layer: a recurrent layer; its projections are called `in_proj...` and `out_proj` in all of transformers.
        layer_input: the layer's input `[1, nodes, hidden]`.
    """

    def __init__(self, layer: nn.Module, layer_input: Tensor) -> None:
        self._layer_input = layer_input
        self._undo = ExitStack()
        self._inputs = [projection for name, projection in layer.named_children() if name.startswith("in_proj")]
        output: Any = getattr(layer, "out_proj", None)
        self._output = None if output is None or own_hooks(output) else output
        self._products: dict[nn.Module, Tensor] = {}
        self._nodes = self._level = layer_input

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
        """Begin a level, and return the layer's input `[nodes, 1, hidden]` for it."""
        self._nodes = nodes
        self._level = self._layer_input[0, nodes, None]
        return self._level

    def finish(self, out: Tensor) -> Tensor:
        """Apply the output projection to the results of all levels; the layer's output `[1, nodes, hidden]`."""
        return out if self._output is None else self._output(out)

    def _project(self, projection: nn.Module, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        if x is not self._level:
            return forward(x)
        if projection not in self._products:
            self._products[projection] = forward(self._layer_input)[0]
        return self._products[projection][self._nodes, None]


@contextmanager
def replaced_forward(submodule: nn.Module, replacement: Callable[..., Tensor]) -> Iterator[None]:
    """Context manager: replace the forward of a module."""
    instance_forward = vars(submodule).get("forward")
    submodule.forward = replacement
    try:
        yield
    finally:
        vars(submodule).pop("forward")
        if instance_forward is not None:
            submodule.forward = instance_forward
