"""What a drafter is: something that, given a sequence, says how likely each token is to follow each drafted path."""

from typing import Protocol

import torch
from torch import Tensor

HiddenStates = tuple[Tensor, ...]
"""The target's hidden states at consecutive tokens, each `[1, tokens, hidden]`: one for each layer a drafter reads."""


class DraftLogits(Protocol):
    """What growing a tree needs of a draft."""

    def root(self) -> Tensor:
        """Logits `[batch, 1, vocab]` of what follows the committed tokens; the first pass of a round."""
        ...

    def expand(self, tokens: Tensor, origins: Tensor) -> Tensor:
        """Logits `[batch, frontier, vocab]` of what follows each node of a new frontier, in one pass.

        Args:
            tokens: `[batch, frontier]` token ids of the nodes.
            origins: `[batch, frontier]` index of each node's parent in the frontier before (the root's is 0).
        """
        ...


class DraftSession(DraftLogits, Protocol):
    """A drafter's view of one sequence while it is generated. It owns whatever cache it needs.

    A row of logits may be wider than the target's vocabulary. What lies beyond it counts among the probabilities and
    is never drafted: a drafter that knows only some tokens puts them there, at -inf all others, and beyond the
    vocabulary how likely it is to be none of them.
    """

    @property
    def passes(self) -> int:
        """Drafter forward passes so far, reading the prompt not included."""
        ...

    @property
    def seconds(self) -> float:
        """Time spent in them; on CUDA, reading it waits for the last of them."""
        ...

    @property
    def nbytes(self) -> int:
        """Memory of what it keeps of the text."""
        ...

    def prefill(self, hidden_states: HiddenStates) -> None:
        """Read the prompt, as far as the first round does not; counted neither in `passes` nor in `seconds`.

        Args:
            features: of every prompt token but the last.
        """
        ...

    def commit(self, tokens: list[int], hidden_states: HiddenStates) -> None:
        """Take note of the tokens a round has committed; it may be a round that asked this draft for nothing.

        Args:
            tokens: the accepted path below the root, then the bonus token.
            features: of the accepted path, root included: one row for each token, made by the token before it.
        """
        ...


class Drafter(Protocol):
    """Makes a `DraftSession` for every sequence.

    Attributes:
        vocab_size: size of its vocabulary, without which no tree can be verified.
        context: positions it can attend to, None for any number.
        levels: levels below the root it can draft, None for any number.
        hidden_layers: the target's hidden states it reads, as `Model.forward` counts them; empty for none.
        nbytes: memory of its weights, those it shares with the target left out.
    """

    vocab_size: int
    context: int | None
    levels: int | None
    hidden_layers: tuple[int, ...]
    nbytes: int

    def start(self, prompt: list[int], capacity: int) -> DraftSession:
        """Begin a sequence from its prompt's token ids; caches should have room for `capacity` tokens."""
        ...


def extend_visible(visible: Tensor, origins: Tensor) -> Tensor:
    """Which drafted rows each node of a new frontier attends to: those its parent does, and itself.

    Args:
        visible: bool `[batch, parents, drafted]` of the frontier before.
        origins: `[batch, frontier]` index of each node's parent in it.

    Returns:
        Bool `[batch, frontier, drafted + frontier]`.
    """
    inherited = visible.gather(1, origins[..., None].expand(-1, -1, visible.shape[2]))
    itself = torch.eye(origins.shape[1], dtype=torch.bool, device=origins.device).expand(len(origins), -1, -1)
    return torch.cat((inherited, itself), 2)
