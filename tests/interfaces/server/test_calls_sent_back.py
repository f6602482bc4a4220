"""What a client sends back of the server's own replies, whole or cut off, on templates of several habits.

The right prompt is what transformers' `apply_chat_template` makes of messages with content "" and arguments that are an
object.
"""

import json

import httpx
import pytest

from drafttree import Decoder
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import tokenizer_of
from testing.live_server import serving
from testing.toy import Table, ToyModel

BEGIN, END = "<|im_start|>{{ message.role }}\n", "<|im_end|>\n"
CALLS = (
    "{% for call in message.tool_calls or [] %}\n<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
)
ITEMS = (
    "{% for call in message.tool_calls or [] %}<tool_call>\n<function={{ call.function.name }}>\n"
    "{% for key, value in call.function.arguments.items() %}<parameter={{ key }}>\n{{ value }}\n</parameter>\n"
    "{% endfor %}</function>\n</tool_call>{% endfor %}"
)
TOLD = "{% if tools %}{{ tools | tojson }}{% endif %}"
ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
HABITS = {
    "concatenates": "{{ '' + message.content }}" + CALLS,
    "splits": "{{ message.content.split('</think>')[-1] }}" + CALLS,
    "items": "{{ message.content or '' }}" + ITEMS,
    "tells no tools": "{{ '' + message.content }}",
}
TOOL = {"name": "clock", "parameters": {"type": "object", "properties": {"zone": {"type": "string"}}}}
ASKED, RESULT = (
    {"role": "user", "content": "What time is it?"},
    {"role": "tool", "tool_call_id": "c", "content": "noon"},
)
CUT = '{"zone": "Eu'
ARGUMENTS = [
    ("{}", {}),
    ('{"zone": "x"}', {"zone": "x"}),
    ("", {}),
    (" \n", {}),
    ("null", {}),
    (None, {}),
    (CUT, {"INVALID_JSON": CUT}),
    ('["x"]', {"INVALID_JSON": '["x"]'}),
    ('"x"', {"INVALID_JSON": '"x"'}),
    ("7", {"INVALID_JSON": "7"}),
    ("[" * 10**5, {"INVALID_JSON": "[" * 10**5}),
]


@pytest.fixture(scope="module", params=HABITS)
def served(request):
    """A template, and a server of a toy model that has it."""
    tokenizer = tokenizer_of("qwen3")
    told = "" if request.param == "tells no tools" else TOLD
    tokenizer.chat_template = (
        f"{told}{{% for message in messages %}}{BEGIN}{HABITS[request.param]}{END}{{% endfor %}}{ANSWER}"
    )
    vocab = len(tokenizer)
    decoder = Decoder(ToyModel(Table(vocab, order=1), vocab), tokenizer=tokenizer, eos=[tokenizer.eos_token_id])
    with serving(create_app(decoder, ServerSettings("toy"))) as address:
        yield tokenizer, address


def call(arguments: object) -> dict:
    return {"id": "c", "type": "function", "function": {"name": "clock", "arguments": arguments}}


def tokens_of(address: str, messages: list[dict]) -> list[int]:
    tools = [{"type": "function", "function": TOOL}]
    reply = httpx.post(f"{address}/tokenize", json={"messages": messages, "tools": tools}, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()["tokens"]


@pytest.mark.few(7)
@pytest.mark.parametrize(
    ("arguments", "right", "content"),
    [
        *[(*each, {}) for each in ARGUMENTS],
        *[(*each, {"content": content}) for each in ARGUMENTS[1:3] for content in (None, "")],
    ],
    ids=lambda each: str(each)[:20],
)
def test_a_call_that_is_sent_back_is_rendered_with_an_object(served, arguments, right, content):
    tokenizer, address = served
    found = tokens_of(address, [ASKED, {"role": "assistant", **content, "tool_calls": [call(arguments)]}, RESULT])
    if "tools" not in tokenizer.chat_template:  # the server tells of them in its own words
        assert json.dumps(right, ensure_ascii=False) in tokenizer.decode(found)
        return
    messages = [ASKED, {"role": "assistant", "content": "", "tool_calls": [call(right)]}, RESULT]
    tools = [{"type": "function", "function": TOOL}]
    assert found == tokenizer.apply_chat_template(messages, tools=tools, add_generation_prompt=True)["input_ids"]


def test_an_answer_that_said_nothing_is_sent_back(served):
    _, address = served
    silent = {"role": "assistant", "content": None, "refusal": None, "tool_calls": None}
    assert tokens_of(address, [ASKED, silent, ASKED]) == tokens_of(address, [ASKED, {**silent, "content": ""}, ASKED])


def test_the_other_routes_take_the_same(served):
    _, address = served
    sent = [
        ASKED,
        {"role": "assistant", "content": "", "tool_calls": [call(json.dumps({"INVALID_JSON": CUT}))]},
        RESULT,
    ]
    count = len(tokens_of(address, sent))
    cut = {"type": "function_call", "call_id": "c", "name": "clock", "arguments": CUT}
    result = {"type": "function_call_output", "call_id": "c", "output": "noon"}
    silent = {"type": "message", "role": "assistant", "content": None}
    options = {"max_output_tokens": 1, "tools": [{"type": "function", **TOOL}], "tool_choice": "none"}
    body = {"input": [ASKED, silent, cut, result], **options}
    reply = httpx.post(f"{address}/v1/responses", json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    block = {"type": "tool_use", "id": "c", "name": "clock", "input": CUT}
    turns = [
        ASKED,
        {"role": "assistant", "content": [block]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "noon"}]},
    ]
    custom = [{"name": "clock", "input_schema": TOOL["parameters"]}]
    counted = httpx.post(f"{address}/v1/messages/count_tokens", json={"messages": turns, "tools": custom}, timeout=60)
    assert counted.json() == {"input_tokens": count}
    turns[1]["content"] = None
    reply = httpx.post(f"{address}/v1/messages/count_tokens", json={"messages": turns}, timeout=60)
    assert reply.status_code == 200, reply.text
