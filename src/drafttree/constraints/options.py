"""Makes logits processors from generation options, with the names, classes and order of transformers' `generate`.

An option therefore gives the same text as in transformers. `drafttree.constraints.refusals` refuses options that tree
drafting does not support; none is ignored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypedDict

import torch
from torch import Tensor
from transformers import (
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    InfNanRemoveLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from drafttree.core.counts import is_token_ids, is_whole
from drafttree.core.errors import ConfigError


class ProcessorOptions(TypedDict, total=False):
    """Options of transformers' `generate` that become logits processors; None turns one off."""

    sequence_bias: list | dict | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    bad_words_ids: list[list[int]] | None
    min_length: int | None
    min_new_tokens: int | None
    prefix_allowed_tokens_fn: Callable[[int, Tensor], list[int]] | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | list[int] | None
    remove_invalid_values: bool | None
    exponential_decay_length_penalty: tuple[int, float] | None
    suppress_tokens: list[int] | None
    begin_suppress_tokens: list[int] | None


@dataclass(frozen=True)
class ProcessorContext:
    """The properties of a request that its processors depend on.

    Attributes:
        prompt_length: the number of tokens of the prompt.
        limit: the most tokens of prompt and generated text together.
        eos: token ids that end the text.
        vocab_size: size of the target's vocabulary.
        device: device of the target's logits.
    """

    prompt_length: int
    limit: int
    eos: tuple[int, ...]
    vocab_size: int
    device: torch.device


MAX_FACTOR = 1e6
MAX_BIAS = 1e30
"""Limits far beyond values that change a text, and far below those that overflow float32."""


def _repetition_penalty(penalty: float, _: ProcessorContext) -> LogitsProcessor:
    if not isinstance(penalty, Real) or not 1 / MAX_FACTOR <= penalty <= MAX_FACTOR:
        raise ValueError(f"it must be a number above 0, between {1 / MAX_FACTOR:g} and {MAX_FACTOR:g}")
    return RepetitionPenaltyLogitsProcessor(float(penalty))


def _bad_words(words: list[list[int]], context: ProcessorContext) -> LogitsProcessor:
    if not all(words):
        raise ValueError("a sequence of tokens must not be empty")
    return NoBadWordsLogitsProcessor(words, list(context.eos) or None)


def _token(token: Any) -> int:
    if not is_whole(token):
        raise ValueError("it must be a token id")
    return token


def _tokens(tokens: Any) -> list[int]:
    if not is_token_ids(tokens):
        raise ValueError("it must be a list of token ids")
    return list(tokens)


def _min_length(length: int, context: ProcessorContext) -> LogitsProcessor | None:
    if not isinstance(length, Integral) or length < 0:
        raise ValueError("it must be a whole number of at least 0")
    return MinLengthLogitsProcessor(length, list(context.eos), device=str(context.device)) if context.eos else None


def _min_new_tokens(count: int, context: ProcessorContext) -> LogitsProcessor | None:
    if not isinstance(count, Integral) or not 0 <= count <= context.limit - context.prompt_length:
        raise ValueError(f"it must be between 0 and max_new_tokens, {context.limit - context.prompt_length}")
    eos = list(context.eos)
    device = str(context.device)
    return MinNewTokensLengthLogitsProcessor(context.prompt_length, count, eos, device=device) if eos else None


def _prefix_constrained(allowed: Callable[[int, Tensor], list[int]], _: ProcessorContext) -> LogitsProcessor:
    if not callable(allowed):
        raise ValueError("it must be a function of the batch index and the token ids")
    return PrefixConstrainedLogitsProcessor(allowed, 1)


def _exponential_decay(penalty: tuple[int, float], context: ProcessorContext) -> LogitsProcessor:
    if not context.eos:
        raise ValueError("there is no EOS token to favour")
    match penalty:
        case [Integral() as begin, Real() as factor] if not isinstance(begin, bool) and not isinstance(factor, bool):
            if not 0 < factor <= MAX_FACTOR:
                raise ValueError(f"the factor must be above 0 and at most {MAX_FACTOR:g}")
        case _:
            raise ValueError("it must be a pair: after how many tokens it begins, and the factor it grows by")
    return ExponentialDecayLengthPenalty(penalty, list(context.eos), context.prompt_length)


