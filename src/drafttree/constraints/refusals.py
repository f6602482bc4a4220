"""Options of requests that have no effect, that are lowered to a limit, or that are refused, with the reasons.

One table for all interfaces: transformers' `generate`, the server's APIs, and Dynamo's frontend. The server makes
fields of its requests from it (`interfaces/server/fields.py`); `docs/options.md` and `docs/server-reference.md` show
it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator
from transformers import GenerationConfig

from drafttree.core.errors import ConfigError, unknown


@dataclass(frozen=True)
class Refused:
    """An option that cannot be served.

    Attributes:
        advice: what to do instead.
        neutral: values besides None and False that request nothing, and so are accepted.
        code: the error's code in replies of the server.
        off: whether False requests nothing; if not, it is refused too.
        empty: whether an empty list or object in a request requests nothing.
    """

    advice: str
    neutral: tuple[Any, ...] = ()
    code: str = "not_served"
    off: bool = True
    empty: bool = True

    def accepts(self, value: object) -> bool:
        """Whether a value requests nothing."""
        return value is None or (self.off and value is False) or any(_same(value, neutral) for neutral in self.neutral)


@dataclass(frozen=True)
class NoEffect:
    """An option that is accepted although it does not change the text.

    Attributes:
        why: the reason.
        kind: the type of its values.
    """

    why: str
    kind: Any = object


@dataclass(frozen=True)
class Clamped:
    """An upper bound that may exceed what is available, and is then lowered to it.

    Attributes:
        to: what is available.
    """

    to: str


NO_THREADS = "thread_unsupported_request"
"""Error code after which Anthropic's client sends whole conversations."""
_BEAMS = "beam search keeps several texts, a draft tree belongs to one; leave it out"
_ASSISTED = "the drafter is an argument of drafttree.load"
_STORED = "every request keeps its own KV cache on the model's device; leave it out"
_ENCODER = "its processor compares every text with the prompt of its row; leave it out"
_NEGATIVE = "guidance needs a second pass per token, of another prompt; leave it out"
_HIDDEN = "the layers' outputs of a draft tree are not kept; run the model on the text"
_TOKENS = "give the prompt first, as text, token ids or all that a tokenizer returns: generate(tokenizer(text))"
_BEAMS_ONLY = "acts on beam search alone"
_ASSISTANT = "sets up transformers' own speculation"
_SPEED = "says how transformers runs the model, not what it writes"
_ONE_TIER = "no effect: there is one tier"
_NOTHING_STORED = "no effect: nothing is stored"
_FOUND = "no effect: the server finds common prefixes automatically"
_DIRECT_REPLY = "no effect: the response is returned directly"
_SEND_INPUT = "nothing is stored; send the conversation as input"
_OWN_TEMPLATE = "the server's own template is used"
_ALL_TOOLS = "the model is told of all tools"
_NO_SETS = "there are no tool sets"
_ANSWERED = "calls are answered before the model goes on"
_NO_MODERATION = "there is no moderation"
_TEXT_HAS_ALL = "no effect: the text is read without them"
_KEEP_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
_DIRECT = ({"type": "direct"}, ["direct"])
_FUNCTION_CALLER = Refused("functions are called by the model alone", _DIRECT)
_TOOL_CALLER = Refused("tools are called by the model alone", _DIRECT)
_LEVEL = Literal["low", "medium", "high"]


def _check_items(table: Any, check: ValidatorFunctionWrapHandler) -> Any:
    for item in table.items() if isinstance(table, dict) else ():
        check(dict([item]))
    return check(table)


ITEM_BY_ITEM = WrapValidator(_check_items)
"""Ends the validation of an object at its first mistake, the only one that is told; pydantic can do so from 2.13 on."""
METADATA = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
    ITEM_BY_ITEM,
]
"""The type of OpenAI's `metadata`."""

_MOVES = "it counts from where the text began, which a text that moved to another worker cannot tell"
_ONE_PLACE = "a worker of drafttree reads and writes in one place; leave it out"
_NOT_TEXT = "drafttree reads text; leave it out"

