"""Generation options by the names transformers gives them, as the processors its `generate` makes of them.

They are the same classes in the same order, so a text generated here with an option is the text transformers writes
with it. What speculation on one text cannot serve is refused by name, never ignored.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any, TypedDict

import torch
from transformers import (
    ExponentialDecayLengthPenalty,
    ForcedBOSTokenLogitsProcessor,
    ForcedEOSTokenLogitsProcessor,
    GenerationConfig,
    InfNanRemoveLogitsProcessor,
    LogitsProcessor,
    LogitsProcessorList,
    MinLengthLogitsProcessor,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    SuppressTokensAtBeginLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from drafttree.core.errors import ConfigError, unknown


class ProcessorOptions(TypedDict, total=False):
    """Options of transformers' `GenerationConfig` that become logits processors; None leaves one out."""

    sequence_bias: list | dict | None
    repetition_penalty: float | None
    no_repeat_ngram_size: int | None
    bad_words_ids: list[list[int]] | None
    min_length: int | None
    min_new_tokens: int | None
    forced_bos_token_id: int | None
    forced_eos_token_id: int | list[int] | None
    remove_invalid_values: bool | None
    exponential_decay_length_penalty: tuple[int, float] | None
    suppress_tokens: list[int] | None
    begin_suppress_tokens: list[int] | None


@dataclass(frozen=True)
class ProcessorContext:
    """What processors need to know of the text they are made for.

    Attributes:
        prompt_length: tokens of the prompt.
        limit: tokens of prompt and text at most.
        eos: token ids that end the text.
        vocab_size: of the target.
        device: of its logits.
    """

    prompt_length: int
    limit: int
    eos: tuple[int, ...]
    vocab_size: int
    device: torch.device


def _bad_words(words: list[list[int]], text: ProcessorContext) -> LogitsProcessor:
    return NoBadWordsLogitsProcessor(words, list(text.eos) or None)


def _min_length(length: int, text: ProcessorContext) -> LogitsProcessor | None:
    return MinLengthLogitsProcessor(length, list(text.eos), device=str(text.device)) if text.eos else None


def _min_new_tokens(count: int, text: ProcessorContext) -> LogitsProcessor | None:
    if not 0 <= count <= text.limit - text.prompt_length:
        raise ValueError(f"it must be between 0 and max_new_tokens, {text.limit - text.prompt_length}")
    eos, device = list(text.eos), str(text.device)
    return MinNewTokensLengthLogitsProcessor(text.prompt_length, count, eos, device=device) if eos else None


def _forced_eos(token: int | list[int], text: ProcessorContext) -> LogitsProcessor:
    return ForcedEOSTokenLogitsProcessor(text.limit, token, device=str(text.device))


def _decay(penalty: tuple[int, float], text: ProcessorContext) -> LogitsProcessor:
    if not text.eos:
        raise ValueError("there is no EOS token to favour")
    match penalty:
        case [Integral(), Real()]:
            pass
        case _:
            raise ValueError("it must be a pair: after how many tokens it begins, and the factor it grows by")
    return ExponentialDecayLengthPenalty(penalty, list(text.eos), text.prompt_length)


def _suppress_at_begin(tokens: list[int], text: ProcessorContext) -> LogitsProcessor:
    return SuppressTokensAtBeginLogitsProcessor(tokens, text.prompt_length, device=str(text.device))


