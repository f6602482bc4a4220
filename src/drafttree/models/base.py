"""The protocols of models that compute logits, for target and drafter alike, and the passes over prompts."""

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
        device: device of its tensors.
        shares_passes: whether several segments run in one pass; if not, each has a pass of its own.
    """

    device: torch.device

    @property
    def shares_passes(self) -> bool: ...

    def new_cache(self, capacity: int) -> TreeCache:
        """Make an empty KV cache for one text, at first with room for `capacity` rows, drafted ones included."""
        ...

    def forward(self, segments: Sequence[Segment], *, hidden_layers: tuple[int, ...] = ()) -> list[Output]:
        """Score the nodes of one request or several, and append their rows to the drafted ones of each KV cache.

        In a shared pass the nodes of all segments form one sequence, and only attention knows which rows belong to
        which segment. Nothing is padded, and requests may join and leave between passes.

        Args:
            segments: the nodes of each request, each with its own KV cache; for an empty list no pass is run.
            hidden_layers: which hidden states to return, counted as transformers' `hidden_states`: index i is the input
                of layer i.

        Returns:
            The output of every segment.
        """
        ...


class Backend(Scorer, Protocol):
    """One way to run a transformers model over trees of tokens.

    Attributes:
        name: its class, and those of the backends that it wraps.
        exact_text: whether a token's logits are bit for bit the same in every pass, so that every text equals that of
            plain decoding.
        lossy_window: the window of rows that tokens attend to, None if they attend to all.
        packed_nbytes: bytes of packed copies of the weights, which are not among `Model.nbytes`.
        fallback_reason: which faster backends were refused for the module, and why; None if none was.
    """

    @property
    def name(self) -> str: ...

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
        context: largest number of positions of a text, None for no limit.
        rope_switch: the position from which LongRoPE uses its long frequencies, None if no text uses them. The KV cache
            has to be computed anew there.
        nbytes: bytes of its weights.
    """

    vocab_size: int
    context: int | None
    rope_switch: int | None
    nbytes: int


RowReader = Callable[[Tensor], None]
"""Called with the logits `[tokens, vocab]` of each pass over a prompt."""


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
        read: called with the logits of all tokens, pass by pass. If None, only the last token of a pass gets logits.

    Returns:
        The number of passes, and the hidden states asked for, each `[1, tokens, hidden]`.
    """
    chunk_states = []
    for start in range(0, len(tokens), chunk):
        output = append(model, cache, tokens[start : start + chunk], hidden_layers, read)
        chunk_states.append(output.hidden)
    return len(chunk_states), _joined(chunk_states)


def _joined(chunks: Sequence[tuple[Tensor, ...]]) -> tuple[Tensor, ...]:
    """Concatenate the states of each layer over chunks of tokens; a chunk has the states of all layers."""
    return tuple(torch.cat(layer_chunks, 1) for layer_chunks in zip(*chunks, strict=True))


def append(
    model: Scorer,
    cache: TreeCache,
    tokens: list[int],
    hidden_layers: tuple[int, ...] = (),
    read: RowReader | None = None,
) -> Output:
    """Append committed tokens to the KV cache in one pass; the output has the last token's logits `[1, 1, vocab]`."""
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
    """Append tokens as `prefill` does, but leave the last one's row drafted, as the root of a tree, and score it.

    Recurrent layers add up in another order when they read many tokens than when they decode one. Some use another
    formula (Nemotron-H bounds its time steps). So the prompt's last token is read along with those before it, as in
    transformers' `generate`.

    Returns:
        The number of passes; the hidden layers asked for, `[1, tokens - 1, hidden]`; the last token's output.
    """
    chunk -= len(tokens) % chunk == 1  # a last pass over a single token would decode it
    cut = (len(tokens) - 1) // chunk * chunk
    passes, hidden_states = prefill(model, cache, tokens[:cut], hidden_layers, chunk, read)
    with cache.recurrent.reading():
        output = _read(model, cache, tokens[cut:], hidden_layers, read)
        cache.hold_last()
    last_chunk = tuple(layer[:, :-1] for layer in output.hidden)
    prompt_states = _joined([hidden_states, last_chunk]) if passes else last_chunk
    return passes + 1, prompt_states, Output(output.logits, tuple(layer[:, -1:] for layer in output.hidden))


def _read(
    model: Scorer, cache: TreeCache, tokens: list[int], hidden_layers: tuple[int, ...], row_reader: RowReader | None
) -> Output:
    segment = Segment.of_text(cache, tokens)
    if row_reader:
        segment = segment._replace(wanted=slice(None))
    (output,) = model.forward([segment], hidden_layers=hidden_layers)
    if row_reader:
        row_reader(output.logits[0])
    return output._replace(logits=output.logits[:, -1:])