FIELDS: dict[str, dict[str, Refused | NoEffect | Clamped]] = {
    "generate": {
        "num_beams": Refused(_BEAMS, (1,)),
        "num_beam_groups": Refused(_BEAMS, (1,)),
        "diversity_penalty": Refused(_BEAMS, (0,)),
        "constraints": Refused("it needs beams; give a grammar"),
        "force_words_ids": Refused("it needs beams; give a grammar"),
        "num_return_sequences": Refused("call generate once for every seed", (1,)),
        "penalty_alpha": Refused("contrastive search compares hidden states of several texts; leave it out", (0,)),
        "dola_layers": Refused("it reads the logits of other layers; leave it out"),
        "guidance_scale": Refused(_NEGATIVE, (1,)),
        "negative_prompt_ids": Refused(_NEGATIVE),
        "negative_prompt_attention_mask": Refused(_NEGATIVE),
        "encoder_repetition_penalty": Refused(_ENCODER, (1,)),
        "encoder_no_repeat_ngram_size": Refused(_ENCODER, (0,)),
        "token_healing": Refused("it rewrites the end of the prompt; leave it out"),
        "cache_implementation": Refused(
            _STORED, ("dynamic", "dynamic_full", "static", "hybrid", "sliding_window", "hybrid_chunked")
        ),
        "assistant_model": Refused(_ASSISTED),
        "assistant_tokenizer": Refused(_ASSISTED),
        "prompt_lookup_num_tokens": Refused('give drafttree.load drafter="lookup"'),
        "assistant_early_exit": Refused(_ASSISTED),
        "use_mtp": Refused(_ASSISTED),
        "speculation_type": Refused(_ASSISTED),
        "output_attentions": Refused(_HIDDEN),
        "output_hidden_states": Refused(_HIDDEN),
        "output_scores": Refused("give logprobs; whole rows come from custom_generate=drafttree.hf.generate(...)"),
        "output_logits": Refused("give logprobs; whole rows come from custom_generate=drafttree.hf.generate(...)"),
        "past_key_values": Refused(
            "give the whole prompt; caches go on with custom_generate=drafttree.hf.generate(...)"
        ),
        "streamer": Refused("iterate over Decoder.stream"),
        "tokenizer": Refused("give it to drafttree.load or to the Decoder"),
        "custom_generate": Refused("it is for transformers' own generate; leave it out"),
        "synced_gpus": Refused("the model runs on one device; leave it out"),
        "inputs": Refused(_TOKENS),
        "input_ids": Refused(_TOKENS),
        "inputs_embeds": Refused("give the prompt as text or token ids"),
        "attention_mask": Refused("every prompt is read without padding; leave it out"),
        "position_ids": Refused("every prompt begins at position 0; leave it out"),
        "use_cache": NoEffect("a KV cache is always used"),
        "cache_config": NoEffect(_SPEED),
        "max_cache_len": NoEffect(_SPEED),
        "prefill_chunk_size": NoEffect(_SPEED),
        "low_memory": NoEffect(_SPEED),
        "compile_config": NoEffect(_SPEED),
        "disable_compile": NoEffect(_SPEED),
        "continuous_batching_config": NoEffect(_SPEED),
        "pad_token_id": NoEffect("nothing is padded"),
        "bos_token_id": NoEffect("a prompt is never empty"),
        "decoder_start_token_id": NoEffect("is for encoder-decoders"),
        "return_dict_in_generate": NoEffect("the result is a `Generation` in any case"),
        "early_stopping": NoEffect(_BEAMS_ONLY),
        "length_penalty": NoEffect(_BEAMS_ONLY),
        "is_assistant": NoEffect(_ASSISTANT),
        "num_assistant_tokens": NoEffect(_ASSISTANT),
        "num_assistant_tokens_schedule": NoEffect(_ASSISTANT),
        "assistant_confidence_threshold": NoEffect(_ASSISTANT),
        "assistant_ensemble_weight": NoEffect(_ASSISTANT),
        "assistant_lookbehind": NoEffect(_ASSISTANT),
        "target_lookbehind": NoEffect(_ASSISTANT),
        "max_matching_ngram_size": NoEffect(_ASSISTANT),
        "transformers_version": NoEffect("says who wrote the file"),
    },
    "server": {
        "user": NoEffect("no effect", str),
        "use_beam_search": Refused("a draft tree belongs to one text"),
        "length_penalty": Refused("it applies only to beam search", (1,)),
        "bad_words": Refused("give logit_bias"),
        "allowed_token_ids": Refused("give structured_outputs"),
        "include_stop_str_in_output": Refused("texts end before a stop string"),
        "truncate_prompt_tokens": Refused("shorten the prompt"),
        "prompt_logprobs": Refused("give echo and logprobs to /v1/completions"),
        "return_token_ids": Refused("leave it out"),
        "kv_transfer_params": Refused("the server that answers also processes the prompt"),
        "priority": Refused("requests are served in the order they come", (0,)),
    },
    "completions": {
        "best_of": Refused("give n", (1,)),
        "suffix": Refused("text is only generated after the prompt", ("",)),
        "add_special_tokens": Refused("give token ids for a prompt without special tokens", (True,)),
    },
    "completions.stream_options": {"include_obfuscation": Refused("chunks are not padded; leave it out")},
    "chat": {
        "service_tier": NoEffect(_ONE_TIER, str),
        "verbosity": NoEffect("no effect", _LEVEL),
        "safety_identifier": NoEffect("no effect", str),
        "metadata": NoEffect(_NOTHING_STORED, METADATA),
        "store": NoEffect(_NOTHING_STORED, bool),
        "prompt_cache_key": NoEffect(_FOUND, str),
        "prompt_cache_options": NoEffect(_FOUND, dict[str, Any]),
        "prompt_cache_retention": NoEffect(_FOUND, str),
        "audio": Refused("the model writes text"),
        "functions": Refused("it is deprecated; give tools"),
        "function_call": Refused("it is deprecated; give tool_choice"),
        "moderation": Refused(_NO_MODERATION),
        "prediction": Refused("the drafter predicts; start the server with --drafter lookup"),
        "web_search_options": Refused("there is no search; give a tool", empty=False),
        "chat_template": Refused(_OWN_TEMPLATE),
        "documents": Refused("give them as messages"),
    },
    "chat.messages": {
        "cache_control": NoEffect(_FOUND),
        "annotations": NoEffect(_TEXT_HAS_ALL),
        "function_call": Refused("it is deprecated; give tool_calls"),
    },
    "chat.messages.content": {"cache_control": NoEffect(_FOUND), "prompt_cache_breakpoint": NoEffect(_FOUND)},
    "chat.messages.tool_calls": {"index": NoEffect("streams number their calls, and clients send that back", int)},
    "chat.tools": {"cache_control": NoEffect(_FOUND)},
    "responses": {
        "store": NoEffect(_NOTHING_STORED, bool),
        "background": Refused("a response is returned when it is asked for; leave it out, or give stream"),
        "background_options": NoEffect(_DIRECT_REPLY, dict[str, Any]),
        "max_tool_calls": NoEffect("no effect: it limits calls of built-in tools, and there are none", int),
        "service_tier": NoEffect(_ONE_TIER, str),
        "safety_identifier": NoEffect("no effect", str),
        "access_programs": NoEffect("no effect", dict[str, Any]),
        "image": NoEffect("no effect: there are no images", dict[str, Any]),
        "prompt_cache_key": NoEffect(_FOUND, str),
        "prompt_cache_options": NoEffect(_FOUND, dict[str, Any]),
        "prompt_cache_retention": NoEffect(_FOUND, str),
        "previous_response_id": Refused(_SEND_INPUT),
        "conversation": Refused(_SEND_INPUT),
        "prompt": Refused("no prompts are stored; send the text as input"),
        "client_metadata": NoEffect("no effect", dict[str, Any]),
        "context_management": Refused("shorten the input"),
        "truncation": Refused("shorten the input", ("disabled", "auto")),
        "moderation": Refused(_NO_MODERATION),
    },
    "responses.text": {"verbosity": NoEffect("no effect", _LEVEL)},
    "responses.reasoning": {
        "summary": NoEffect("no effect", str),
        "generate_summary": NoEffect("no effect", str),
        "context": NoEffect("no effect", str),
        "mode": NoEffect("no effect", str),
    },
    "responses.stream_options": {"include_obfuscation": Refused("events are not padded; leave it out")},
    "responses.tools": {
        "allowed_callers": _FUNCTION_CALLER,
        "defer_loading": NoEffect(_ALL_TOOLS, bool),
        "output_schema": Refused("give it in the description"),
        "async": Refused(_ANSWERED),
        "async_": Refused(_ANSWERED),  # as clients in Python, which has the word, send it back
    },
    "responses.tools.namespace": {"description": NoEffect("functions have descriptions of their own", str)},
    "responses.input.message": {"phase": NoEffect("no effect", str)},
    "responses.input.message.content": {
        "annotations": NoEffect(_TEXT_HAS_ALL),
        "prompt_cache_breakpoint": NoEffect(_FOUND),
    },
    "responses.input.function_call": {
        "caller": _FUNCTION_CALLER,
        "async": Refused(_ANSWERED),
        "async_": Refused(_ANSWERED),
    },
    "responses.input.function_call_output": {
        "name": NoEffect("the call has it", str),
        "namespace": NoEffect("the call has it", str),
        "caller": _FUNCTION_CALLER,
    },
    "responses.input.reasoning": {
        "summary": NoEffect("the content has all", list[Any]),
        "encrypted_content": NoEffect("only its writer can read it", str),
    },
    "messages": {
        "max_tokens": Clamped("the room that the prompt leaves in the model's context"),
        "metadata": NoEffect(_NOTHING_STORED, dict[str, Any]),
        "service_tier": NoEffect(_ONE_TIER, str),
        "inference_geo": NoEffect("no effect", str),
        "diagnostics": NoEffect("no effect", dict[str, Any]),
        "fallbacks": NoEffect("no effect: there is one model"),
        "fallback_credit_token": NoEffect("no effect: there is one model"),
        "container": Refused("there are no containers"),
        "thread": Refused("nothing is stored; send all messages", code=NO_THREADS),
        "safeguards": NoEffect("no effect", list[Any]),
    },
    "messages.count_tokens": {
        "cache_control": NoEffect(_FOUND, dict[str, Any]),
        "speed": NoEffect("no effect", str),
        "user_profile_id": NoEffect("no effect", str),
        "workspace_id": NoEffect("no effect", str),
        "context_management": Refused("shorten the messages", ({"edits": []}, _KEEP_ALL)),
        "compaction": Refused("shorten the messages"),
        "mcp_servers": Refused("give the tools of these servers as your own"),
        "billing_policy": NoEffect("no effect", dict[str, Any]),
    },
    "messages.output_config": {"effort": NoEffect("no effect", str)},
    "messages.thinking": {"budget_tokens": NoEffect("no effect", int), "display": NoEffect("no effect", str)},
    "messages.tools": {
        "cache_control": NoEffect(_FOUND),
        "eager_input_streaming": NoEffect("no effect", bool),
        "allowed_callers": _TOOL_CALLER,
        "defer_loading": NoEffect(_ALL_TOOLS, bool),
        "input_examples": Refused("give them in the description"),
    },
    "messages.text": {"cache_control": NoEffect(_FOUND), "citations": NoEffect(_TEXT_HAS_ALL)},
    "messages.tool_use": {
        "cache_control": NoEffect(_FOUND),
        "caller": _TOOL_CALLER,
        "toolset_name": Refused(_NO_SETS),
    },
    "messages.tool_result": {
        "is_error": NoEffect("the content says it", bool),
        "cache_control": NoEffect(_FOUND),
        "toolset_name": Refused(_NO_SETS),
    },
    "messages.redacted_thinking": {"data": NoEffect("only its writer can read it", str)},
    "tokenize": {
        "chat_template": Refused(_OWN_TEMPLATE),
        "mm_processor_kwargs": Refused("the model reads text"),
    },
    "dynamo": {
        "presence_penalty": Refused(f"{_MOVES}; repetition_penalty counts the prompt too and is served", (0,)),
        "frequency_penalty": Refused(f"{_MOVES}; repetition_penalty counts the prompt too and is served", (0,)),
        "min_tokens": Refused(f"{_MOVES}; leave it out", (0,)),
        "max_thinking_tokens": Refused(f"{_MOVES}; leave it out"),
        "prompt_logprobs": Refused(
            "the frontend has no place for them, so it can echo no prompt either; leave out echo"
        ),
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
        "multi_modal_data": Refused(_NOT_TEXT),
        "prompt_embeds": Refused(_NOT_TEXT),
        "prefill_result": Refused(_ONE_PLACE),
        "bootstrap_info": Refused(_ONE_PLACE),
        "skip_special_tokens": Refused("texts hold no special tokens; leave it out", (True,), off=False),
        "detokenize": Refused("texts come with their tokens; leave it out", (True,), off=False),
        "stop_token_ids_hidden": NoEffect("EOS tokens as the frontend knows them"),
        "stop_token_ids_visible": NoEffect("EOS tokens as the frontend knows them"),
        "formatted_prompt": NoEffect("the frontend's own"),
    },
}
"""Fields that are not simply supported, by interface or part of a request, and by name.

`server` stands for all requests for texts to the server; parts of a request have its name as a prefix.
"""
REFUSED = {name: entry for name, entry in FIELDS["generate"].items() if isinstance(entry, Refused)}
NO_EFFECT = {name: entry.why for name, entry in FIELDS["generate"].items() if isinstance(entry, NoEffect)}
"""Of transformers' `generate`."""


