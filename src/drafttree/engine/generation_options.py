"""The options of one generation: the caller's over the model's own, under the names of transformers' `generate`."""

import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from types import MappingProxyType
from typing import Any, Self

from pydantic import BaseModel
from torch import Tensor
from transformers import (
    GenerationConfig,
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteria,
    StoppingCriteriaList,
    WatermarkingConfig,
)
from transformers.generation.logits_process import LogitNormalization

from drafttree.constraints.grammar import ebnf, json_schema, regex
from drafttree.constraints.options import (
    NEUTRAL_VALUES,
    OccurrencePenalty,
    ProcessorContext,
    ProcessorOptions,
    make_processors,
)
from drafttree.constraints.processors import Constraint
from drafttree.constraints.refusals import NO_EFFECT, REFUSED, check_options
from drafttree.core.counts import check_count, is_token_ids
from drafttree.core.errors import ConfigError
from drafttree.core.sampling import MIN_TEMPERATURE, Sampling
from drafttree.text.detokenizer import stop_strings
from drafttree.text.stop_scope import Stretch

MAX_NEW_TOKENS = 128
"""The most tokens to generate if neither the caller nor the model sets it."""
MAX_LOGPROBS = 100
MAX_PENALTY = 1e6
"""Largest penalty on occurrence: far above any logit, and far below the largest float32."""


class GenerationOptions(ProcessorOptions, total=False):
    """Options of `Decoder.generate`. Omitted options take the decoder's default; None turns an option off.

    Attributes:
        max_new_tokens: maximum number of tokens to generate, 128 by default.
        max_length: maximum number of tokens of prompt and text together; `max_new_tokens` takes precedence.
        do_sample: False decodes greedily; True samples at the model's own temperature, or 1.
        temperature: sampling temperature; 0 decodes greedily, and None leaves the logits as they are.
        top_k: sample from the k most probable tokens; 0 keeps all.
        top_p: sample from the most probable tokens that together reach this probability.
        min_p: drop tokens below this fraction of the best token's probability.
        typical_p: keep the most typical tokens that together reach this probability (locally typical sampling).
        epsilon_cutoff: drop tokens below this probability.
        eta_cutoff: as `epsilon_cutoff`, with a cutoff that adapts to the entropy.
        top_h: keep the most probable tokens up to this fraction of the entropy; 0 keeps all.
        seed: random seed. None takes one from torch's global generator, so texts differ from run to run and repeat
            after `torch.manual_seed`, as with transformers. Greedy texts need no seed.
        stop: stop strings; the text is cut before the first that occurs. The name of a special token matches that
            token.
        stop_strings: transformers' name for `stop`.
        unstopped: stretches of the text in which stop strings do not apply, such as the model's thinking. Each is a
            `drafttree.text.stop_scope.Stretch`, which has the marks around it.
        eos_token_id: token ids that end the text, instead of the decoder's.
        ignore_eos: do not stop at EOS tokens.
        max_time: maximum number of seconds, counted from the call. A text then ends with its next token; each of a list
            of prompts gets at least one token.
        stopping_criteria: transformers' stopping criteria, called after every token. `scores` is None.
        logits_processor: transformers' logits processors. They are called at every node of the tree with the text up to
            that node, after those of the other options, so they must be functions of that text and the scores alone.
        watermarking_config: a `WatermarkingConfig` (green lists). SynthID keeps a state and is refused.
        renormalize_logits: apply a log-softmax after all processors. It changes a text by rounding at most.
        generation_config: a `GenerationConfig` whose values are defaults for this call.
        presence_penalty: subtracted once from the logits of every token generated so far, as by OpenAI and vLLM.
        frequency_penalty: subtracted from the logits of a token for each time it was generated.
        grammar: a grammar that the text must follow, made by `drafttree.grammar`.
        json_schema: a JSON schema that the text must conform to: JSON text, a dictionary or a pydantic model.
        regex: a regular expression that the text must match as a whole.
        ebnf: a grammar in GBNF syntax that the text must follow. Only one of these four can be given.
        reuse_prefix: reuse the KV rows of an earlier text with the same prefix, and keep those of this text (see
            `engine.prefixes`). On by default in an engine, and for conversations with a greedy or coupled verifier,
            unless the target has hooks or layers whose state cannot be compared. Other verifiers refuse it outside
            lists and engines, since rounding in the reused rows may change the text of a seed.
        draft_temperature: divides the drafter's logits before the policy sees them. Below 1, policies trust the drafter
            more, which helps if it is right more often than its probabilities say. This never changes the target's
            distribution.
        logprobs: True for the log-probability of every token; a number for that many top alternatives too.
        prompt_logprobs: the same for the tokens of the prompt, except the first.
        spelled_tokens: ids of special tokens that are part of the text, such as the marks of thinking. Other special
            tokens are left out.
        sanitize_control_tokens: treat control tokens in the messages of a conversation as plain text, as transformers'
            `apply_chat_template` does. Those that the chat template writes remain tokens.
        speculate: False generates this text without drafts, for comparison. With a greedy or coupled verifier the text
            is the same.
    """

    max_new_tokens: int | None
    max_length: int | None
    do_sample: bool | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    typical_p: float | None
    epsilon_cutoff: float | None
    eta_cutoff: float | None
    top_h: float | None
    seed: int | None
    stop: str | list[str] | tuple[str, ...] | None
    stop_strings: str | list[str] | tuple[str, ...] | None
    unstopped: Sequence[Stretch] | None
    eos_token_id: int | list[int] | None
    ignore_eos: bool
    max_time: float | None
    stopping_criteria: StoppingCriteriaList | list[StoppingCriteria] | None
    logits_processor: LogitsProcessorList | list[LogitsProcessor] | None
    watermarking_config: WatermarkingConfig | None
    renormalize_logits: bool | None
    generation_config: GenerationConfig | None
    presence_penalty: float | None
    frequency_penalty: float | None
    grammar: Constraint | None
    json_schema: str | dict[str, Any] | type[BaseModel] | None
    regex: str | None
    ebnf: str | None
    reuse_prefix: bool | None
    draft_temperature: float
    logprobs: bool | int | None
    prompt_logprobs: bool | int | None
    spelled_tokens: Sequence[int] | None
    sanitize_control_tokens: bool | None
    speculate: bool | None


