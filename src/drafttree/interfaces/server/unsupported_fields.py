"""Fields of requests to the server that have no effect, are lowered to a limit, or are refused.

`interfaces/server/fields.py` makes fields of the request models from this table; `docs/server-reference.md` shows it.
"""

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import Field, ValidatorFunctionWrapHandler, WrapValidator

from drafttree.constraints.refusals import NoEffect, Refused


@dataclass(frozen=True)
class RefusedField(Refused):
    """A field that cannot be served.

    Attributes:
        code: the error's code in replies.
        empty: whether an empty list or object requests nothing.
    """

    code: str = "not_served"
    empty: bool = True


@dataclass(frozen=True)
class Clamped:
    """A field with an upper bound that may exceed what is available, and is then lowered to it.

    Attributes:
        to: what is available.
    """

    to: str


NO_THREADS = "thread_unsupported_request"
"""Error code that makes Anthropic's client send whole conversations."""
_ONE_TIER = "no effect: there is one tier"
_NOTHING_STORED = "no effect: nothing is stored"
_FOUND = "no effect: the server finds common prefixes automatically"
_OWN_SIZE = "no effect: the model's processor decides the size"
_DIRECT_REPLY = "no effect: the response is returned directly"
_SEND_INPUT = "nothing is stored; send the conversation as input"
_OWN_TEMPLATE = "the server's own template is used"
_ALL_TOOLS = "the model sees all tools"
_NO_SETS = "there are no tool sets"
_ANSWERED = "calls are answered before the model goes on"
_NO_MODERATION = "there is no moderation"
_TEXT_HAS_ALL = "no effect: the text is read without them"
_KEEP_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}
_DIRECT = ({"type": "direct"}, ["direct"])
_FUNCTION_CALLER = RefusedField("functions are called by the model alone", _DIRECT)
_TOOL_CALLER = RefusedField("tools are called by the model alone", _DIRECT)
_LEVEL = Literal["low", "medium", "high"]


def _check_items(table: Any, check: ValidatorFunctionWrapHandler) -> Any:
    for item in table.items() if isinstance(table, dict) else ():
        check(dict([item]))
    return check(table)


ITEM_BY_ITEM = WrapValidator(_check_items)
"""Ends the validation of an object at its first mistake, as a reply names only one. Pydantic 2.13 can do so too."""
METADATA = Annotated[
    dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
    Field(max_length=16),
    ITEM_BY_ITEM,
]
"""The type of OpenAI's `metadata`."""

