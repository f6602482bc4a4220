"""The protocols by which logits are computed, the same for target and drafter, and the passes over prompts."""

from collections.abc import Callable, Sequence
from typing import Protocol

import torch
from torch import Tensor

from drafttree.models.cache.kv_cache import TreeCache
from drafttree.models.segment import Output, Segment
from drafttree.models.windows import LossyWindow


class Scorer(Protocol):
    """Scores the nodes of trees of tokens by a decoder-only model.

    Attributes:
        device: the device where its tensors are.
        shares_passes: whether segments share a pass for this model; else they run one after the other.
    """

    device: torch.device

    @property
    def shares_passes(self) -> bool: ...

    def new_cache(self, capacity: int) -> TreeCache:
        """Make an empty KV cache for one sequence, with room for `capacity` tokens at first, drafted included."""
        ...

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        """Score the nodes of one request or several, and append their rows to the drafted ones of each KV cache.

        In a pass that is shared all nodes lie behind each other as one sequence, and only attention knows whose rows
        are whose. Nothing is padded, and requests join and leave between passes.

        Args:
            segments: each with a KV cache of its own; for an empty list no pass is run.
            hidden_layers: which hidden states to return, counted as transformers' `hidden_states`: index
                i is the input of layer i. No other layer's states are kept.

        Returns:
            The output of every segment.
        """
        ...


class Backend(Scorer, Protocol):
    """One way to run a transformers model over trees of tokens.

    Attributes:
        exact_text: whether a token's logits are the same bit for bit in every pass, and so all texts those of plain
            decoding.
        lossy_window: the rows that tokens attend to, None for all of them.
        packed_nbytes: memory of packed copies of the weights, beside the weights themselves.
        fallback_reason: which faster backends were refused for the module, and why; None if none was.
    """

    @property
    def exact_text(self) -> bool: ...

    @property
    def lossy_window(self) -> LossyWindow | None: ...

    @property
    def packed_nbytes(self) -> int: ...

    @property
    def fallback_reason(self) -> str | None: ...


class Model(Scorer, Protocol):
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
"""A function that is given the logits `[tokens, vocab]` of every pass over a prompt."""


def prefill(
    model: Scorer,
    cache: TreeCache,
    tokens: list[int],
    hidden_layers: tuple[int, ...] = (),
    chunk: int = 512,
    read: RowReader | None = None,
) -> tuple[int, tuple[Tensor, ...]]:
    """Append committed tokens to the KV cache, at most `chunk` of them in a pass.

    Args:
        model: reads the tokens.
        cache: holds its keys and values.
        tokens: ids to append.
        hidden_layers: hidden states to return, counted as in `Scorer.forward`.
        chunk: largest number of tokens of a pass.
        read: is given the logits of all tokens; if it is None, only those of each pass's last token are computed.

    Returns:
        The number of passes, and the hidden states asked for, each `[1, tokens, hidden]`.
    """
    starts = range(0, len(tokens), chunk)
    outputs = [append(model, cache, tokens[start : start + chunk], hidden_layers, read) for start in starts]
    return len(starts), tuple(torch.cat(chunks, 1) for chunks in zip(*(out.hidden for out in outputs), strict=True))


def append(
    model: Scorer,
    cache: TreeCache,
    tokens: list[int],
    hidden_layers: tuple[int, ...] = (),
    read: RowReader | None = None,
) -> Output:
    """Append committed tokens to the KV cache in one pass and return the last one's logits `[1, 1, vocab]`."""
    with cache.recurrent.reading():
        output = _read(model, cache, tokens, hidden_layers, read)
        cache.commit(range(len(tokens)))
    return output


def prefill_and_score(
    model: Scorer,
    cache: TreeCache,
    tokens: list[int],
    hidden_layers: tuple[int, ...] = (),
    chunk: int = 512,
    read: RowReader | None = None,
) -> tuple[int, tuple[Tensor, ...], Output]:
    """Append tokens as `prefill` does, but leave the last one's row drafted: it is the root of a tree, and is scored.

    A recurrent layer reads many tokens by other sums than it decodes with, and some by another formula (Nemotron-H
    bounds its time steps). transformers' `generate` reads the whole prompt in the first way.

    Returns:
        The number of passes; the hidden layers asked for, `[1, tokens - 1, hidden]`; the last token's output.
    """
    chunk -= len(tokens) % chunk == 1  # a last pass over a single token would be decoding
    cut = (len(tokens) - 1) // chunk * chunk
    passes, hidden_states = prefill(model, cache, tokens[:cut], hidden_layers, chunk, read)
    with cache.recurrent.reading():
        output = _read(model, cache, tokens[cut:], hidden_layers, read)
        cache.hold_last()
    last_chunk = [layer[:, :-1] for layer in output.hidden]
    prompt_states = (
        tuple(torch.cat(chunks, 1) for chunks in zip(hidden_states, last_chunk, strict=True))
        if passes
        else tuple(last_chunk)
    )
    return passes + 1, prompt_states, Output(output.logits, tuple(layer[:, -1:] for layer in output.hidden))


def _read(
    model: Scorer, cache: TreeCache, tokens: list[int], hidden_layers: tuple[int, ...], read: RowReader | None
) -> Output:
    segment = Segment.of_text(cache, tokens)
    if read:
        segment = segment._replace(wanted=slice(None))
    (output,) = model.forward([segment], hidden_layers=hidden_layers)
    if read:
        read(output.logits[0])
    return output._replace(logits=output.logits[:, -1:])
