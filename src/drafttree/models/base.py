"""The protocols by which logits are computed, the same for target and drafter, and the prefill."""

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from drafttree.models.kv_cache import TreeCache
from drafttree.models.segment import Segment


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
            cache: the tokens attend to all of its committed rows, or to those in its window, and to the drafted rows
                that `visible` allows.
            tokens: `[batch, nodes]` token ids.
            positions: `[batch, nodes]` absolute positions.
            visible: bool `[batch, nodes, drafted]`: which drafted rows each token attends to. The last `nodes` of
                them are the tokens themselves.
            last_only: return only the last token's logits.
            hidden_layers: which hidden states to return, counted as transformers' `hidden_states`: index i is the
                input of layer i. No other layer's states are kept.
        """
        ...


class PackedBackend(Backend, Protocol):
    """A backend that scores several requests in one pass; `drafttree.models.forward_packed` serves the others too.

    Attributes:
        shares_passes: whether it does so for its model; else it runs one request after the other.
    """

    @property
    def shares_passes(self) -> bool: ...

    def forward_packed(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        """Score the segments of several requests and append their rows to each KV cache, as `forward` does for one.

        All nodes lie behind each other in a pass of batch 1, and only attention knows whose rows are whose. Nothing
        is padded, and requests join and leave between passes.

        Args:
            segments: each with a KV cache of its own.
            hidden_layers: which hidden states to return, as for `forward`.

        Returns:
            For every segment the logits `[1, wanted, vocab]`, and hidden states `[1, nodes, hidden]` of all its nodes.
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


RowReader = Callable[[Tensor], None]
"""Told of the logits `[tokens, vocab]` of every pass over a prompt."""


def prefill(
    model: Backend,
    cache: TreeCache,
    tokens: list[int],
    hidden_layers: tuple[int, ...] = (),
    chunk: int = 512,
    read: RowReader | None = None,
) -> tuple[int, tuple[Tensor, ...]]:
    """Append committed tokens to the KV cache, at most `chunk` of them in a pass.

    Args:
        model: that reads them.
        cache: of its keys and values.
        tokens: their ids.
        hidden_layers: whose outputs are wanted.
        chunk: tokens of a pass at most.
        read: told of all rows of logits; None to compute none but the last one.

    Returns:
        The number of passes, and the hidden layers asked for, each `[batch, tokens, hidden]`.
    """
    starts = range(0, len(tokens), chunk)
    outputs = [append(model, cache, tokens[start : start + chunk], hidden_layers, read) for start in starts]
    return len(starts), tuple(torch.cat(parts, 1) for parts in zip(*(out.hidden for out in outputs), strict=True))


def append(
    model: Backend,
    cache: TreeCache,
    tokens: list[int],
    hidden_layers: tuple[int, ...] = (),
    read: RowReader | None = None,
) -> Output:
    """Append committed tokens to the KV cache in one pass and return the last one's logits `[batch, 1, vocab]`."""
    with cache.reading():
        output = _read(model, cache, tokens, hidden_layers, read)
        cache.commit(range(len(tokens)))
    return output


def prefill_and_score(
    model: Backend,
    cache: TreeCache,
    tokens: list[int],
    hidden_layers: tuple[int, ...] = (),
    chunk: int = 512,
    read: RowReader | None = None,
) -> tuple[int, tuple[Tensor, ...], Output]:
    """As `prefill`, but the last token is scored as well, and its row becomes a drafted one: the root of a tree.

    A recurrent layer reads many tokens by other sums than it decodes with, and some by another formula (Nemotron-H
    bounds its time steps). transformers' `generate` reads the whole prompt in the first way.

    Returns:
        The number of passes; the hidden layers asked for, `[batch, tokens - 1, hidden]`; the last token's output.
    """
    chunk -= len(tokens) % chunk == 1  # a last pass over a single token would be decoding
    cut = (len(tokens) - 1) // chunk * chunk
    passes, hidden = prefill(model, cache, tokens[:cut], hidden_layers, chunk, read)
    with cache.reading():
        output = _read(model, cache, tokens[cut:], hidden_layers, read)
        cache.hold_last()
    last = [layer[:, :-1] for layer in output.hidden]
    before = tuple(torch.cat(parts, 1) for parts in zip(hidden, last, strict=True)) if passes else tuple(last)
    return passes + 1, before, Output(output.logits, tuple(layer[:, -1:] for layer in output.hidden))


def _read(
    model: Backend, cache: TreeCache, tokens: list[int], hidden_layers: tuple[int, ...], read: RowReader | None
) -> Output:
    nodes = Segment.of_text(cache, tokens, model.device)[:4]
    output = model.forward(*nodes, last_only=read is None, hidden_layers=hidden_layers)
    if read:
        read(output.logits[0])
    return output._replace(logits=output.logits[:, -1:])