NOTATIONS = {"json_schema": json_schema, "regex": regex, "ebnf": ebnf}
"""Options that specify a grammar, and the function that makes it."""
GRAMMARS = ("grammar", *NOTATIONS)
FLAGS = ("do_sample", "ignore_eos", "renormalize_logits", "remove_invalid_values", "reuse_prefix", "speculate")
FLAGS += ("sanitize_control_tokens",)
SERVED = frozenset(GenerationOptions.__annotations__)
NOT_ADOPTED = {"max_length", "eos_token_id", "output_scores", "output_logits", "output_attentions"}
NOT_ADOPTED |= {"output_hidden_states"}
"""Fields of a model's own generation config that do not become defaults. `max_length` counts the prompt too, so a fixed
number would leave no room after a long prompt. EOS tokens are given to the decoder, and `output_*` changes no text.
transformers' default of 50 for `top_k` is not the model's choice, so it is not adopted either."""


def model_defaults(config: GenerationConfig | None) -> Mapping[str, Any]:
    """The options that a model's own generation config sets, without neutral values.

    They may include options that tree drafting does not support. These are refused when a text begins, unless the
    caller overrides them.
    """
    neutral_values = (
        vars(Sampling()) | NEUTRAL_VALUES | {"temperature": 1.0, "do_sample": False, "renormalize_logits": False}
    )

    def shapes_text(name: str, value: Any) -> bool:
        if name in NOT_ADOPTED or (name in REFUSED and REFUSED[name].accepts(value)):
            return False
        return name not in neutral_values or value != neutral_values[name]

    config_values = _set_fields(config) if config else {}
    return MappingProxyType({name: value for name, value in config_values.items() if shapes_text(name, value)})


def show_options(options: Mapping[str, Any]) -> str:
    """Show options in one line."""
    return ", ".join(f"{name}={value!r}" for name, value in options.items())