PROCESSOR_FACTORIES: dict[str, Callable[[Any, ProcessorContext], LogitsProcessor | None]] = {
    "sequence_bias": lambda bias, _: SequenceBiasLogitsProcessor(_bias_by_sequence(bias)),  # pyright: ignore[reportArgumentType]
    "repetition_penalty": _repetition_penalty,
    "no_repeat_ngram_size": lambda size, _: NoRepeatNGramLogitsProcessor(size),
    "bad_words_ids": _bad_words,
    "min_length": _min_length,
    "min_new_tokens": _min_new_tokens,
    "prefix_allowed_tokens_fn": _prefix_constrained,
    "forced_bos_token_id": lambda token, _: ForcedBOSTokenLogitsProcessor(_token(token)),
    "forced_eos_token_id": lambda token, context: ForcedEOSTokenLogitsProcessor(
        context.limit, token if is_whole(token) else _tokens(token), device=str(context.device)
    ),
    "remove_invalid_values": lambda *_: InfNanRemoveLogitsProcessor(),
    "exponential_decay_length_penalty": _exponential_decay,
    "suppress_tokens": lambda tokens, context: SuppressTokensLogitsProcessor(
        _tokens(tokens), device=str(context.device)
    ),
    "begin_suppress_tokens": lambda tokens, context: SuppressTokensAtBeginLogitsProcessor(
        _tokens(tokens), context.prompt_length, device=str(context.device)
    ),
}
NEUTRAL_VALUES: dict[str, Any] = {
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "remove_invalid_values": False,
}
"""Values for which transformers makes no processor."""
TOKEN_OPTIONS = (
    "sequence_bias",
    "bad_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
)
"""Options whose values are token ids, which are checked against the vocabulary."""


def make_processors(
    options: Mapping[str, Any], custom: Iterable[LogitsProcessor], context: ProcessorContext
) -> LogitsProcessorList:
    """Make the processors of transformers' `generate` for some options, in its order, followed by the custom ones.

    As in transformers, a custom processor replaces the one of the same type that an option makes.

    Args:
        options: values of `ProcessorOptions`.
        custom: processors of the user.
        context: the request that they are for.

    Raises:
        ConfigError: a value is out of range.
    """
    custom_processors = list(custom)
    custom_by_type = dict[type, LogitsProcessor]()
    for processor in custom_processors:
        custom_by_type.setdefault(type(processor), processor)
    processors = LogitsProcessorList()
    for name in PROCESSOR_FACTORIES:
        value = options.get(name)
        if value is not None and not _is_neutral(name, value):
            processor = _make(name, value, context)
            if processor is not None:
                processors.append(custom_by_type.get(type(processor), processor))
    further_processors = [processor for processor in custom_processors if processor not in processors]
    return LogitsProcessorList([*processors, *further_processors])


def _is_neutral(name: str, value: Any) -> bool:
    """Whether transformers makes no processor for a value. A bool for a number is not neutral: `_make` refuses it."""
    neutral_value = NEUTRAL_VALUES.get(name)
    if isinstance(value, bool) and not isinstance(neutral_value, bool):
        return False
    return value == neutral_value


def _make(name: str, value: Any, context: ProcessorContext) -> LogitsProcessor | None:
    try:
        if isinstance(value, bool) and name != "remove_invalid_values":
            raise ValueError("it must be a number")
        if name in TOKEN_OPTIONS:
            _check_tokens([*_bias_by_sequence(value)] if name == "sequence_bias" else value, context.vocab_size)
        return PROCESSOR_FACTORIES[name](value, context)
    except (ValueError, TypeError, AttributeError, LookupError, OverflowError, RuntimeError) as error:
        raise ConfigError(f"{name} is {value!r}: {error}") from None


def _check_tokens(value: object, vocab_size: int) -> None:
    invalid_ids = [token for token in _token_ids(value) if not 0 <= token < vocab_size]
    if invalid_ids:
        raise ValueError(f"token id {invalid_ids[0]} is outside the vocabulary of {vocab_size}")


def _bias_by_sequence(bias: Any) -> dict[tuple[int, ...], float]:
    """Return `sequence_bias` as a mapping, since transformers 5.17 refuses token 0 in a list of pairs."""
    try:
        items = bias.items() if isinstance(bias, Mapping) else bias
        sequence_biases = [(tuple(tokens), number) for tokens, number in items]
        invalid_numbers = [number for tokens, number in sequence_biases if not tokens or not number <= MAX_BIAS]
    except (TypeError, ValueError):
        raise ValueError(f"it must be pairs of a token sequence and a number of at most {MAX_BIAS:g}") from None
    if invalid_numbers:
        raise ValueError(
            f"{invalid_numbers[0]!r} is not a pair of a token sequence and a number of at most {MAX_BIAS:g}"
        )
    return dict(sequence_biases)


def _token_ids(value: object) -> Iterator[int]:
    """Yield every token id in nested lists."""
    if isinstance(value, Integral) and not isinstance(value, bool):
        yield int(value)
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for element in value:
            yield from _token_ids(element)
    else:
        raise ValueError(f"{value!r} is not a token id")


class OccurrencePenalty(LogitsProcessor):
    """Presence and frequency penalties on the logits of generated tokens, as OpenAI and vLLM define them.

    `logits -= presence * (count > 0) + frequency * count`, where `count` leaves out the prompt.

    Args:
        prompt_length: the number of tokens of the prompt.
        presence: penalty for each token that occurs.
        frequency: penalty for each occurrence of a token.
    """

    def __init__(self, prompt_length: int, presence: float, frequency: float) -> None:
        self._prompt_length = prompt_length
        self._presence = presence
        self._frequency = frequency

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        output_ids = input_ids[:, self._prompt_length :]
        counts = torch.zeros_like(scores).scatter_add_(1, output_ids, torch.ones_like(output_ids, dtype=scores.dtype))
        return scores - self._presence * (counts > 0) - self._frequency * counts