def refusal(option: str, advice: str = "leave it out, or call generate without custom_generate") -> ConfigError:
    """The error for an option of transformers' `generate` that tree drafting does not support."""
    return ConfigError(f"tree drafting does not support {option}; {advice}")


def check_options(options: Mapping[str, Any], given: Iterable[str], served: Iterable[str]) -> None:
    """Refuse unknown options, and unsupported ones unless their value requests nothing.

    Args:
        options: the options of a text, defaults included.
        given: names of the options that the caller gave; the others come from a generation config.
        served: names of the supported options.

    Raises:
        ConfigError: an option is not supported, or does not exist; the message has an alternative or the nearest name.
    """
    served = set(served)
    given = set(given)
    for name, value in options.items():
        if name in served or name in NO_EFFECT:
            continue
        entry = REFUSED.get(name) or (Refused("leave it out") if hasattr(GenerationConfig(), name) else None)
        if entry is None:
            raise unknown("option", name, [*served, *NO_EFFECT])
        if not entry.accepts(value):
            raise refusal(show_option(name, value), entry.advice) if name in given else _adopted(name, value, entry)


def _adopted(name: str, value: Any, known: Refused) -> ConfigError:
    """The error for an unsupported default, which the caller can override."""
    neutral = known.neutral[0] if known.neutral else None
    return ConfigError(
        f"the generation config sets {show_option(name, value)}, which tree drafting does not support; "
        f"pass {name}={neutral!r} to generate without it, or remove it from generation_config.json"
    )


def show_option(name: str, value: Any) -> str:
    """An option with its value if that is short."""
    return f"{name}={value!r}" if isinstance(value, int | float | str) else name


def _same(value: object, neutral: object) -> bool:
    """Whether two values are equal, except that True is not 1."""
    plain = isinstance(value, int | float | str | list | dict)
    return plain and value == neutral and isinstance(value, bool) == isinstance(neutral, bool)
