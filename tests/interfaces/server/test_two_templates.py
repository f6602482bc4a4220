"""A tokenizer with a template for conversations and another for those with tools, as Hermes 3 has, on every route.

The right prompts are those of transformers' `apply_chat_template`.
"""

import pytest
from fastapi.testclient import TestClient

from drafttree import Decoder
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import tokenizer_of
from testing.toy import Table, ToyModel

TURNS = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}CALLS<|im_end|>\n{% endfor %}"
)
CALLS = "{% for call in message.tool_calls or [] %}<tool_call>\n{{ call.function | tojson }}\n</tool_call>{% endfor %}"
TOLD = "<|im_start|>system\nTools: {% for tool in tools %}{{ tool | tojson }}{% endfor %}<|im_end|>\n"
ANSWER = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
TEMPLATES = {
    "default": TURNS.replace("CALLS", "") + ANSWER,
    "tool_use": TOLD + TURNS.replace("CALLS", CALLS) + ANSWER,
}
SCHEMA = {"type": "object", "properties": {"zone": {"type": "string"}}}
ASKED, RESULT = {"role": "user", "content": "What time is it?"}, "noon"
CALL = {"id": "c", "type": "function", "function": {"name": "clock", "arguments": '{"zone": "x"}'}}
PARSED = {**CALL, "function": {"name": "clock", "arguments": {"zone": "x"}}}
SHOWN = [
    ASKED,
    {"role": "assistant", "content": "", "tool_calls": [PARSED]},
    {"role": "tool", "content": RESULT, "tool_call_id": "c"},
]
BODIES = {
    "chat/completions": {
        "messages": [ASKED, {**SHOWN[1], "tool_calls": [CALL]}, SHOWN[2]],
        "tools": [{"type": "function", "function": {"name": "clock", "parameters": SCHEMA}}],
        "tool_choice": "none",
        "max_tokens": 1,
    },
    "responses": {
        "input": [
            ASKED,
            {"type": "function_call", "call_id": "c", "name": "clock", "arguments": '{"zone": "x"}'},
            {"type": "function_call_output", "call_id": "c", "output": RESULT},
        ],
        "tools": [{"type": "function", "name": "clock", "parameters": SCHEMA}],
        "tool_choice": "none",
        "max_output_tokens": 1,
    },
    "messages": {
        "messages": [
            ASKED,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "c", "name": "clock", "input": {"zone": "x"}}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": RESULT}]},
        ],
        "tools": [{"name": "clock", "input_schema": SCHEMA}],
        "tool_choice": {"type": "none"},
        "max_tokens": 1,
    },
}


@pytest.fixture(scope="module")
def served():
    """The tokenizer, and a client of a server of it."""
    tokenizer = tokenizer_of("qwen3")
    tokenizer.chat_template = TEMPLATES
    vocab = len(tokenizer)
    decoder = Decoder(ToyModel(Table(vocab, order=1), vocab), tokenizer=tokenizer, eos=[tokenizer.eos_token_id])
    with TestClient(create_app(decoder, ServerSettings("toy"))) as client:
        yield tokenizer, client


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["none", "no tools"])
@pytest.mark.parametrize("api", BODIES)
def test_a_history_with_calls_goes_on_where_none_may_be_called(served, api, choice, stream):
    _, client = served
    body = {name: value for name, value in BODIES[api].items() if choice == "none" or "tool" not in name}
    reply = client.post(f"/v1/{api}", json={**body, "stream": stream})
    assert reply.status_code == 200, reply.text
    assert '"error": {' not in reply.text


def test_the_prompt_is_that_of_the_template_of_tools(served):
    tokenizer, client = served
    expected = tokenizer.apply_chat_template(SHOWN, tools=[], add_generation_prompt=True)["input_ids"]
    found = client.post("/tokenize", json={"messages": BODIES["chat/completions"]["messages"]}).json()["tokens"]
    assert found == expected
    turns = {"messages": BODIES["messages"]["messages"]}
    assert client.post("/v1/messages/count_tokens", json=turns).json() == {"input_tokens": len(expected)}


def test_without_calls_the_other_template_is_kept(served):
    tokenizer, client = served
    expected = tokenizer.apply_chat_template([ASKED], add_generation_prompt=True)["input_ids"]
    assert client.post("/tokenize", json={"messages": [ASKED]}).json()["tokens"] == expected
