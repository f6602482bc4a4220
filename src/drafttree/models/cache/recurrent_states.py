"""The states of recurrent layers: what they keep of a text in place of keys and values."""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

States = dict[tuple[str, int], Tensor]
"""States by kind ("conv" or "recurrent") and number, each `[tokens, ...]`."""


class LayerStates:
    """The states of one recurrent layer for one text.

    Attributes:
        committed: after the last committed token, `[1, ...]`; empty before the first.
        drafted: after every drafted node, `[drafted, ...]`; after a pass that only reads, of its last token.
    """

    def __init__(self) -> None:
        self.committed: States = {}
        self.drafted: States = {}

    def before(self, nodes: int, parents: Tensor | None) -> States:
        """The states the nodes of a level go on from, to be changed at will: those of their parents."""
        if parents is None:
            return {key: state.repeat_interleave(nodes, 0) for key, state in self.committed.items()}
        return {key: state[parents] for key, state in self.drafted.items()}

    def store(self, states: States, rows: Tensor, total: int) -> None:
        """Store the states of these rows, of so many drafted ones in all."""
        for key, state in states.items():
            known = self.drafted.get(key, state[:0])
            if len(known) < total:
                known = torch.cat((known, known.new_zeros(total - len(known), *state.shape[1:])))
            known[rows] = state
            self.drafted[key] = known

    @property
    def nbytes(self) -> int:
        """Memory of the states in bytes."""
        return sum(state.nbytes for states in (self.committed, self.drafted) for state in states.values())


class RecurrentStates:
    """The states of all recurrent layers for one text.

    Args:
        names: names of the layers.

    Attributes:
        layers: their states by name.
        is_reading: whether all tokens of the pass will be committed, so that layers keep the last one's state only.
    """

    def __init__(self, names: Iterable[str] = ()) -> None:
        self.layers = {name: LayerStates() for name in names}
        self.is_reading = False

    def __bool__(self) -> bool:
        """Whether the model has recurrent layers."""
        return bool(self.layers)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """During a pass all of whose tokens will be committed, and during that commit."""
        self.is_reading = True
        try:
            yield
        finally:
            self.is_reading = False

    def commit(self, rows: Sequence[int]) -> None:
        """Go on from the last of these drafted rows, and drop the others."""
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
