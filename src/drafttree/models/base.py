"""The protocols by which logits are computed, the same for target and drafter, and the prefill."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drafttree.models.kv_cache import TreeCache


class Output(NamedTuple):
    """The result of a forward pass.

    Attributes:
        logits: `[batch, nodes, vocab]`.
        hidden: the hidden states of the layers asked for, each `[batch, nodes, hidden]`.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


class Backend(Protocol):
    """One way to run a decoder-only model over trees of tokens.

    Attributes:
        device: where its tensors are.
    """

    device: torch.device

    def new_cache(self, batch: int, capacity: int) -> TreeCache:
        """Make an empty KV cache for `batch` sequences, with room for `capacity` tokens at first, drafted included."""
        ...

    def forward(
        self,
        cache: TreeCache,
        tokens: Tensor,
        positions: Tensor,
        visible: Tensor,
        *,
        last_only: bool = False,
        hidden_layers: tuple[int, ...] = (),
    ) -> Output:
        """Score tokens and append their keys and values to the drafted rows of the KV cache.

        Args:
            cache: the tokens attend to all of its committed rows, and to the drafted rows that `visible` allows.
            tokens: `[batch, nodes]` token ids.
            positions: `[batch, nodes]` absolute positions.
            visible: bool `[batch, nodes, drafted]`: which drafted rows each token attends to. The last `nodes` of
                them are the tokens themselves.
            last_only: return only the last token's logits.
            hidden_layers: which hidden states to return, counted as transformers' `hidden_states`: index i is the
                input of layer i. No other layer's states are kept.
        """
        ...


class Model(Backend, Protocol):
    """A decoder-only model that scores trees of tokens.

    Attributes:
        vocab_size: width of the logits.
        context: largest number of positions it can be used for, None if there is no limit.
        rope_switch: the position from which the KV cache of a text has to be computed anew, since LongRoPE then has
            other frequencies; None for other models.
        nbytes: memory of its weights.
    """

    vocab_size: int
    context: int | None
    rope_switch: int | None
    nbytes: int


def prefill(
    model: Backend, cache: TreeCache, tokens: list[int], hidden_layers: tuple[int, ...] = (), chunk: int = 512
) -> tuple[int, tuple[Tensor, ...]]:
    """Append committed tokens to the KV cache, at most `chunk` of them in a pass.

    Returns:
        The number of passes, and the hidden layers asked for, each `[batch, tokens, hidden]`.
    """
    starts = range(0, len(tokens), chunk)
    outputs = [append(model, cache, tokens[start : start + chunk], hidden_layers) for start in starts]
    return len(starts), tuple(torch.cat(parts, 1) for parts in zip(*(out.hidden for out in outputs), strict=True))


def append(model: Backend, cache: TreeCache, tokens: list[int], hidden_layers: tuple[int, ...] = ()) -> Output:
    """Append committed tokens to the KV cache in one pass and return the last one's logits `[batch, 1, vocab]`."""
    count = len(tokens)
    ids = torch.tensor([tokens], device=model.device)
    positions = torch.arange(cache.length, cache.length + count, device=model.device)[None]
    causal = torch.ones(1, count, count, dtype=torch.bool, device=model.device).tril()
    with cache.reading():
        output = model.forward(cache, ids, positions, causal, last_only=True, hidden_layers=hidden_layers)
        cache.commit(range(count))
    return output
