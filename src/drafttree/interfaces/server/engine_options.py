"""The engine's options for a request."""

from collections.abc import Iterable
from typing import Any

from drafttree.constraints.options import ProcessorContext
from drafttree.core.errors import ConfigError
from drafttree.engine.decoder import Decoder
from drafttree.engine.generation_options import SERVED, RequestOptions, show_options
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.grammars import WantedGrammar
from drafttree.interfaces.server.protocol.request_fields import INT64, SamplingFields, SeveralTexts
from drafttree.loading.names import target_name

DEFAULT_LIMIT = 2048
"""Tokens of an answer at most where neither the request nor the model says."""
SAME_NAMES = ("top_p", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty", "ignore_eos", "stop")


def check_defaults(decoder: Decoder) -> None:
    """Refuse to serve a model whose generation config no request could run with, since it cannot override that.

    Raises:
        ConfigError: names the values and the file.
    """
    overrides = dict.fromkeys((*SAME_NAMES, "top_k", "min_new_tokens", "sequence_bias")) | {"temperature": 0.0}
    target = decoder.target
    try:
        options = RequestOptions.merge(decoder.defaults, overrides)
        options.processors(ProcessorContext(1, 2, decoder.eos, target.vocab_size, target.device))
    except ConfigError as error:
        found = {name: value for name, value in decoder.defaults.items() if name not in SERVED}
        reason = f"sets {show_options(found)}, which tree drafting does not support" if found else f"is wrong: {error}"
        raise ConfigError(
            f"no request could run with {target_name(target)!r}: its generation_config.json {reason}; remove "
            "that from the file"
        ) from None


def engine_options(
    request: SamplingFields, decoder: Decoder, prompt_length: int, wanted: int | None, grammar: WantedGrammar | None
) -> dict[str, Any]:
    """The options of a prompt's texts, all but their seeds; their grammar is yet to be compiled.

    Args:
        request: what the client asks for.
        decoder: the decoder of the served model.
        prompt_length: tokens of the prompt.
        wanted: tokens of a text at most, None where the request does not say.
        grammar: the grammar that the texts must follow, None for any text.

    Raises:
        ServerError: a token id is outside the vocabulary, or prompt and text do not fit into the model's context.
    """
    limit = _limit(wanted, prompt_length, decoder)
    options = {name: value for name in SAME_NAMES if (value := getattr(request, name)) is not None}
    options["max_new_tokens"] = limit
    adopted = decoder.defaults.get("temperature", 1.0)
    options["temperature"] = adopted if request.temperature is None else request.temperature
    if request.top_k is not None:
        options["top_k"] = max(request.top_k, 0)
    if grammar is not None:
        options["grammar"] = grammar
    return options | _token_options(request, decoder, limit)


def _token_options(request: SamplingFields, decoder: Decoder, limit: int) -> dict[str, Any]:
    """The options that are about single tokens."""
    found: dict[str, Any] = {}
    if request.min_tokens:
        if request.min_tokens > limit:
            message = f"min_tokens is {request.min_tokens}, but the text may have {limit} tokens"
            raise ServerError(400, message, param="min_tokens")
        found["min_new_tokens"] = request.min_tokens
    if request.logit_bias:
        bias = {int(token): added for token, added in request.logit_bias.items()}
        check_tokens("logit_bias", bias, decoder)
        found["sequence_bias"] = [[[token], float(added)] for token, added in bias.items()]
    if request.stop_token_ids:
        check_tokens("stop_token_ids", request.stop_token_ids, decoder)
        found["eos_token_id"] = [*(() if request.ignore_eos else decoder.eos), *request.stop_token_ids]
        found["ignore_eos"] = False
    return found


def seeds(request: SeveralTexts) -> list[int | None]:
    """The seed of each of a prompt's texts: they differ, and the first one's is the request's."""
    if request.seed is None:
        return [None] * request.choices
    return [(request.seed + choice + INT64) % (2 * INT64) - INT64 for choice in range(request.choices)]


def _limit(wanted: int | None, prompt_length: int, decoder: Decoder) -> int:
    """Tokens of a text at most, by default as many as the context has room for, up to the model's own or 2,048.

    Raises:
        ServerError: prompt and text would not fit into the model's context.
    """
    context = decoder.target.context
    room = None if context is None else context - prompt_length
    if room is not None and room < max(wanted or 1, 1):
        asked = f"and {wanted} tokens of text exceed" if room > 0 else "leaves no room for a text in"
        advice = f" or ask for at most {room} tokens" if room > 0 else ""
        message = f"the prompt of {prompt_length} tokens {asked} the model's context of {context}; shorten it{advice}"
        raise ServerError(400, message, param="max_tokens" if room > 0 else None, code="context_length_exceeded")
    default = decoder.defaults.get("max_new_tokens") or DEFAULT_LIMIT
    return wanted if wanted is not None else min(default, default if room is None else room)


def check_tokens(field: str, tokens: Iterable[int], decoder: Decoder) -> None:
    """Refuse token ids that the model does not have.

    Raises:
        ServerError: names the field and the first of them.
    """
    vocab = decoder.target.vocab_size
    if wrong := next((token for token in tokens if token >= vocab), None):
        message = f"{field}: token id {wrong} is outside the vocabulary of {vocab}"
        raise ServerError(400, message, param=field)
