"""Conversations as prompts: what the chat template makes of them, and what is refused by name."""

import re

import pytest
import torch
from tokenizers import AddedToken

from drafttree.errors import InputError
from drafttree.text.chat import render_chat, turn_end
from drafttree.text.prompt import encode, is_batch
from testing.tokenizers import CHAT_TEMPLATE as TEMPLATE
from testing.tokenizers import CHAT_WORDS as VOCABULARY
from testing.tokenizers import chat_words as tokenizer
from testing.tokenizers import spelled


def say(role: str, content: object) -> dict:
    return {"role": role, "content": content}


CONVERSATION = [say("system", "you"), say("user", "hello you"), say("assistant", "hello"), say("user", "bye")]


def test_a_conversation_is_rendered_up_to_the_next_answer():
    expected = spelled("system you end user hello you end assistant hello end user bye end assistant")
    assert encode(CONVERSATION, tokenizer(), len(VOCABULARY)) == expected


def test_a_list_of_messages_is_one_prompt_and_a_list_of_conversations_many():
    assert not is_batch(CONVERSATION)
    assert is_batch([CONVERSATION, CONVERSATION])
    assert is_batch([{"input_ids": [1]}, {"input_ids": [2]}])


@pytest.mark.parametrize(
    ("messages", "complaint"),
    [
        ([say("usr", "hello")], "message 1 has the role 'usr'; known: system, developer, user, assistant, tool"),
        ([{"content": "hello"}], "message 1 has the role None"),
        ([say("user", "hello"), {"role": "user"}], "the content of message 2 is missing; give text"),
        ([say("user", None)], "the content of message 1 is NoneType; give text"),
        (
            [say("user", [{"type": "image", "url": "a.png"}])],
            re.escape(
                "the content of message 1 has {'type': 'image', 'url': 'a.png'} as a part; give parts of type 'text'"
            ),
        ),
        ([say("user", "hello"), "bye"], "message 2 is 'bye'; give a dictionary with role and content"),
        ([say("user", "hello"), say("assistant", "you")], "the last message is the assistant's own"),
        ([say("user", torch.zeros(1))], "the content of message 1 is Tensor; give text"),
    ],
)
def test_malformed_messages_are_refused_by_name(messages, complaint):
    with pytest.raises(InputError, match=complaint):
        encode(messages, tokenizer(), len(VOCABULARY))


@pytest.mark.parametrize("without", [None, tokenizer(None)], ids=["no tokenizer", "no template"])
def test_a_model_without_a_chat_template_is_named(without):
    with pytest.raises(InputError, match="has no chat template; give text or token ids"):
        encode(CONVERSATION, without, len(VOCABULARY))


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{% if %}", "TemplateSyntaxError"),
        ("{{ messages[0].missing.deeper }}", "UndefinedError"),
        ("{{ 1 / 0 }}", "ZeroDivisionError"),
        ("{{ messages[0].content + 1 }}", "TypeError"),
        ({"rag": TEMPLATE, "tools": TEMPLATE}, "ValueError"),
    ],
)
def test_any_error_of_a_template_is_one_of_ours(template, complaint):
    with pytest.raises(InputError, match=f"the chat template fails on these messages: .*{complaint}"):
        render_chat([say("user", "hello")], tokenizer(template))


def test_variables_reach_the_template_and_a_call_of_a_tool_needs_no_content():
    shown = "{% for message in messages %}{{ message.content }} CALLS{% endfor %}"
    shown = shown.replace("CALLS", "{% for call in message.tool_calls or [] %}{{ call.function.name }} {% endfor %}")
    call = {"type": "function", "function": {"name": "bye", "arguments": {}}}
    messages = [say("user", "hello"), {"role": "assistant", "tool_calls": [call]}, say("tool", "you")]
    found = render_chat(messages, tokenizer("{{ tools[0].say }} " + shown), tools=[{"say": "hello"}])
    assert found == spelled("hello hello bye you")


NAMES = "{% for message in messages %}{{ message.content }} CALLS{% endfor %}".replace(
    "CALLS", "{% for call in message.tool_calls or [] %}{{ call.function.name }} {% endfor %}"
)
TWO_TEMPLATES = {"default": TEMPLATE, "tool_use": "{% for tool in tools %}{{ tool.say }} {% endfor %}" + NAMES}
"""As Hermes 3 has them: the second one shows calls, and fails where tools are None."""
CALLED = [
    say("user", "hello"),
    {"role": "assistant", "tool_calls": [{"type": "function", "function": {"name": "bye", "arguments": {}}}]},
    say("tool", "you"),
]


@pytest.mark.parametrize(
    ("messages", "tools", "expected"),
    [
        ([say("user", "hello")], None, "user hello end assistant"),
        ([say("user", "hello")], [{"say": "you"}], "you hello"),
        (CALLED, [{"say": "you"}], "you hello bye you"),
        (CALLED, [], "hello bye you"),
        (CALLED, None, "hello bye you"),
        (CALLED[::2], None, "hello you"),
    ],
)
def test_of_two_templates_that_of_tools_shows_calls_without_tools_too(messages, tools, expected):
    assert render_chat(messages, tokenizer(TWO_TEMPLATES), tools=tools) == spelled(expected)
    assert tools or render_chat(messages, tokenizer(TWO_TEMPLATES)) == spelled(expected)


PLAIN = "{% for message in messages %}{{ message.role }}: {{ message.content }}\n{% endfor %}"


@pytest.mark.parametrize(
    ("template", "end"),
    [
        (PLAIN, "\nuser:"),
        (PLAIN.replace("\n", "<|end|>\n"), None),
        (PLAIN.replace("\n", "<|turn|>\n"), None),
        ("{{ messages[0].content }}", None),
        ("{{ raise_exception('no') }}", None),
        (None, None),
    ],
)
def test_plain_text_that_ends_an_answer_is_found(template, end):
    made = tokenizer(template)
    made.add_special_tokens({"eos_token": "<|end|>"})
    made.add_tokens([AddedToken("<|turn|>", special=True)])  # as Gemma's, which no attribute of the tokenizer names
    assert turn_end(made) == end
