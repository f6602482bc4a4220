"""Converts requests of Dynamo's frontend to options of `Engine.submit`.

If a text moves to another worker, that worker gets the text so far as part of the prompt. So an option is supported
only if it means the same in the middle of a text as at its beginning. This holds for seeds, because noise depends on
the position in prompt and text, and for `repetition_penalty`, which also counts the prompt. Options that count from the
beginning of the text are refused, like all options that the engine does not support.
"""

import json
from collections.abc import Callable, Mapping
from typing import Any

from drafttree.constraints import grammar
from drafttree.constraints.refusals import NoEffect, Refused
from drafttree.core.errors import ConfigError, InputError
from drafttree.engine.decoder import Decoder

GUIDES: dict[str, Callable[[Any], grammar.Grammar]] = {
    "json": grammar.json_schema,
    "regex": grammar.regex,
    "grammar": grammar.ebnf,
    "choice": lambda choices: grammar.ebnf(f"root ::= {' | '.join(map(_quoted, choices))}"),
}
"""Functions that make a grammar, by the names in `guided_decoding`."""
SAME_NAME = ("temperature", "seed", "top_p", "min_p", "repetition_penalty", "ignore_eos")
READ = {*SAME_NAME, *("top_k", "guided_decoding", "max_tokens", "stop", "stop_token_ids", "logprobs")}
MOVES = "it counts from where the text began, which a text that moved to another worker cannot tell"
ONE_PLACE = "a worker of drafttree reads and writes in one place; leave it out"
NOT_TEXT = "drafttree reads text; leave it out"
UNSUPPORTED: dict[str, Refused | NoEffect] = {
    "presence_penalty": Refused(f"{MOVES}; repetition_penalty counts the prompt too and is served", (0,)),
    "frequency_penalty": Refused(f"{MOVES}; repetition_penalty counts the prompt too and is served", (0,)),
    "min_tokens": Refused(f"{MOVES}; leave it out", (0,)),
    "max_thinking_tokens": Refused(f"{MOVES}; leave it out"),
    "prompt_logprobs": Refused("the frontend has no place for them, so it can echo no prompt either; leave out echo"),
    "n": Refused(
        "the frontend ends a request with the first of its texts; ask once for each, with a seed of its own", (1,)
    ),
    "best_of": Refused("ask once for every text, with a seed of its own", (1,)),
    "use_beam_search": Refused("a draft tree belongs to one text; leave it out"),
    "length_penalty": Refused("it is for beam search; leave it out", (1,)),
    "include_stop_str_in_output": Refused("texts end before their stop string; add it again"),
    "allowed_token_ids": Refused("give guided_regex or guided_choice"),
    "bad_words_token_ids": Refused("leave it out"),
    "return_tokens_as_token_ids": Refused("leave it out"),
    "multi_modal_data": Refused(NOT_TEXT),
    "prompt_embeds": Refused(NOT_TEXT),
    "prefill_result": Refused(ONE_PLACE),
    "bootstrap_info": Refused(ONE_PLACE),
    "skip_special_tokens": Refused("texts hold no special tokens; leave it out", (True,), off=False),
    "detokenize": Refused("texts come with their tokens; leave it out", (True,), off=False),
    "stop_token_ids_hidden": NoEffect("EOS tokens as the frontend knows them"),
    "stop_token_ids_visible": NoEffect("EOS tokens as the frontend knows them"),
    "formatted_prompt": NoEffect("the frontend's own"),
}
"""Options of the frontend that have no effect or are refused, by name."""


def read_options(request: Mapping[str, Any], decoder: Decoder) -> dict[str, Any]:
    """The options of a request's text.

    Args:
        request: the request as Dynamo passes it to a worker.
        decoder: the decoder that will write the text.

    Raises:
        ConfigError: an option is not supported; the message names it and an alternative.
        InputError: nothing limits the length of the text.
    """
    fields = _asked(request)
    options = {name: fields[name] for name in SAME_NAME if name in fields} | _ends(fields, decoder.eos)
    options["max_new_tokens"] = _length(fields, len(request["token_ids"]), decoder.target.context)
    if (top_k := fields.get("top_k")) is not None:
        options["top_k"] = max(top_k, 0)  # -1 in vLLM is 0 here: all tokens
    if (count := fields.get("logprobs")) is not None:
        options["logprobs"] = count or True
    if guide := fields.get("guided_decoding"):
        options["grammar"] = _grammar(guide)
    return options


def _asked(request: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a request that are not None, by name."""
    entries = UNSUPPORTED
    groups = [request.get(name) or {} for name in ("stop_conditions", "sampling_options", "output_options")]
    top_fields = {name: request[name] for name in entries if name in request}
    fields = {name: value for group in [*groups, top_fields] for name, value in group.items() if value is not None}
    for name, value in fields.items():
        entry = entries.get(name, Refused("leave it out"))
        if name not in READ and isinstance(entry, Refused) and not entry.accepts(value):
            raise ConfigError(f"{name}={value!r} is not served: {entry.advice}")
    return fields


def _ends(fields: Mapping[str, Any], eos: tuple[int, ...]) -> dict[str, Any]:
    """The options that decide where a text ends, except its length."""
    ends: dict[str, Any] = {"stop": fields["stop"]} if fields.get("stop") else {}
    if ids := fields.get("stop_token_ids"):
        ends["eos_token_id"] = [*ids] if fields.get("ignore_eos") else [*eos, *ids]
        ends["ignore_eos"] = False
    return ends


def _length(fields: Mapping[str, Any], prompt: int, context: int | None) -> int:
    """The most tokens to write. The default is what the context has room for, which is also right after a move.

    Raises:
        InputError: the request has no `max_tokens`, and the model's context has no limit.
    """
    if (count := fields.get("max_tokens")) is not None:
        return count
    if context is None:
        raise InputError("the model's context is unlimited; give max_tokens")
    return max(context - prompt, 1)


def _grammar(guide: Mapping[str, Any]) -> grammar.Grammar:
    guides = {name: value for name, value in guide.items() if value is not None and name != "backend"}
    if len(guides) != 1 or not guides.keys() <= GUIDES.keys():
        raise ConfigError(f"guided decoding by {', '.join(guides) or 'nothing'} is not served; give one of {[*GUIDES]}")
    ((name, value),) = guides.items()
    return GUIDES[name](value)


def _quoted(choice: str) -> str:
    return json.dumps(choice, ensure_ascii=False)
