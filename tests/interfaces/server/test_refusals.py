"""What each route refuses: the status, the field that is wrong, and a message that names the value and the fix."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from fastapi.testclient import TestClient

from drafttree import Decoder
from drafttree.constraints.refusals import NoEffect, Refused
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from drafttree.interfaces.server.unsupported_fields import FIELDS, METADATA, Clamped
from helpers.dialects import tokenizer_of
from testing.toy import Table, ToyModel

PLAIN = (
    "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)
CONTEXT = 512
COMPLETIONS, CHAT, RESPONSES, MESSAGES = "v1/completions", "v1/chat/completions", "v1/responses", "v1/messages"
COUNT, TOKENIZE, DETOKENIZE, PLAYGROUND = f"{MESSAGES}/count_tokens", "tokenize", "detokenize", "v1/playground/rounds"
EMBEDDINGS = "v1/embeddings"
ASK = {"role": "user", "content": "Is it cold?"}
OWN = {"role": "assistant", "content": "x"}
BASE = {
    COMPLETIONS: {"prompt": "The house", "max_tokens": 12},
    CHAT: {"messages": [ASK], "max_tokens": 24},
    RESPONSES: {"input": "Is it cold?", "max_output_tokens": 24},
    MESSAGES: {"messages": [ASK], "max_tokens": 24},
    COUNT: {"messages": [ASK]},
    TOKENIZE: {},
    DETOKENIZE: {},
    PLAYGROUND: {},
    EMBEDDINGS: {},
}
LONG = "x" * 10**6
CITY = {"type": "object", "properties": {"city": {"enum": ["Paris"]}}}


def say(content: object, role: str = "user") -> dict:
    return {"messages": [{"role": role, "content": content}]}


def function(name: str = "clock", **more: object) -> dict:
    return {"type": "function", "function": {"name": name, **more}}


def tools_of(route: str, schema: object, **more: object) -> dict:
    """Two tools, of which the second has a schema, and must be enforced."""
    named = [("clock", CITY), ("place", schema)]
    more = {"strict": True, **more}
    if route == CHAT:
        return {"tools": [function(name, parameters=each, **more) for name, each in named]}
    if route == RESPONSES:
        return {"tools": [{"type": "function", "name": name, "parameters": each, **more} for name, each in named]}
    return {"tools": [{"name": name, "input_schema": each, **more} for name, each in named]}


def within(**schema: object) -> dict:
    """A schema at a place in another one."""
    return {"type": "object", "properties": {"x": {"type": "object", "properties": {"y": schema}}}}


def form(**schema: object) -> dict:
    return {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}}


def text_form(**schema: object) -> dict:
    return {"text": {"format": {"type": "json_schema", "name": "x", "schema": schema}}}


def outputs(**form: object) -> dict:
    return {"structured_outputs": form}


def namespace(*tools: dict, name: str = "n") -> dict:
    return {"type": "namespace", "name": name, "tools": [*tools]}


CHOICES = "give none, auto, required, function or allowed_tools"
PLACE = "#/properties/x/properties/y"
NEGATIVE = "cannot be enforced; leave it out"
CLOCK, RESPONSE_CLOCK, CUSTOM_CLOCK = (
    function(),
    {"type": "function", "name": "clock"},
    {"name": "clock", "input_schema": CITY},
)
SCHEMAS = [
    (
        {"anyOf": [{"type": "string"}, {"type": "integer", "minimum": 3, "maximum": 1}]},
        f"'minimum' 3 above 'maximum' 1 at {PLACE}/anyOf/1",
    ),
    ({"not": {}}, f"'not' at {PLACE} {NEGATIVE}"),
    ({"type": "string", "minLength": -1}, f"Expected positive integer for 'minLength', got -1 at {PLACE}"),
    ({"type": "string", "maxLength": -1}, f"Expected positive integer for 'maxLength', got -1 at {PLACE}"),
    ({"type": "array", "minItems": -1}, f"Expected positive integer for 'minItems', got -1 at {PLACE}"),
    ({"type": "array", "items": {"$ref": "#/$defs/z"}}, f"Pointer '/$defs/z' does not exist at {PLACE}/items"),
]
SPECIAL_WITHIN = (
    "the stop string '<|endoftext|>\\nUser' contains the special token '<|endoftext|>', which never appears in a text; "
    "give '<|endoftext|>' alone, or the text beside it"
)
SAMPLING: list[tuple[dict[str, Any], str | None, str]] = [
    ({"temperature": -1}, "temperature", "temperature: give 0 or more, not -1"),
    ({"repetition_penalty": 1e300}, "repetition_penalty", "repetition_penalty: give 1000000 or less, not 1e+300"),
    ({"seed": 2**63}, "seed", f"seed: give less than {2**63}, not {2**63}"),
    ({"logit_bias": {"the": 1}}, "logit_bias", "'the' is not a token id"),
    ({"logit_bias": {"": 1}}, "logit_bias", "'' is not a token id"),
    ({"logit_bias": {"9" * 5000: 1}}, "logit_bias", "is not a token id"),
    ({"logit_bias": {"4096": 1}}, "logit_bias", "token id 4096 is outside the vocabulary of"),
    ({"stop_token_ids": [4096]}, "stop_token_ids", "token id 4096 is outside the vocabulary of"),
    ({"min_tokens": 25}, "min_tokens", "min_tokens is 25, but the text may have"),
    ({"stop": ["x", "<|endoftext|>\nUser"]}, "stop", f"stop: {SPECIAL_WITHIN}"),
    ({"unheard_of": 1}, "unheard_of", "unheard_of: there is no such field; leave it out"),
    ({"u" * 100_000: 1}, f"{'u' * 200}...", "u...: there is no such field; leave it out"),
    (outputs(regex="(", choice=["x"]), "structured_outputs", "give exactly one of json, regex, choice, grammar and"),
    (outputs(regex="("), "structured_outputs", "structured_outputs: invalid regex '('"),
    (outputs(regex="a{2147483648}"), "structured_outputs", "repeats more than 2147483647 times; lower its bounds"),
    (outputs(json=[1]), "structured_outputs.json", "structured_outputs.json: give an object"),
    (outputs(json={"enum": ["x" * 40000]}), "structured_outputs", "give at most 32768"),
    (outputs(json={"not": {}}), "structured_outputs", "'not' at # cannot be enforced"),
    (
        {**outputs(regex="x"), "ignore_eos": True},
        "ignore_eos",
        "a grammar ends its text with an EOS token; leave out ignore_eos",
    ),
]
"""What all routes that write texts refuse."""
REFUSED: dict[str, list[tuple[dict[str, Any], str | None, str]]] = {
    COMPLETIONS: [
        *SAMPLING,
        ({"prompt": ""}, "prompt", "a prompt is empty; give at least one token"),
        ({"prompt": []}, "prompt", "a prompt is empty"),
        ({"prompt": ["x", ""]}, "prompt", "a prompt is empty"),
        ({"prompt": [[1], []]}, "prompt", "a prompt is empty"),
        ({"prompt": [1, "x"]}, "prompt", "a prompt is text, a list of texts, token ids, or a list of lists of token"),
        ({"prompt": 3}, "prompt", "a prompt is text"),
        ({"prompt": [-1]}, "prompt", "-1 is not a token id"),
        ({"prompt": [4096]}, "prompt", "token id 4096 is outside the vocabulary of"),
        ({"prompt": [1, 10**400]}, "prompt", "a number above 64 bits is not a token id"),
        (
            {"prompt": ["a", LONG]},
            "prompt",
            f"the prompt has 1000000 characters, and the model's context of {CONTEXT} tokens",
        ),
        ({"max_tokens": 0}, "max_tokens", "max_tokens: this is 0, so there is nothing to send without echo"),
        ({"max_tokens": 10**400}, "max_tokens", f"max_tokens: give less than {2**63}"),
        ({"logprobs": 21}, "logprobs", "logprobs: give 20 or less, not 21"),
        ({"stop": ["a", ""]}, "stop.1", 'stop.1: give at least 1 character, not ""'),
        ({"n": 128, "prompt": ["a", "b", "c"]}, "n", "384 texts are more than the server takes at once"),
        ({"messages": []}, "messages", "messages: there is no such field; did you mean 'prompt'?"),
        ({"model": "gpt-4"}, "model", "the model 'gpt-4' is not served; 'toy' is"),
    ],
    CHAT: [
        *SAMPLING,
        (
            {"max_tokens": 3000},
            "max_tokens",
            f"and 3000 tokens of text exceed the model's context of {CONTEXT}; shorten it or",
        ),
        (
            {"max_completion_tokens": 3000, "max_tokens": None},
            "max_completion_tokens",
            "and 3000 tokens of text exceed the model's context",
        ),
        (say("word " * 300), "messages", f"leaves no room for a text in the model's context of {CONTEXT}"),
        (
            {"tools": [function(description="word " * 300)]},
            "messages",
            f" tokens, tools included, leaves no room for a text in the model's context of {CONTEXT}",
        ),
        (say(LONG), "messages", f"the model's context of {CONTEXT} tokens has room for"),
        (
            say([{"type": "image_url"}]),
            "messages.0.content.0",
            "a content part of type 'image_url' is not served; give text",
        ),
        (say("x", "bot"), "messages.0.role", "give 'system', 'developer', 'user', 'assistant' or 'tool', not \"bot\""),
        (
            {"messages": [ASK, OWN]},
            "messages",
            "the last message is the assistant's own; end with the message that it is to",
        ),
        (
            {"messages": [{**ASK, "tool_calls": [{"id": "c", **CLOCK}]}]},
            "messages.0.tool_calls",
            "messages.0.tool_calls: these belong to the assistant's messages, not 'user'",
        ),
        (
            {"messages": [{**ASK, "tool_call_id": "c"}]},
            "messages.0.tool_call_id",
            "messages.0.tool_call_id: this belongs to messages of role 'tool', not 'user'",
        ),
        ({"messages": [{"role": "user"}]}, "messages.0.content", "a message of role 'user' has a content"),
        ({"messages": []}, "messages", "at least 1 item"),
        (
            {"add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
            "continue_final_message: this and add_generation_prompt cannot both be true",
        ),
        (
            {"messages": [ASK, {**OWN, "content": ""}], "continue_final_message": True},
            "messages",
            "the last message has no content",
        ),
        ({"n": 0}, "n", "n: give 1 or more, not 0"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "stream_options: this needs stream to be true"),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs: this needs logprobs to be true"),
        ({"stop": ["a", ""]}, "stop.1", 'stop.1: give at least 1 character, not ""'),
        ({"max_completion_tokens": 3}, "max_completion_tokens", "this differs from max_tokens; give one of them"),
        ({"max_tokens": 10**400}, "max_tokens", f"max_tokens: give less than {2**63}"),
        ({"chat_template_kwargs": {"tokenize": False}}, "chat_template_kwargs", "'tokenize' is not a variable"),
        ({"chat_template_kwargs": {"messages": []}}, "chat_template_kwargs", "'messages' is not a variable"),
        (
            {"reasoning_effort": "low"},
            "reasoning_effort",
            "reasoning_effort is 'low', but the model's chat template does not",
        ),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "this is required"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "this is required",
        ),
        (form(enum=["x" * 40000]), "response_format", "give at most 32768"),
        (form(enum=[1], **{"if": {}}), "response_format", "response_format: invalid JSON schema: 'if' at"),
        (
            {"tools": [CLOCK], **outputs(regex="x")},
            "structured_outputs",
            "this excludes tools and response_format; give",
        ),
        ({"tool_choice": "any"}, "tool_choice", f"tool_choice: {CHOICES}"),
        ({"tool_choice": ["none"]}, "tool_choice", f"tool_choice: {CHOICES}"),
        ({"tool_choice": {}}, "tool_choice.type", "give the type of a tool_choice: function or allowed_tools"),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": [{"type": "custom"}]},
                }
            },
            "tool_choice.allowed_tools.tools.0",
            "a tool to be called of type 'custom' is not served; give function",
        ),
        (
            {"messages": [ASK, {"role": "assistant", "tool_calls": [{"id": "c", "type": "mcp"}]}]},
            "messages.1.tool_calls.0",
            "a call of type 'mcp' is not served; give function or custom",
        ),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice: this asks for a call, but there are no tools; give"),
        (
            {"tools": [CLOCK], "tool_choice": function("clok")},
            "tool_choice",
            "tool_choice: unknown tool 'clok'; did you mean 'clock'?",
        ),
        (
            {"tools": [CLOCK], "tool_choice": {"type": "custom"}},
            "tool_choice",
            f"type 'custom' is not served; {CHOICES}",
        ),
        (
            {"tools": [CLOCK, CLOCK]},
            "tools.1.function.name",
            "two tools have the name 'clock'; give one of them another",
        ),
        ({"tools": [{"function": {"name": "x"}}]}, "tools.0.type", "tools.0.type: give the type of a tool: function"),
        ({"tools": [{"type": 3}]}, "tools.0.type", "tools.0.type: give the type of a tool: function"),
        ({"tools": ["clock"]}, "tools.0", "tools.0: give an object"),
        ({"messages": ["Hi"]}, "messages.0", "messages.0: give an object"),
        (say([{"text": "x"}]), "messages.0.content.0.type", "give the type of a content part: text"),
        ({"response_format": {"type": "yaml"}}, "response_format", "give text, json_object or json_schema"),
        ({"response_format": {}}, "response_format.type", "give the type of a form: text, json_object or json_schema"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata", "metadata: give at most 16 items, not 17"),
        ({"metadata": {"x" * 65: "x"}}, f"metadata.{'x' * 65}", "give at most 64 characters"),
        ({"metadata": {"x": "x" * 513}}, "metadata.x", "give at most 512 characters"),
        ({"input": "Hi"}, "input", "input: there is no such field; did you mean 'messages'?"),
        ({"prompt": "Hi"}, "prompt", "prompt: there is no such field; did you mean 'messages'?"),
        ({"stop_sequences": ["x"]}, "stop_sequences", "stop_sequences: there is no such field; did you mean 'stop'?"),
        ({"max_output_tokens": 3}, "max_output_tokens", "there is no such field; did you mean 'max_completion_tokens'"),
        ({"truncation": "auto"}, "truncation", "truncation: there is no such field; leave it out"),
        ({"regex": "x"}, "regex", "regex: there is no such field; it belongs in 'structured_outputs'"),
        ({"stop": 3}, "stop", "stop: give a text or a list"),
        ({"temperature": "x"}, "temperature", 'temperature: give a number, not "x"'),
        ({"stream": 1}, "stream", "stream: give true or false, not 1"),
        ({"skip_special_tokens": False}, "skip_special_tokens", "skip_special_tokens: give true, not false"),
        ({"tools": {"x": CLOCK}}, "tools", "tools: give a list"),
        ({"tools": [RESPONSE_CLOCK]}, "tools.0.name", "tools.0.name: there is no such field; it belongs in 'function'"),
        (
            {"tools": [CLOCK], "tool_choice": RESPONSE_CLOCK},
            "tool_choice.name",
            "tool_choice.name: there is no such field; it belongs in 'function'",
        ),
        ({"tools": [CLOCK], "tool_choice": {"type": "auto"}}, "tool_choice", 'give "auto" as a text, not as an object'),
        (
            {"response_format": {"type": "json_schema", "name": "x", "schema": {}}},
            "response_format.name",
            "response_format.name: there is no such field; it belongs in 'json_schema'",
        ),
        ({"max_completion_tokenz": 1}, "max_completion_tokenz", "no such field; did you mean 'max_completion_tokens'?"),
        (
            {"tools": [CLOCK, {"type": "custom"}], "tool_choice": "required"},
            "tool_choice",
            "tool_choice: this asks for a call, but the server cannot run 'custom'; leave it out of the tools",
        ),
        ({"tools": [CLOCK] * 513}, "tools", "tools: give at most 512 items, not 513"),
        (
            {"tools": [function("x" * 129)]},
            "tools.0.function.name",
            "give a name that matches ^[a-zA-Z0-9_./-]{1,128}$",
        ),
        (
            {"tools": [function("a b")]},
            "tools.0.function.name",
            "give a name that matches ^[a-zA-Z0-9_./-]{1,128}$",
        ),
        (
            tools_of(CHAT, {"type": "array"}),
            "tools.1.function.parameters",
            "tool 'place': the schema allows array; the arguments of a function are an",
        ),
        (
            tools_of(CHAT, {"type": ["object", "null"]}),
            "tools.1.function.parameters",
            "the schema allows null, object; the arguments",
        ),
        (
            tools_of(CHAT, {"anyOf": [{"type": "object"}, {"type": "null"}]}),
            "tools.1.function.parameters",
            "allows null, object",
        ),
        (tools_of(CHAT, {"type": []}), "tools.1.function.parameters", "the schema allows nothing"),
        (
            tools_of(CHAT, {"type": "object", "allOf": [{"type": "string"}]}),
            "tools.1.function.parameters",
            "tool 'place': the schema allows nothing; the arguments of a function are an object",
        ),
        *[
            (
                tools_of(CHAT, within(**schema)),
                "tools.1.function.parameters",
                f"tools.1.function.parameters: invalid JSON schema: {what}",
            )
            for schema, what in SCHEMAS
        ],
        ({"tools": [CLOCK], "ignore_eos": True}, "ignore_eos", "a grammar ends its text with an EOS token"),
        ({"model": "gpt-4"}, "model", "the model 'gpt-4' is not served; 'toy' is"),
    ],
    RESPONSES: [
        *SAMPLING,
        ({"input": []}, "input", "at least 1 item"),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "web_search"}]}},
            "tool_choice.tools.0",
            "a tool to be called of type 'web_search' is not served; give function",
        ),
        (
            {"input": [{"type": "item_reference", "id": "x"}]},
            "input.0",
            "an item of type 'item_reference' is not served, since nothing is stored; send the item itself",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input.0.content.0",
            "'input_image' is not served",
        ),
        ({"input": [{"role": "tool", "content": "x"}]}, "input.0.role", "'user', 'assistant', 'system'"),
        (
            {"input": [{"type": "reasoning", "id": "x"}]},
            "input.0",
            "input.0: reasoning alone cannot be answered; send a message with it",
        ),
        ({"background": True}, "background", "background: this is not served; a response is returned when it is asked"),
        ({"metadata": {str(n): "x" for n in range(17)}}, "metadata", "metadata: give at most 16 items, not 17"),
        ({"input": [ASK, OWN]}, "input", "the last message is the assistant's own"),
        ({"input": LONG}, "input", f"the model's context of {CONTEXT} tokens has room for"),
        (
            {
                "tools": [{"type": "web_search"}, RESPONSE_CLOCK],
                "tool_choice": {"type": "function", "name": "web_search"},
            },
            "tool_choice",
            "tool_choice: this names 'web_search', which the server cannot run; leave out the choice, or",
        ),
        (
            {"tools": [{"type": "web_search"}], "tool_choice": {"type": "web_search"}},
            "tool_choice",
            f"type 'web_search' is not served; {CHOICES}",
        ),
        (
            {"tools": [namespace(RESPONSE_CLOCK, RESPONSE_CLOCK | {"name": "y" * 9}, name="x" * 120)]},
            "tools.0.tools.1.name",
            "tools.0.tools.1.name: with that of its namespace the name has 130 characters; give at most 128",
        ),
        (
            {"tools": [RESPONSE_CLOCK, namespace(*[RESPONSE_CLOCK] * 512)]},
            "tools",
            "tools: with those in namespaces there are 513 tools; give at most 512",
        ),
        (
            {"tools": [RESPONSE_CLOCK, namespace(RESPONSE_CLOCK, RESPONSE_CLOCK)]},
            "tools.1.tools.1.name",
            "tools.1.tools.1.name: two tools have the name 'n.clock'",
        ),
        (
            {"tools": [RESPONSE_CLOCK, namespace(RESPONSE_CLOCK, RESPONSE_CLOCK | {"name": "a b"})]},
            "tools.1.tools.1.name",
            "tools.1.tools.1.name: give a name that matches ^[a-zA-Z0-9_./-]{1,128}$",
        ),
        (
            {"tools": [namespace(*tools_of(RESPONSES, within(**SCHEMAS[0][0]))["tools"])]},
            "tools.0.tools.1.parameters",
            f"tools.0.tools.1.parameters: invalid JSON schema: {SCHEMAS[0][1]}",
        ),
        (
            {"tools": [namespace(RESPONSE_CLOCK)], "tool_choice": {"type": "function", "name": "clock"}},
            "tool_choice",
            "tool_choice: unknown tool 'clock'; did you mean 'n.clock'?",
        ),
        (
            {"tool_choice": {"type": "function", "name": "f"}},
            "tool_choice",
            "tool_choice: this asks for a call, but there are no tools",
        ),
        (
            {"tools": [RESPONSE_CLOCK], "tool_choice": {"type": "function", "name": "f"}},
            "tool_choice",
            "tool_choice: unknown tool 'f'; known: clock",
        ),
        (
            {"tools": [RESPONSE_CLOCK], "tool_choice": {"type": "mcp"}},
            "tool_choice",
            f"a tool_choice of type 'mcp' is not served; {CHOICES}",
        ),
        ({"tools": [RESPONSE_CLOCK] * 2}, "tools.1.name", "tools.1.name: two tools have the name 'clock'"),
        (
            {"text": {"format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}}},
            "text.format.json_schema",
            "text.format.json_schema: there is no such field; give name, schema in its place",
        ),
        ({"top_logprobs": 2}, "top_logprobs", "top_logprobs: this needs 'message.output_text.logprobs' in include"),
        (
            {"reasoning": {"effort": "low"}},
            "reasoning.effort",
            "reasoning.effort is 'low', but the model's chat template",
        ),
        ({"max_output_tokens": 3000}, "max_output_tokens", f"exceed the model's context of {CONTEXT}"),
        ({"max_output_tokens": 10**400}, "max_output_tokens", f"max_output_tokens: give less than {2**63}"),
        ({"text": {"format": {"type": "json_schema", "name": "x"}}}, "text.format.schema", "this is required"),
        (text_form(enum=["x" * 40000]), "text.format", "text.format has 40014 characters as JSON; give at most 32768"),
        (text_form(enum=[1], **{"if": {}}), "text.format", "'if' at"),
        (
            {"tools": [RESPONSE_CLOCK], **text_form(enum=[1], **{"if": {}})},
            "text.format",
            "text.format: invalid JSON schema: 'if' at",
        ),
        ({**text_form(), **outputs(regex="x")}, "structured_outputs", "this excludes tools and text.format"),
        ({"n": 2}, "n", "n: there is no such field; leave it out"),
        ({"messages": [ASK]}, "messages", "messages: there is no such field; did you mean 'input'?"),
        ({"tools": [CLOCK]}, "tools.0.function", "tools.0.function: there is no such field; give name in its place"),
        (
            {"tools": [{"type": "function", **CUSTOM_CLOCK}]},
            "tools.0.input_schema",
            "tools.0.input_schema: there is no such field; did you mean 'parameters'?",
        ),
        (form(), "response_format", "response_format: there is no such field; did you mean 'text.format'?"),
        ({"max_tokens": 2}, "max_tokens", "max_tokens: there is no such field; did you mean 'max_output_tokens'?"),
        (
            tools_of(RESPONSES, within(**SCHEMAS[0][0])),
            "tools.1.parameters",
            f"tools.1.parameters: invalid JSON schema: {SCHEMAS[0][1]}",
        ),
        ({"model": "gpt-4"}, "model", "the model 'gpt-4' is not served; 'toy' is"),
    ],
    MESSAGES: [
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"enum": ["x" * 40000]}}}},
            None,
            "output_config.format has 40014 characters as JSON; give at most 32768",
        ),
        (
            {"output_config": {"format": {"type": "json_schema", "schema": {"enum": [1], "if": {}}}}},
            None,
            "output_config.format: invalid JSON schema: 'if' at",
        ),
        ({"max_tokens": None}, None, "max_tokens: this is required; give an integer, not null"),
        ({"max_tokens": 10**400}, None, f"max_tokens: give less than {2**63}"),
        ({"max_tokenz": 1}, None, "max_tokenz: there is no such field; did you mean 'max_tokens'?"),
        ({"messages": []}, None, "messages: give at least 1 item"),
        (say([]), None, "messages.0.content: a turn of the user is empty; give it content, or leave it out"),
        (
            {"messages": [ASK, OWN, {"role": "user", "content": []}, ASK]},
            None,
            "messages.2.content: a turn of the user is empty",
        ),
        (
            {"messages": [ASK, {**OWN, "content": [{"type": "text", "text": "x"}, {"type": "tool_result"}]}, ASK]},
            None,
            "messages.1.content.1: a block of the assistant of type 'tool_result' is not served; give text, tool_use",
        ),
        (say([{"text": "x"}]), None, "messages.0.content.0.type: give the type of a block: text"),
        (say(["x"]), None, "messages.0.content.0: give an object"),
        (say("x", "tool"), None, "'user', 'assistant' or 'system'"),
        ({"messages": [{"role": ["user"], "content": ["x"]}]}, None, "messages.0.role: give 'user', 'assistant' or"),
        (
            say([{"type": "image"}]),
            None,
            "messages.0.content.0: a block of the user of type 'image' is not served; give text or tool",
        ),
        (say([{"type": "tool_use"}]), None, "a block of the user of type 'tool_use'"),
        (say(LONG), None, "messages: the prompt has"),
        (
            say([{"type": "tool_use", "id": "c", "name": "f"}], "assistant"),
            None,
            "messages.0: the last message is the assistant's and calls tools, so that their results come next; change",
        ),
        (say([{"type": "thinking", "thinking": "Hm."}], "assistant"), None, "has no text to continue"),
        (say("Hi \n", "assistant"), None, "ends with whitespace"),
        ({"messages": [ASK, OWN], "thinking": {"type": "enabled"}}, None, "continued while thinking is enabled"),
        (
            {"messages": [ASK, OWN], "output_config": {"format": {"type": "json_schema", "schema": {}}}},
            None,
            "cannot be continued in the form of output_config.format",
        ),
        (
            {"thinking": {"type": "enabled", "budget_tokens": 9}},
            None,
            "thinking is enabled, but the model's chat template",
        ),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "tool", "name": "bash"}},
            None,
            "tool_choice: this names 'bash', which the server cannot run; leave out the choice",
        ),
        (
            {"tools": [{"type": "bash_20250124", "name": "bash"}], "tool_choice": {"type": "any"}},
            None,
            "tool_choice: this asks for a call, but the server cannot run 'bash'; leave it out of the tools",
        ),
        (
            {"tools": [RESPONSE_CLOCK]},
            None,
            "tools.0: a tool of type 'function' is not served; give custom, with an input_schema",
        ),
        ({"tools": [{"type": "custom", "name": "f"}]}, None, "tools.0.input_schema: this is required"),
        ({"context_management": {"edits": [{"type": "clear_tool_uses_20250919"}]}}, None, "context_management: this"),
        (
            {"tools": [{"name": "f", "input_schema": {}}]},
            None,
            "tools.0.input_schema: tool 'f': the type is None; the input of a tool is",
        ),
        ({"tools": [CUSTOM_CLOCK] * 2}, None, "tools.1.name: two tools have the name 'clock'"),
        (
            tools_of(MESSAGES, within(**SCHEMAS[0][0])),
            None,
            f"tools.1.input_schema: invalid JSON schema: {SCHEMAS[0][1]}",
        ),
        (
            tools_of(MESSAGES, {"type": "object", "allOf": [{"type": "string"}]}),
            None,
            "tools.1.input_schema: tool 'place': the schema allows nothing",
        ),
        ({"logprobs": True}, None, "logprobs: there is no such field; leave it out"),
        ({"tool_choice": "any"}, None, 'tool_choice: give {"type": "any"}'),
        (
            {"tools": [CUSTOM_CLOCK], "tool_choice": {"type": "function", "function": {}}},
            None,
            "tool_choice: a tool_choice of type 'function' is not served; give auto, any, tool or none",
        ),
        ({"tool_choice": {"type": "any"}}, None, "tool_choice: this asks for a call, but there are no tools"),
        ({"min_tokens": 25}, None, "min_tokens is 25, but the text may have"),
        ({"ignore_eos": True, **outputs(regex="x")}, None, "ignore_eos: a grammar ends its text with an EOS token"),
        (
            {"tools": [CUSTOM_CLOCK], "tool_choice": {"type": "tool"}},
            None,
            "give a name with the type 'tool', and with no other type",
        ),
        (
            {"tools": [CUSTOM_CLOCK], "tool_choice": {"type": "tool", "name": "f"}},
            None,
            "tool_choice: unknown tool 'f'; known: clock",
        ),
        ({"stop_sequences": [""]}, None, "stop_sequences.0"),
        ({"stop_sequences": ["<|endoftext|>\nUser"]}, None, f"stop_sequences: {SPECIAL_WITHIN}"),
        ({"thread": {"type": "create"}}, None, "thread: this is not served; nothing is stored"),
        ({"model": "claude"}, None, "the model 'claude' is not served; 'toy' is"),
    ],
    COUNT: [
        (say(LONG), None, f"context of {CONTEXT} tokens has room for"),
        ({"thinking": {"type": "enabled"}}, None, "thinking is enabled, but the model's chat template"),
        ({"model": "claude"}, None, "the model 'claude' is not served; 'toy' is"),
    ],
    TOKENIZE: [
        ({}, "prompt", "prompt: give either prompt or messages"),
        ({"prompt": "x", "messages": [ASK]}, "prompt", "prompt: give either prompt or messages"),
        ({"prompt": "x", "tools": [CLOCK]}, "tools", "tools: this belongs to messages, not to a prompt"),
        ({"messages": [ASK], "tools": [CLOCK] * 2}, "tools.1.function.name", "two tools have the name 'clock'"),
        (
            {"prompt": "x", "continue_final_message": True},
            "continue_final_message",
            "continue_final_message: this belongs to messages, not to a prompt",
        ),
        (
            {"messages": [ASK], "add_special_tokens": True},
            "add_special_tokens",
            "add_special_tokens: the chat template adds the special tokens of a conversation; leave it out",
        ),
        (
            {"messages": [ASK], "add_generation_prompt": True, "continue_final_message": True},
            "continue_final_message",
            "cannot both be true",
        ),
        ({"prompt": LONG}, "prompt", f"context of {CONTEXT} tokens has room for"),
        (say(LONG), "messages", f"context of {CONTEXT} tokens has room for"),
        ({"prompt": 3}, "prompt", "prompt: give a text, not 3"),
        ({"prompt": "x", "model": "gpt-4"}, "model", "the model 'gpt-4' is not served; 'toy' is"),
    ],
    DETOKENIZE: [
        ({}, "tokens", "tokens: this is required"),
        ({"tokens": [4096]}, "tokens", "token id 4096 is outside the vocabulary of"),
        ({"tokens": [-1]}, "tokens.0", "give 0 or more, not -1"),
        ({"tokens": [10**30]}, "tokens.0", f"tokens.0: give less than {2**63}"),
        ({"tokens": [], "model": "gpt-4"}, "model", "the model 'gpt-4' is not served; 'toy' is"),
    ],
    EMBEDDINGS: [({"input": "x"}, None, "embeddings are not served: the model writes text")],
    PLAYGROUND: [
        ({}, "prompt", "prompt: give either prompt or messages"),
        ({"prompt": "x", **say("Hi")}, "prompt", "prompt: give either prompt or messages"),
        ({"prompt": "x", "max_tokens": 0}, "max_tokens", "max_tokens: give 1 or more, not 0"),
        ({"prompt": "x", "max_tokens": 10**400}, "max_tokens", f"max_tokens: give less than {2**63}"),
        *(({"prompt": "x", "max_tokens": 24, **body}, param, message) for body, param, message in SAMPLING),
        (
            {"prompt": "x", "max_tokens": 4096},
            "max_tokens",
            f"and 4096 tokens of text exceed the model's context of {CONTEXT}",
        ),
        ({"messages": [ASK], "max_tokens": 4096}, "max_tokens", "and 4096 tokens of text exceed the model's context"),
        ({"prompt": "x", "beams": 4}, "beams", "beams: there is no such field; leave it out"),
        ({"prompt": ""}, "prompt", 'prompt: give at least 1 character, not ""'),
        ({"messages": []}, "messages", "messages: give at least 1 item"),
        (
            say("Hi", "judge"),
            "messages.0.role",
            "messages.0.role: give 'system', 'developer', 'user', 'assistant' or 'tool'",
        ),
        ({"messages": [OWN]}, "messages", "the last message is the assistant's own"),
    ],
}
"""By route: what is changed in a request that is served, the field that is named, and a part of what is said."""
NINES = "9" * 5000
DIGITS = "this is an integer of more than 4300 digits, which is not read"
UNREADABLE = [
    (COMPLETIONS, "{", "invalid_json", "the body is not JSON"),
    (COMPLETIONS, "", "missing", "the body: send a JSON object, with the header Content-Type: application/json"),
    (COMPLETIONS, b'{"prompt": "\xff"}', "invalid_utf8", "the body is not UTF-8 text"),
    (COMPLETIONS, "[]", "model_attributes_type", "send a JSON object, with the header Content-Type: application/json"),
    (COMPLETIONS, '{"prompt": ' + "[" * 10**4, "invalid_json", "nested too deeply"),
    (
        COMPLETIONS,
        '{"prompt": "\\ud800"}',
        "string_unicode",
        "prompt: this holds half a surrogate pair, which is not text",
    ),
    (COMPLETIONS, '{"prompt": "a", "\\ud800": 1}', "string_unicode", "holds half a surrogate pair"),
    (COMPLETIONS, '{"prompt": "a", "metadata": {"a": "\\ud800"}}', "string_unicode", "metadata.a: this holds half a"),
    (
        COMPLETIONS,
        '{"prompt": "a", "temperature": NaN}',
        "finite_number",
        "temperature: give a finite number",
    ),
    (COMPLETIONS, f'{{"prompt": "a", "seed": {NINES}}}', "int_parsing_size", f"seed: {DIGITS}"),
    (COMPLETIONS, f'{{"prompt": "a", "temperature": -{NINES}}}', "int_parsing_size", f"temperature: {DIGITS}"),
    (COMPLETIONS, f'{{"seed": 1, "prompt": [[1, 2], [{NINES}]]}}', "int_parsing_size", f"prompt.1.0: {DIGITS}"),
    (COMPLETIONS, NINES, "int_parsing_size", f"the body: {DIGITS}"),
    (COMPLETIONS, f'{{"prompt": {NINES}', "invalid_json", "the body is not JSON: Expecting ',' delimiter"),
    (COMPLETIONS, '{"prompt": ["a", "\\ud800", "\\ud800"], "\\udfff": "\\ud800"}', "string_unicode", "prompt.1: this"),
    (COMPLETIONS, f'{{"seed": {NINES}, "stop": "\\ud800", "top_k": {NINES}}}', "int_parsing_size", f"seed: {DIGITS}"),
    (CHAT, f'{{"messages": [], "max_tokens": {NINES}}}', "int_parsing_size", f"max_tokens: {DIGITS}"),
    (
        RESPONSES,
        f'{{"tools": [{{"parameters": {{"const": {NINES}}}}}]}}',
        "int_parsing_size",
        f"tools.0.parameters.const: {DIGITS}",
    ),
    (
        RESPONSES,
        '{"input": "a", "tools": [{"type": "function", "name": "f", "parameters": {"const": "\\ud800"}}]}',
        "string_unicode",
        "tools.0.parameters.const: this holds half a surrogate pair",
    ),
    (
        RESPONSES,
        '{"input": "a", "tools": [{"type": "function", "name": "f", "parameters": {"const": NaN}}]}',
        "no_json",
        "this is not JSON",
    ),
    (MESSAGES, f'{{"max_tokens": {NINES}}}', None, f"max_tokens: {DIGITS}"),
    (
        MESSAGES,
        '{"max_tokens": 1, "messages": [{"role": "user", "content": "\\ud800"}]}',
        None,
        "messages.0.content: this holds half a surrogate pair",
    ),
    (TOKENIZE, f'{{"prompt": {NINES}}}', "int_parsing_size", f"prompt: {DIGITS}"),
    (TOKENIZE, '{"prompt": "\\ud800"}', "string_unicode", "prompt: this holds half a surrogate pair"),
    (DETOKENIZE, f'{{"tokens": [{NINES}]}}', "int_parsing_size", f"tokens.0: {DIGITS}"),
    (PLAYGROUND, f'{{"prompt": "a", "max_tokens": {NINES}}}', "int_parsing_size", f"max_tokens: {DIGITS}"),
]
"""Bodies that are no JSON, or hold what JSON or Unicode does not know, with the code by which programs know it."""


def app(template: str | None = PLAIN) -> TestClient:
    """An application of a toy model with a chat template that knows no tools and no thinking."""
    tokenizer = tokenizer_of("llama3")
    tokenizer.chat_template = template
    vocab = len(tokenizer)
    model = ToyModel(Table(vocab, order=1), vocab, context=CONTEXT)
    decoder = Decoder(model, tokenizer=tokenizer, eos=[tokenizer.eos_token_id])
    return TestClient(create_app(decoder, ServerSettings("toy")), raise_server_exceptions=False)


@pytest.fixture(scope="module")
def client() -> Iterator[TestClient]:
    with app() as found:
        yield found


def refusal(reply: Any, status: int) -> dict:
    """The error of a reply, which has the form of its API."""
    body = reply.json()
    assert reply.status_code == status, body
    kind = "not_found_error" if status == 404 else "invalid_request_error"
    assert body["error"]["type"] == kind
    if "messages" in reply.url.path:
        assert (body["type"], body["request_id"]) == ("error", reply.headers["request-id"])
        assert {*body["error"]} <= {"type", "message", "details"}
    else:
        assert [[*body], [*body["error"]]] == [["error"], ["message", "type", "param", "code"]]
    return body["error"]


@pytest.mark.parametrize(
    ("route", "body", "param", "message"), [(route, *each) for route, rows in REFUSED.items() for each in rows]
)
def test_what_cannot_be_served_is_refused_by_name(client, route, body, param, message):
    reply = client.post(f"/{route}", json={**BASE[route], **body})
    error = refusal(reply, 404 if message.startswith(("the model '", "embeddings")) else 400)
    assert message in error["message"]
    assert error.get("param") == param
    assert len(error["message"]) < 400, "it repeats what it was given"
    if "thread" in body:  # by which Anthropic's client knows that it must send all messages
        assert error["details"] == {"error_code": "thread_unsupported_request"}


RESULT = {"type": "tool_result", "tool_use_id": "c", "content": "x"}


def told(**more: object) -> dict:
    """A conversation in which a call was made and answered."""
    call = {"id": "c", "type": "function", "function": {"name": "clock"}, **more}
    return {"messages": [ASK, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "content": "x"}]}


PARTS: dict[str, tuple[list[str], str, Callable[..., dict]]] = {
    "server": ([COMPLETIONS, CHAT, RESPONSES, MESSAGES], "", dict),
    "completions": ([COMPLETIONS], "", dict),
    "completions.stream_options": (
        [COMPLETIONS, CHAT],
        "stream_options.",
        lambda **field: {"stream": True, "stream_options": field},
    ),
    "chat": ([CHAT], "", dict),
    "chat.messages": ([CHAT, TOKENIZE], "messages.0.", lambda **field: {"messages": [ASK | field]}),
    "chat.messages.content": (
        [CHAT],
        "messages.0.content.0.",
        lambda **field: say([{"type": "text", "text": "x", **field}]),
    ),
    "chat.messages.tool_calls": ([CHAT], "messages.1.tool_calls.0.", told),
    "chat.tools": ([CHAT], "tools.0.", lambda **field: {"tools": [CLOCK | field], "tool_choice": "none"}),
    "responses": ([RESPONSES], "", dict),
    "responses.text": ([RESPONSES], "text.", lambda **field: {"text": field}),
    "responses.reasoning": ([RESPONSES], "reasoning.", lambda **field: {"reasoning": field}),
    "responses.stream_options": (
        [RESPONSES],
        "stream_options.",
        lambda **field: {"stream": True, "stream_options": field},
    ),
    "responses.tools": (
        [RESPONSES],
        "tools.0.",
        lambda **field: {"tools": [RESPONSE_CLOCK | field], "tool_choice": "none"},
    ),
    "responses.tools.namespace": (
        [RESPONSES],
        "tools.0.",
        lambda **field: {"tools": [{"type": "namespace", "name": "n", "tools": [RESPONSE_CLOCK], **field}]},
    ),
    "responses.input.message": ([RESPONSES], "input.0.", lambda **field: {"input": [ASK | field]}),
    "responses.input.message.content": (
        [RESPONSES],
        "input.0.content.0.",
        lambda **field: {"input": [ASK | {"content": [{"type": "input_text", "text": "x", **field}]}]},
    ),
    "responses.input.function_call": (
        [RESPONSES],
        "input.1.",
        lambda **field: {
            "input": [
                ASK,
                {"type": "function_call", "call_id": "c", "name": "clock", **field},
                {"type": "function_call_output", "call_id": "c", "output": "x"},
            ]
        },
    ),
    "responses.input.function_call_output": (
        [RESPONSES],
        "input.0.",
        lambda **field: {"input": [{"type": "function_call_output", "call_id": "c", "output": "x", **field}]},
    ),
    "responses.input.reasoning": (
        [RESPONSES],
        "input.0.",
        lambda **field: {"input": [{"type": "reasoning", **field}, ASK]},
    ),
    "messages": ([MESSAGES], "", dict),
    "messages.count_tokens": ([MESSAGES, COUNT], "", dict),
    "messages.output_config": ([MESSAGES], "output_config.", lambda **field: {"output_config": field}),
    "messages.thinking": ([MESSAGES], "thinking.", lambda **field: {"thinking": {"type": "adaptive", **field}}),
    "messages.tools": (
        [MESSAGES],
        "tools.0.",
        lambda **field: {"tools": [CUSTOM_CLOCK | field], "tool_choice": {"type": "none"}},
    ),
    "messages.text": (
        [MESSAGES],
        "messages.0.content.0.",
        lambda **field: say([{"type": "text", "text": "x", **field}]),
    ),
    "messages.tool_use": (
        [MESSAGES],
        "messages.1.content.0.",
        lambda **field: {
            "messages": [
                ASK,
                {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "clock", **field}]},
                {"role": "user", "content": [RESULT]},
            ]
        },
    ),
    "messages.tool_result": ([MESSAGES], "messages.0.content.0.", lambda **field: say([RESULT | field])),
    "messages.redacted_thinking": (
        [MESSAGES],
        "messages.1.content.0.",
        lambda **field: {
            "messages": [ASK, {"role": "assistant", "content": [{"type": "redacted_thinking", **field}]}, ASK]
        },
    ),
    "tokenize": ([TOKENIZE], "", lambda **field: {"prompt": "x", **field}),
}
"""By part of a request in the table of fields: routes that have it, its place, and a request that has a field of it."""
VALUES = {
    METADATA: {"a": "b"},
    str: "low",
    bool: True,
    int: 1,
    object: {"a": 1},
    dict[str, Any]: {"a": 1},
    list[Any]: ["a"],
}


IMAGE_PARTS = ("chat.messages.content.image_url", "responses.input.message.content.input_image", "messages.image")
"""Parts for models that read images; test_images.py checks them."""


def test_every_part_of_the_table_of_fields_is_checked():
    assert {*PARTS} | {*IMAGE_PARTS} == {*FIELDS}


@pytest.mark.few(20)
@pytest.mark.parametrize(
    ("route", "part", "name"),
    [(route, part, name) for part, (routes, *_) in PARTS.items() for route in routes for name in FIELDS[part]],
)
def test_fields_are_neutral_without_effect_clamped_or_refused_as_the_table_says(client, route, part, name):
    _, place, made = PARTS[part]

    def ask(value: object) -> Any:
        return client.post(f"/{route}", json={**BASE[route], **made(**{name: value})})

    match FIELDS[part][name]:
        case NoEffect(kind=kind):
            reply = ask(VALUES.get(kind, "low"))
            assert reply.status_code == 200, reply.text
            assert reply.headers["warning"] == f'299 drafttree "without effect: {name}"'
            assert "warning" not in ask(None).headers
            if kind is not object:
                assert refusal(ask(3.5), 400)["message"].startswith(f"{place}{name}")
        case Refused() as entry:
            for value in (None, False, *([[], {}] if entry.empty else []), *entry.neutral):
                reply = ask(value)
                assert (reply.status_code, reply.headers.get("warning")) == (200, None), reply.text
            for value in ("something else", *([] if entry.empty else [{}])):
                error = refusal(ask(value), 400)
                assert error["message"] == f"{place}{name}: this is not served; {entry.advice}"
                assert (error.get("param"), error.get("code")) in [(f"{place}{name}", entry.code), (None, None)]
        case Clamped():
            assert ask(10**6).status_code == 200


@pytest.mark.parametrize(("route", "content", "code", "message"), UNREADABLE)
def test_what_cannot_be_read_is_refused_with_its_place(client, route, content, code, message):
    error = refusal(client.post(f"/{route}", content=content, headers={"Content-Type": "application/json"}), 400)
    assert message in error["message"]
    assert error.get("code") == code
    assert len(error["message"]) < 400


@pytest.mark.parametrize("route", [CHAT, RESPONSES, MESSAGES, COUNT, TOKENIZE])
@pytest.mark.parametrize("name", ["a b", "\u4e16\r\nx", "x" * 300])
def test_the_names_of_tools_that_are_left_out_may_be_any(client, route, name):
    messages = {"messages": [ASK]} if route == TOKENIZE else BASE[route]
    reply = client.post(f"/{route}", json={**messages, "tools": [{"type": "web_search", "name": name}]})
    assert reply.status_code == 200, reply.text
    assert reply.headers["warning"] == f'299 drafttree "without effect: tool {ascii(name[:200])[1:-1]}"'


LATE = {"role": "system", "content": "Be brief."}
REFUSES = (
    "{% for message in messages %}{% if message.role == 'system' and not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}"
    "{{ message.content }}{{ 'x' + message.name if message.name is defined }}{{ message.other.deep if broken }}"
    "{% endfor %}"
)
TEMPLATES = [
    (None, [ASK], {}, "the target's tokenizer has no chat template; give text or token ids instead of messages"),
    ("{{ raise_exception('no') }}", [ASK], {}, "the chat template refuses these messages with an error of its own: no"),
    (
        REFUSES,
        [ASK, ASK, LATE, ASK],
        {},
        "the chat template refuses message 3 (role 'system') with an error of its own: System message must be at the "
        "beginning.",
    ),
    (
        REFUSES,
        [ASK],
        {"broken": True},
        "the chat template fails on these messages: UndefinedError: 'dict object' has no attribute 'other'",
    ),
]


@pytest.mark.parametrize("route", [CHAT, RESPONSES, MESSAGES])
@pytest.mark.parametrize(("template", "messages", "variables", "message"), TEMPLATES)
def test_what_a_chat_template_refuses_is_told_as_its_own(route, template, messages, variables, message):
    body = {"input": messages} if route == RESPONSES else {"messages": messages}
    with app(template) as client:
        reply = client.post(f"/{route}", json={**BASE[route], **body, "chat_template_kwargs": variables})
    place = {CHAT: "messages: ", RESPONSES: "input: ", MESSAGES: "messages: "}[route]
    assert refusal(reply, 400)["message"] == place + message


def test_of_many_tools_without_effect_the_first_are_named(client):
    tools = [{"type": "custom", "name": f"tool{number:03}"} for number in range(100)]
    reply = client.post(f"/{CHAT}", json={**BASE[CHAT], "tools": tools})
    named = ", ".join(f"tool tool{number:03}" for number in range(20))
    assert reply.headers["warning"] == f'299 drafttree "without effect: {named}, and 80 more"'