def _set_fields(config: GenerationConfig) -> dict[str, Any]:
    """The fields of a generation config that are set, without those that have no effect or that transformers lacks."""
    standard_fields = vars(GenerationConfig())
    values = {
        name: value for name, value in vars(config).items() if name in standard_fields and not name.startswith("_")
    }
    return {name: value for name, value in values.items() if value is not None and name not in NO_EFFECT}


@dataclass(frozen=True)
class RequestOptions:
    """The options of one call of `generate`, checked as far as that is possible without the prompt.

    Attributes:
        values: every option that is set, defaults included, by name.
        given: the names of the options that the caller gave.
        sampling: how tokens are chosen; its seed is 0 if `seed` is None.
        stop: stop strings.
        criteria: stopping criteria; the time of `max_time` runs from the creation of this object.
    """

    values: Mapping[str, Any]
    given: frozenset[str]
    sampling: Sampling
    stop: tuple[str, ...]
    criteria: StoppingCriteriaList

    @classmethod
    def merge(cls, defaults: Mapping[str, Any], options: Mapping[str, Any]) -> Self:
        """Merge a caller's options into defaults, which they override.

        Raises:
            ConfigError: if an option is unknown, out of range, contradicts another, or does not work with speculation.
        """
        if options.get("generation_config") is not None:
            defaults = {**defaults, **_config_fields(options["generation_config"])}
        defaults = _plain(defaults)
        options = _plain(options)
        if not options.keys().isdisjoint(GRAMMARS):  # even None, which turns a grammar of the defaults off
            defaults = {name: value for name, value in defaults.items() if name not in GRAMMARS}
        values = _with_grammar({**defaults, **options})
        check_options(values, options, SERVED)
        _check_values(values)
        values["temperature"] = _temperature(defaults, options)
        return cls(
            values=values,
            given=frozenset(options),
            sampling=Sampling.from_options(values),
            stop=stop_strings(values.get("stop")),
            criteria=_stopping_criteria(values),
        )

    def get(self, name: str, default: Any = None) -> Any:
        """The value of an option; the default if it is None or not set."""
        value = self.values.get(name)
        return default if value is None else value

    def max_new_tokens(self, prompt_length: int) -> int:
        """The most tokens to generate after a prompt.

        Raises:
            ConfigError: if `max_new_tokens` or `max_length` is not a whole number of at least 1, or `max_length` leaves
                no room.
        """
        length = self.get("max_length")
        count = self.get("max_new_tokens")
        for name in ("max_length", "max_new_tokens"):
            check_count(name, self.get(name, 1))
        if count is None and length is not None:
            if length <= prompt_length:
                raise ConfigError(f"max_length={length} leaves no room after a prompt of {prompt_length} tokens")
            return length - prompt_length
        return MAX_NEW_TOKENS if count is None else count

    def eos(self, default: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
        """The token ids that end the text; by default those of the decoder.

        Raises:
            ConfigError: if `eos_token_id` has anything but token ids of the vocabulary, or `ignore_eos` leaves a
                grammar no token to end its text with.
        """
        if self.get("ignore_eos", False):
            if self.get("grammar"):
                raise ConfigError("a grammar ends its text with an EOS token; leave out ignore_eos")
            return ()
        if "eos_token_id" not in self.values:
            return tuple(
                token for token in default if 0 <= token < vocab_size
            )  # a model may name others, which never occur
        eos_token_id = self.get("eos_token_id", [])
        ids = [eos_token_id] if isinstance(eos_token_id, Integral) else eos_token_id
        if not is_token_ids(ids):
            raise ConfigError(f"eos_token_id is {eos_token_id!r}; give a token id or a list of them")
        tokens = tuple(int(token) for token in ids)
        if wrong_ids := [token for token in tokens if not 0 <= token < vocab_size]:
            complaint = (
                f"eos_token_id is {eos_token_id!r}, but {wrong_ids[0]} is outside the vocabulary of {vocab_size}"
            )
            raise ConfigError(f"{complaint}; give ignore_eos to go on past EOS tokens")
        return tokens

    def spelled_tokens(self, vocab_size: int) -> tuple[int, ...]:
        """The special tokens that are part of the text.

        Raises:
            ConfigError: if one is outside the vocabulary.
        """
        tokens = tuple(int(token) for token in self.get("spelled_tokens", ()))
        if wrong_id := next((token for token in tokens if not 0 <= token < vocab_size), None):
            raise ConfigError(
                f"spelled_tokens has {wrong_id}, which is outside the vocabulary of {vocab_size}; give ids of tokens"
            )
        return tokens

    def processors(self, context: ProcessorContext) -> tuple[LogitsProcessorList, Sampling]:
        """The logits processors of a text, and the sampling that follows them.

        Raises:
            ConfigError: if an option of the processors is out of range.
        """
        values = {**self.values}
        sampling = self.sampling
        if values.get("min_new_tokens") is not None:
            values["min_length"] = None  # as in transformers, where it takes precedence
            if "min_new_tokens" not in self.given:
                values["min_new_tokens"] = min(values["min_new_tokens"], context.limit - context.prompt_length)
        processors = make_processors(values, [*self._penalties(context), *self.get("logits_processor", ())], context)
        if watermark := _watermark(values.get("watermarking_config"), context):
            # A watermark follows temperature and truncation, which therefore become processors themselves.
            if not sampling.greedy:
                processors.append(SamplingProcessor(sampling))
                sampling = Sampling(1.0, seed=sampling.seed)
            processors.append(watermark)
        if sampling.greedy and self.get("renormalize_logits", False):
            processors.append(LogitNormalization())
        return processors, sampling

    def _penalties(self, context: ProcessorContext) -> list[LogitsProcessor]:
        presence, frequency = self.get("presence_penalty", 0.0), self.get("frequency_penalty", 0.0)
        penalties = context.prompt_length, float(presence), float(frequency)
        return [OccurrencePenalty(*penalties)] if presence or frequency else []


class SamplingProcessor(LogitsProcessor):
    """Temperature and truncation as a logits processor, so that other processors can follow them."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        return self.sampling.process(scores)


def _config_fields(config: object) -> dict[str, Any]:
    if not isinstance(config, GenerationConfig):
        raise ConfigError(f"generation_config is of type {type(config).__name__}; give a GenerationConfig")
    return _set_fields(config)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with Python's numbers and lists in place of numpy's and torch's, and stop strings under `stop`.

    Raises:
        ConfigError: if stop strings are given by both of their names.
    """
    plain_options = {name: value.tolist() if hasattr(value, "tolist") else value for name, value in options.items()}
    if (stop := plain_options.pop("stop_strings", None)) is not None:
        if plain_options.get("stop") is not None:
            raise ConfigError("stop and stop_strings are two names of one option; give one of them")
        plain_options["stop"] = stop
    return plain_options


def _with_grammar(options: dict[str, Any]) -> dict[str, Any]:
    """The options with a grammar in place of its notation.

    Raises:
        ConfigError: if several grammars are given, or the notation is malformed.
    """
    names = [name for name in GRAMMARS if options.get(name) is not None]
    if len(names) > 1:
        raise ConfigError(
            f"{names[0]} and {names[1]} are given, but a text can follow only one grammar; leave one of them out"
        )
    other_options = {name: value for name, value in options.items() if name not in NOTATIONS}
    if not names or names == ["grammar"]:
        return other_options
    (name,) = names
    if name != "json_schema" and not isinstance(options[name], str):
        raise ConfigError(f"{name} is {options[name]!r}; give a string")
    return other_options | {"grammar": NOTATIONS[name](options[name])}


def _check_values(values: Mapping[str, Any]) -> None:
    """Check the options that no later step checks."""
    grammar = values.get("grammar")
    processors = values.get("logits_processor")
    if grammar is not None and not hasattr(grammar, "new_state"):
        raise ConfigError(f"grammar is {grammar!r}; make one with drafttree.grammar.json_schema, regex or ebnf")
    if not isinstance(processors, list | tuple | None) or not all(map(callable, processors or ())):
        raise ConfigError(f"logits_processor is {processors!r}; give a LogitsProcessorList")
    for name in FLAGS:
        if not isinstance(value := values.get(name), bool | None):
            raise ConfigError(f"{name} is {value!r}; it must be True or False")
    draft_temperature = values.get("draft_temperature")
    if draft_temperature is not None and not _between(draft_temperature, Real, MIN_TEMPERATURE, sys.float_info.max):
        raise ConfigError(
            f"draft_temperature is {draft_temperature!r}; it must be a number of at least {MIN_TEMPERATURE}"
        )
    for name in ("presence_penalty", "frequency_penalty"):
        penalty = values.get(name)
        if penalty is not None and not _between(penalty, Real, -MAX_PENALTY, MAX_PENALTY):
            limits = f"between {-MAX_PENALTY:g} and {MAX_PENALTY:g}"
            raise ConfigError(f"{name} is {penalty!r}; it must be a number {limits}")
    for name in ("logprobs", "prompt_logprobs"):
        count = values.get(name)
        if count is not None and not _between(count, Integral, 0, MAX_LOGPROBS):
            raise ConfigError(f"{name} is {count!r}; give True, or how many alternatives, at most {MAX_LOGPROBS}")
    spelled_tokens = values.get("spelled_tokens")
    if spelled_tokens is not None and not is_token_ids(spelled_tokens):
        raise ConfigError(f"spelled_tokens is {spelled_tokens!r}; give a list of token ids")
    stretches = values.get("unstopped")
    if not isinstance(stretches, list | tuple | None) or not all(map(_is_stretch, stretches or ())):
        raise ConfigError(f"unstopped is {stretches!r}; give a list of Stretch, each with two marks")
    if values.get("prompt_logprobs") and values.get("reuse_prefix"):
        raise ConfigError("prompt_logprobs needs the whole prompt read; leave out reuse_prefix")


def _is_stretch(value: object) -> bool:
    return isinstance(value, Stretch) and bool(value.begin and value.end)


def _between(value: Any, number_class: type, low: float, high: float) -> bool:
    return (
        isinstance(value, number_class)
        and not (number_class is Real and isinstance(value, bool))
        and low <= value <= high
    )


def _temperature(defaults: Mapping[str, Any], caller_options: Mapping[str, Any]) -> Any:
    """The temperature, 0 for greedy decoding; if the caller gives none, `do_sample` decides whether to sample.

    Raises:
        ConfigError: if the two contradict each other.
    """
    temperature = caller_options.get("temperature")
    do_sample = caller_options.get("do_sample")
    if temperature is not None:
        if do_sample is not None and do_sample != (temperature != 0):
            raise ConfigError(
                f"do_sample={do_sample} contradicts temperature={temperature}: 0 is greedy, any other samples; "
                "leave one of them out"
            )
        return temperature
    if not (defaults.get("do_sample") if do_sample is None else do_sample):
        return 0.0
    config_temperature = None if "temperature" in caller_options else defaults.get("temperature")
    if config_temperature == 0:
        raise ConfigError(
            f"the generation config sets temperature={config_temperature!r}, which contradicts do_sample=True; "
            "pass a temperature, or do_sample=False"
        )
    return 1.0 if config_temperature is None else config_temperature


def _stopping_criteria(values: Mapping[str, Any]) -> StoppingCriteriaList:
    criteria = values.get("stopping_criteria")
    seconds = values.get("max_time")
    if not isinstance(criteria, list | tuple | None) or not all(map(callable, criteria or ())):
        raise ConfigError(f"stopping_criteria is {criteria!r}; give a StoppingCriteriaList")
    if seconds is not None and not _between(seconds, Real, 0, math.inf):
        raise ConfigError(f"max_time is {seconds!r}; it must be a number of seconds")
    time_criteria = [] if seconds is None else [MaxTimeCriteria(float(min(seconds, sys.float_info.max)))]
    return StoppingCriteriaList([*time_criteria, *(criteria or ())])


def _watermark(config: Any, context: ProcessorContext) -> LogitsProcessor | None:
    if config is None:
        return None
    if not hasattr(config, "construct_processor"):
        raise ConfigError(f"watermarking_config is of type {type(config).__name__}; give a WatermarkingConfig")
    return config.construct_processor(context.vocab_size, str(context.device))
