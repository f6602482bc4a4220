"""The states of recurrent layers, which take the place of keys and values."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

States = dict[tuple[str, int], Tensor]
"""States by kind ("conv" or "recurrent") and index, each `[tokens, ...]`."""


class LayerStates:
    """The states of one recurrent layer for one text.

    Attributes:
        committed: after the last committed token, `[1, ...]`; empty before the first.
        drafted: after every drafted node, `[drafted, ...]`; a pass that only reads keeps those after its last token.
    """

    def __init__(self) -> None:
        self.committed: States = {}
        self.drafted: States = {}

    def copy_committed(self) -> States:
        """A copy of the committed states, which the layer may change in place."""
        return {key: state.clone() for key, state in self.committed.items()}

    @property
    def nbytes(self) -> int:
        """Memory of the states in bytes."""
        return sum(state.nbytes for state in (*self.committed.values(), *self.drafted.values()))


class StatePool:
    """The states of one recurrent layer in a pass over trees.

    First come the states from before the pass, text by text: the committed state, then the drafted ones. The states of
    new nodes follow in the order in which they are appended.

    Args:
        texts: the layer's states of each text.
        nodes: new nodes of all texts.
    """

    def __init__(self, texts: Sequence[LayerStates], nodes: int) -> None:
        states_by_key: dict[tuple[str, int], list[Tensor]] = {}
        for text in texts:
            for key, state in (*text.committed.items(), *text.drafted.items()):
                states_by_key.setdefault(key, []).append(state)
        self._used = max((sum(map(len, tensors)) for tensors in states_by_key.values()), default=0)
        self._size = self._used + nodes
        self._states = {key: self._grown(torch.cat(tensors)) for key, tensors in states_by_key.items()}

    def take(self, rows: Tensor) -> States:
        """Copies of the states in these rows."""
        return {key: state[rows] for key, state in self._states.items()}

    def append(self, states: States) -> None:
        """Append the states after the nodes of a level."""
        start = self._used
        for key, state in states.items():
            if key not in self._states:
                self._states[key] = state.new_empty(self._size, *state.shape[1:])
            self._used = start + len(state)
            self._states[key][start : self._used] = state

    def _grown(self, known_states: Tensor) -> Tensor:
        """Append room for the states of new nodes."""
        room = known_states.new_empty(self._size - len(known_states), *known_states.shape[1:])
        return torch.cat((known_states, room))


class RecurrentStates:
    """The states of all recurrent layers for one text.

    Args:
        names: names of the layers.

    Attributes:
        layers: their states by name.
        is_reading: whether all tokens of the pass will be committed. Then layers keep the last token's states only.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.layers = {name: LayerStates() for name in names}
        self.is_reading = False

    def __bool__(self) -> bool:
        """Whether the model has recurrent layers."""
        return bool(self.layers)

    @property
    def has_committed(self) -> bool:
        """Whether a token has been committed, after which there are states."""
        return any(states.committed for states in self.layers.values())

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Context manager: set `is_reading` for a pass whose tokens will all be committed, and for that commit."""
        self.is_reading = True
        try:
            yield
        finally:
            self.is_reading = False

    def commit(self, rows: Sequence[int]) -> None:
        """Commit the states after the last of these drafted rows, and drop all drafted states."""
        for states in self.layers.values():
            if rows:
                row = -1 if self.is_reading else rows[-1]
                states.committed = {key: state[row : row + 1 or None].clone() for key, state in states.drafted.items()}
            states.drafted = {}

    def reset(self) -> None:
        """Forget the text."""
        self.layers = {name: LayerStates() for name in self.layers}

    @property
    def nbytes(self) -> int:
        """Memory of the states in bytes."""
        return sum(states.nbytes for states in self.layers.values())
