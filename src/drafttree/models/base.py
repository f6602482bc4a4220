"""How logits are computed: one protocol for target and drafter alike."""

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drafttree.models.kv_cache import TreeCache


class Output(NamedTuple):
    """What a pass returns.

    Attributes:
        logits: `[batch, nodes, vocab]`.
        hidden: the hidden layers asked for, each `[batch, nodes, hidden]`.
    """

    logits: Tensor
    hidden: tuple[Tensor, ...] = ()


class Model(Protocol):
    """A decoder-only model that scores trees of tokens against a cache.

    Attributes:
        vocab_size: width of the logits.
        context: positions the model was made for, None where it has no limit.
        device: where its tensors live.
        nbytes: memory of its weights.
    """

    vocab_size: int
    context: int | None
    device: torch.device
    nbytes: int

    def new_cache(self, batch: int, capacity: int) -> TreeCache:
        """An empty cache for `batch` sequences, with room for `capacity` tokens at first, drafted ones included."""
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
        """Score tokens and append their keys and values to the cache's drafted rows.

        Args:
            cache: what the tokens attend to: every committed row, and the drafted rows `visible` allows.
            tokens: `[batch, nodes]` token ids.
            positions: `[batch, nodes]` absolute positions.
            visible: bool `[batch, nodes, drafted]`: which drafted rows each token attends to. The last `nodes` of
                them are the tokens themselves.
            last_only: return only the last token's logits.
            hidden_layers: which hidden states to return, counted as transformers' `hidden_states`: index i is the
                input of layer i.
        """
        ...


def read(
    model: Model, cache: TreeCache, tokens: list[int], hidden_layers: tuple[int, ...] = (), chunk: int = 512
) -> tuple[int, tuple[Tensor, ...]]:
    """Prefill: append committed tokens to the cache, at most `chunk` of them in a pass.

    Returns:
        The number of passes, and the hidden layers asked for, each `[batch, tokens, hidden]`.
    """
    starts = range(0, len(tokens), chunk)
    outputs = [append(model, cache, tokens[start : start + chunk], hidden_layers) for start in starts]
    return len(starts), tuple(torch.cat(parts, 1) for parts in zip(*(out.hidden for out in outputs), strict=True))


def append(model: Model, cache: TreeCache, tokens: list[int], hidden_layers: tuple[int, ...] = ()) -> Output:
    """Append committed tokens to the cache in one pass; the last one's logits `[batch, 1, vocab]`."""
    count = len(tokens)
    ids = torch.tensor([tokens], device=model.device)
    positions = torch.arange(cache.length, cache.length + count, device=model.device)[None]
    causal = torch.ones(1, count, count, dtype=torch.bool, device=model.device).tril()
    output = model.forward(cache, ids, positions, causal, last_only=True, hidden_layers=hidden_layers)
    cache.commit(range(count))
    return output