FIELDS: dict[str, dict[str, RefusedField | NoEffect | Clamped]] = {
    "server": {
        "user": NoEffect("no effect", str),
        "use_beam_search": RefusedField("a draft tree belongs to one text"),
        "length_penalty": RefusedField("it applies only to beam search", (1,)),
        "bad_words": RefusedField("give logit_bias"),
        "allowed_token_ids": RefusedField("give structured_outputs"),
        "include_stop_str_in_output": RefusedField("texts end before a stop string"),
        "truncate_prompt_tokens": RefusedField("shorten the prompt"),
        "prompt_logprobs": RefusedField("give echo and logprobs to /v1/completions"),
        "return_token_ids": RefusedField("leave it out"),
        "kv_transfer_params": RefusedField("the server that answers also processes the prompt"),
        "priority": RefusedField("requests are served in the order they come", (0,)),
    },
    "completions": {
        "best_of": RefusedField("give n", (1,)),
        "suffix": RefusedField("text is only generated after the prompt", ("",)),
        "add_special_tokens": RefusedField("give token ids for a prompt without special tokens", (True,)),
    },
    "completions.stream_options": {"include_obfuscation": RefusedField("chunks are not padded; leave it out")},
    "chat": {
        "service_tier": NoEffect(_ONE_TIER, str),
        "verbosity": NoEffect("no effect", _LEVEL),
        "safety_identifier": NoEffect("no effect", str),
        "metadata": NoEffect(_NOTHING_STORED, METADATA),
        "store": NoEffect(_NOTHING_STORED, bool),
        "prompt_cache_key": NoEffect(_FOUND, str),
        "prompt_cache_options": NoEffect(_FOUND, dict[str, Any]),
        "prompt_cache_retention": NoEffect(_FOUND, str),
        "audio": RefusedField("the model writes text"),
        "functions": RefusedField("it is deprecated; give tools"),
        "function_call": RefusedField("it is deprecated; give tool_choice"),
        "moderation": RefusedField(_NO_MODERATION),
        "prediction": RefusedField("the drafter predicts; start the server with --drafter lookup"),
        "web_search_options": RefusedField("there is no search; give a tool", empty=False),
        "chat_template": RefusedField(_OWN_TEMPLATE),
        "documents": RefusedField("give them as messages"),
    },
    "chat.messages": {
        "cache_control": NoEffect(_FOUND),
        "annotations": NoEffect(_TEXT_HAS_ALL),
        "function_call": RefusedField("it is deprecated; give tool_calls"),
    },
    "chat.messages.content": {"cache_control": NoEffect(_FOUND), "prompt_cache_breakpoint": NoEffect(_FOUND)},
    "chat.messages.content.image_url": {"detail": NoEffect(_OWN_SIZE, str)},
    "chat.messages.tool_calls": {"index": NoEffect("streams number their calls, and clients send that back", int)},
    "chat.tools": {"cache_control": NoEffect(_FOUND)},
    "responses": {
        "store": NoEffect(_NOTHING_STORED, bool),
        "background": RefusedField("a response is returned when it is asked for; leave it out, or give stream"),
        "background_options": NoEffect(_DIRECT_REPLY, dict[str, Any]),
        "max_tool_calls": NoEffect("no effect: it limits calls of built-in tools, and there are none", int),
        "service_tier": NoEffect(_ONE_TIER, str),
        "safety_identifier": NoEffect("no effect", str),
        "access_programs": NoEffect("no effect", dict[str, Any]),
        "image": NoEffect("no effect: there are no images", dict[str, Any]),
        "prompt_cache_key": NoEffect(_FOUND, str),
        "prompt_cache_options": NoEffect(_FOUND, dict[str, Any]),
        "prompt_cache_retention": NoEffect(_FOUND, str),
        "previous_response_id": RefusedField(_SEND_INPUT),
        "conversation": RefusedField(_SEND_INPUT),
        "prompt": RefusedField("no prompts are stored; send the text as input"),
        "client_metadata": NoEffect("no effect", dict[str, Any]),
        "context_management": RefusedField("shorten the input"),
        "truncation": RefusedField("shorten the input", ("disabled", "auto")),
        "moderation": RefusedField(_NO_MODERATION),
    },
    "responses.text": {"verbosity": NoEffect("no effect", _LEVEL)},
    "responses.reasoning": {
        "summary": NoEffect("no effect", str),
        "generate_summary": NoEffect("no effect", str),
        "context": NoEffect("no effect", str),
        "mode": NoEffect("no effect", str),
    },
    "responses.stream_options": {"include_obfuscation": RefusedField("events are not padded; leave it out")},
    "responses.tools": {
        "allowed_callers": _FUNCTION_CALLER,
        "defer_loading": NoEffect(_ALL_TOOLS, bool),
        "output_schema": RefusedField("give it in the description"),
        "async": RefusedField(_ANSWERED),
        "async_": RefusedField(_ANSWERED),  # Python clients send it back under this name, since `async` is a keyword
    },
    "responses.tools.namespace": {"description": NoEffect("functions have descriptions of their own", str)},
    "responses.input.message": {"phase": NoEffect("no effect", str)},
    "responses.input.message.content": {
        "annotations": NoEffect(_TEXT_HAS_ALL),
        "prompt_cache_breakpoint": NoEffect(_FOUND),
    },
    "responses.input.message.content.input_image": {
        "detail": NoEffect(_OWN_SIZE, str),
        "file_id": RefusedField("no files are stored; send the image as a data URL"),
        "prompt_cache_breakpoint": NoEffect(_FOUND),
    },
    "responses.input.function_call": {
        "caller": _FUNCTION_CALLER,
        "async": RefusedField(_ANSWERED),
        "async_": RefusedField(_ANSWERED),
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
        "container": RefusedField("there are no containers"),
        "thread": RefusedField("nothing is stored; send all messages", code=NO_THREADS),
        "safeguards": NoEffect("no effect", list[Any]),
    },
    "messages.count_tokens": {
        "cache_control": NoEffect(_FOUND, dict[str, Any]),
        "speed": NoEffect("no effect", str),
        "user_profile_id": NoEffect("no effect", str),
        "workspace_id": NoEffect("no effect", str),
        "context_management": RefusedField("shorten the messages", ({"edits": []}, _KEEP_ALL)),
        "compaction": RefusedField("shorten the messages"),
        "mcp_servers": RefusedField("give the tools of these servers as your own"),
        "billing_policy": NoEffect("no effect", dict[str, Any]),
    },
    "messages.output_config": {"effort": NoEffect("no effect", str)},
    "messages.thinking": {"budget_tokens": NoEffect("no effect", int), "display": NoEffect("no effect", str)},
    "messages.tools": {
        "cache_control": NoEffect(_FOUND),
        "eager_input_streaming": NoEffect("no effect", bool),
        "allowed_callers": _TOOL_CALLER,
        "defer_loading": NoEffect(_ALL_TOOLS, bool),
        "input_examples": RefusedField("give them in the description"),
    },
    "messages.text": {"cache_control": NoEffect(_FOUND), "citations": NoEffect(_TEXT_HAS_ALL)},
    "messages.image": {"cache_control": NoEffect(_FOUND)},
    "messages.tool_use": {
        "cache_control": NoEffect(_FOUND),
        "caller": _TOOL_CALLER,
        "toolset_name": RefusedField(_NO_SETS),
    },
    "messages.tool_result": {
        "is_error": NoEffect("the content says it", bool),
        "cache_control": NoEffect(_FOUND),
        "toolset_name": RefusedField(_NO_SETS),
    },
    "messages.redacted_thinking": {"data": NoEffect("only its writer can read it", str)},
    "tokenize": {
        "chat_template": RefusedField(_OWN_TEMPLATE),
        "mm_processor_kwargs": RefusedField("the model's processor has its own values"),
    },
}
"""Fields that are not simply supported, by API or part of a request, and by name.

`server` means all requests for texts. The name of a part begins with the name of its request.
"""