PROCESSOR_FACTORIES: dict[str, Callable[[Any, ProcessorContext], LogitsProcessor | None]] = {
    "sequence_bias": lambda bias, _: SequenceBiasLogitsProcessor(bias),
    "repetition_penalty": lambda penalty, _: RepetitionPenaltyLogitsProcessor(float(penalty)),
    "no_repeat_ngram_size": lambda size, _: NoRepeatNGramLogitsProcessor(size),
    "bad_words_ids": _bad_words,
    "min_length": _min_length,
    "min_new_tokens": _min_new_tokens,
    "forced_bos_token_id": lambda token, _: ForcedBOSTokenLogitsProcessor(token),
    "forced_eos_token_id": _forced_eos,
    "remove_invalid_values": lambda *_: InfNanRemoveLogitsProcessor(),
    "exponential_decay_length_penalty": _decay,
    "suppress_tokens": lambda tokens, text: SuppressTokensLogitsProcessor(tokens, device=str(text.device)),
    "begin_suppress_tokens": _suppress_at_begin,
}
NEUTRAL: dict[str, Any] = {
    "repetition_penalty": 1,
    "no_repeat_ngram_size": 0,
    "min_length": 0,
    "min_new_tokens": 0,
    "remove_invalid_values": False,
}
TOKEN_OPTIONS = (
    "sequence_bias",
    "bad_words_ids",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "suppress_tokens",
    "begin_suppress_tokens",
)
ADVICE = {
    "num_beams": "beam search keeps several texts, a draft tree belongs to one; leave it out",
    "num_beam_groups": "beam search keeps several texts, a draft tree belongs to one; leave it out",
    "num_return_sequences": "call generate once for every seed",
    "do_sample": "temperature=0 is greedy, any other temperature samples",
    "max_length": "give max_new_tokens",
    "stop_strings": "give stop",
    "eos_token_id": "give eos to the Decoder",
    "streamer": "iterate over Decoder.stream",
    "stopping_criteria": "iterate over Decoder.stream and leave the loop",
    "assistant_model": "the drafter is an argument of drafttree.load",
    "prefix_allowed_tokens_fn": "give a PrefixConstrainedLogitsProcessor in logits_processor",
}


def refusal(option: str, advice: str = "leave it out, or call generate without custom_generate") -> ConfigError:
    """The error for something transformers' `generate` does and speculation cannot."""
    return ConfigError(f"tree drafting does not support {option}; {advice}")


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Refuse what is no option of ours.

    Args:
        names: that were given.
        known: of the other options; those of `ProcessorOptions` are known too.

    Raises:
        ConfigError: says why transformers has the option and we do not, or which one may have been meant.
    """
    for name in names:
        if name in PROCESSOR_FACTORIES:
            continue
        if name in ADVICE or hasattr(GenerationConfig(), name):
            raise refusal(name, ADVICE.get(name, "leave it out"))
        raise unknown("option", name, [*known, *PROCESSOR_FACTORIES])


def make_processors(
    options: Mapping[str, Any], custom: Iterable[LogitsProcessor], text: ProcessorContext
) -> LogitsProcessorList:
    """The processors of transformers' `generate` for these options, in its order, then the custom ones.

    As there, a custom processor takes the place of one of its own type.

    Args:
        options: of `ProcessorOptions`.
        custom: what a user has made.
        text: the text they are for.

    Raises:
        ConfigError: a value is out of range.
    """
    custom = list(custom)
    made: list[LogitsProcessor] = []
    for name in PROCESSOR_FACTORIES:
        value = options.get(name)
        if value is not None and value != NEUTRAL.get(name):
            made += filter(None, [_make(name, value, text)])
    made = [next((mine for mine in custom if type(mine) is type(each)), each) for each in made]
    return LogitsProcessorList([*made, *(mine for mine in custom if mine not in made)])


def _make(name: str, value: Any, text: ProcessorContext) -> LogitsProcessor | None:
    try:
        if name in TOKEN_OPTIONS:
            _check_tokens(_biased(value) if name == "sequence_bias" else value, text.vocab_size)
        return PROCESSOR_FACTORIES[name](value, text)
    except (ValueError, TypeError, AttributeError, LookupError) as error:
        raise ConfigError(f"{name} is {value!r}: {error}") from None


def _check_tokens(value: object, vocab_size: int) -> None:
    strange = [token for token in _tokens(value) if not 0 <= token < vocab_size]
    if strange:
        raise ValueError(f"token id {strange[0]} is outside the vocabulary of {vocab_size}")


def _biased(bias: Mapping | Iterable) -> list:
    """The sequences of `sequence_bias`, without what is added to their logits."""
    return list(bias) if isinstance(bias, Mapping) else [tokens for tokens, _ in bias]


def _tokens(value: object) -> Iterator[int]:
    """Every token id in nested lists."""
    if isinstance(value, Integral):
        yield int(value)
    elif isinstance(value, Iterable) and not isinstance(value, str):
        for each in value:
            yield from _tokens(each)
    else:
        raise ValueError(f"{value!r} is no token id")
