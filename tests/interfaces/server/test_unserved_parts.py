"""What earlier turns and tools bring that is no text: the model is shown a text for it, so that the client can go on.

The right prompt is that of a conversation with the text in its place. The template refuses two messages of one role in
a row, as Mistral's do.
"""

import json

import pytest
from fastapi.testclient import TestClient

from drafttree import Decoder
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import tokenizer_of
from testing.toy import Table, ToyModel

TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}{% endif %}{% for message in messages %}"
    "{% if not loop.first and message.role != 'tool' and message.role == messages[loop.index0 - 1].role %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}<|im_start|>{{ message.role }}\n{{ message.content }}"
    "{% for call in message.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
IMAGE = "[image omitted: this server does not read it]"
SOURCE = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
URL = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
PICTURE = {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0KGgo="}
BLOCK = {"type": "image", "source": SOURCE}


@pytest.fixture(scope="module")
def client():
    """A client of a server of a toy model."""
    tokenizer = tokenizer_of("qwen3")
    tokenizer.chat_template = TEMPLATE
    vocab = len(tokenizer)
    decoder = Decoder(ToyModel(Table(vocab, order=1), vocab), tokenizer=tokenizer, eos=[tokenizer.eos_token_id])
    with TestClient(create_app(decoder, ServerSettings("toy"))) as client:
        yield client


def say(role: str, content: object) -> dict:
    return {"role": role, "content": content}


def called(name: str = "look", arguments: str = "{}") -> dict:
    call = {"id": "c", "type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "tool_calls": [call]}


def returned(content: object) -> dict:
    return {"role": "tool", "tool_call_id": "c", "content": content}


def text(text: str) -> dict:
    return {"type": "text", "text": text}


USE = {"type": "tool_use", "id": "c", "name": "look", "input": {}}
CALL_ITEM = {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"}
PATCH = {"type": "custom_tool_call", "call_id": "c", "name": "patch", "input": 'a "b"'}
SEARCH, SHELL = {"type": "web_search_call", "id": "ws", "status": "completed"}, {"type": "local_shell_call", "id": "x"}
OUTPUT = {"type": "local_shell_call_output", "id": "x", "output": "{}"}
COMPACTED = {"type": "compaction", "encrypted_content": "x"}
SEARCHED = "[web_search_call omitted: this server does not read it]"
RAN = "[local_shell_call omitted: this server does not read it]"
GAVE = "[local_shell_call_output omitted: this server does not read it]"
CUT = "[compaction omitted: this server does not read it]"
ASK, YES, MORE = say("user", "a"), say("assistant", "b"), say("user", "c")


def use(*blocks: dict) -> list[dict]:
    """A conversation up to what a tool has returned."""
    return [ASK, say("assistant", [USE]), say("user", [{**USE, "type": "tool_result", "tool_use_id": "c"}, *blocks])]


def result(*content: dict) -> dict:
    return {"type": "tool_result", "tool_use_id": "c", "content": [*content]}


CHAT, RESPONSES, MESSAGES = "chat/completions", "responses", "messages"
CASES = [
    # in what a tool returns
    (CHAT, [ASK, called(), returned([URL])], [ASK, called(), returned(IMAGE)], "image_url"),
    (MESSAGES, [ASK, say("assistant", [USE]), say("user", [result(BLOCK)])], [ASK, called(), returned(IMAGE)], "image"),
    (
        RESPONSES,
        [ASK, CALL_ITEM, {"type": "function_call_output", "call_id": "c", "output": [PICTURE]}],
        [ASK, called(), returned(IMAGE)],
        "input_image",
    ),
    (
        MESSAGES,
        [ASK, say("assistant", [USE]), say("user", [result(text("x"), {"type": "tool_reference", "tool_name": "f"})])],
        [ASK, called(), returned("x\n[tool_reference omitted: this server does not read it]")],
        "tool_reference",
    ),
    # beside it
    (
        MESSAGES,
        [ASK, say("assistant", [USE]), say("user", [result(text("x")), {"type": "document", "source": SOURCE}])],
        [ASK, called(), returned("x"), say("user", "[document omitted: this server does not read it]")],
        "document",
    ),
    (
        CHAT,
        [ASK, called(), returned("x"), say("user", [text("It is:"), URL])],
        [ASK, called(), returned("x"), say("user", f"It is:\n{IMAGE}")],
        "image_url",
    ),
    (
        RESPONSES,
        [ASK, CALL_ITEM, {"type": "function_call_output", "call_id": "c", "output": "x"}, say("user", [PICTURE])],
        [ASK, called(), returned("x"), say("user", IMAGE)],
        "input_image",
    ),
    # in earlier turns
    (CHAT, [say("user", [URL]), YES, MORE], [say("user", IMAGE), YES, MORE], "image_url"),
    (MESSAGES, [say("user", [BLOCK]), YES, MORE], [say("user", IMAGE), YES, MORE], "image"),
    (RESPONSES, [say("user", [PICTURE]), YES, MORE], [say("user", IMAGE), YES, MORE], "input_image"),
    (
        CHAT,
        [ASK, {"role": "assistant", "content": None, "audio": {"id": "audio_1"}}, MORE],
        [ASK, say("assistant", "[audio omitted: this server does not read it]"), MORE],
        "audio",
    ),
    (
        CHAT,
        [ASK, {"role": "assistant", "content": None, "refusal": "No."}, MORE],
        [ASK, say("assistant", "No."), MORE],
        "",
    ),
    (
        RESPONSES,
        [ASK, say("assistant", [{"type": "refusal", "refusal": "No."}]), MORE],
        [ASK, say("assistant", "No."), MORE],
        "",
    ),
    (
        MESSAGES,
        [ASK, say("assistant", [{"type": "server_tool_use", "id": "s"}, text("b")]), MORE],
        [ASK, say("assistant", "[server_tool_use omitted: this server does not read it]\nb"), MORE],
        "server_tool_use",
    ),
    # custom tools
    (
        CHAT,
        [
            ASK,
            {
                "role": "assistant",
                "tool_calls": [{"id": "c", "type": "custom", "custom": {"name": "patch", "input": 'a "b"'}}],
            },
            returned("x"),
        ],
        [ASK, called("patch", json.dumps({"input": 'a "b"'})), returned("x")],
        "custom",
    ),
    (
        RESPONSES,
        [ASK, PATCH, {"type": "custom_tool_call_output", "call_id": "c", "output": "x"}],
        [ASK, called("patch", json.dumps({"input": 'a "b"'})), returned("x")],
        "custom_tool_call, custom_tool_call_output",
    ),
    # items of other kinds, wherever they stand
    (RESPONSES, [ASK, SEARCH, YES, MORE], [ASK, say("assistant", f"{SEARCHED}\nb"), MORE], "web_search_call"),
    (RESPONSES, [ASK, YES, SEARCH, MORE], [ASK, say("assistant", f"b\n{SEARCHED}"), MORE], "web_search_call"),
    (RESPONSES, [ASK, SEARCH, MORE], [ASK, say("assistant", SEARCHED), MORE], "web_search_call"),
    (RESPONSES, [COMPACTED, MORE], [say("user", f"{CUT}\nc")], "compaction"),
    (
        RESPONSES,
        [say("system", "s"), COMPACTED, MORE],
        [say("system", "s"), say("user", f"{CUT}\nc")],
        "compaction",
    ),
    (
        RESPONSES,
        [ASK, SHELL, OUTPUT, YES, MORE],
        [ASK, say("assistant", f"{RAN}\n{GAVE}\nb"), MORE],
        "local_shell_call, local_shell_call_output",
    ),
    (
        RESPONSES,
        [ASK, SHELL, OUTPUT],
        [say("user", f"a\n{RAN}\n{GAVE}")],
        "local_shell_call, local_shell_call_output",
    ),
    (
        RESPONSES,
        [ASK, YES, SHELL, OUTPUT],
        [ASK, YES, say("user", f"{RAN}\n{GAVE}")],
        "local_shell_call, local_shell_call_output",
    ),
    (
        RESPONSES,
        [ASK, YES, SEARCH, CALL_ITEM, {"type": "function_call_output", "call_id": "c", "output": "x"}],
        [ASK, {**called(), "content": f"b\n{SEARCHED}"}, returned("x")],
        "web_search_call",
    ),
]


@pytest.mark.parametrize(("api", "sent", "shown", "named"), CASES)
def test_a_text_stands_for_it_and_a_header_names_it(client, api, sent, shown, named):
    body = {"input": sent, "max_output_tokens": 1} if api == RESPONSES else {"messages": sent, "max_tokens": 1}
    whole, streamed = (client.post(f"/v1/{api}", json={**body, "stream": stream}) for stream in (False, True))
    assert (whole.status_code, streamed.status_code) == (200, 200), whole.text
    warning = f'299 drafttree "shown as text: {named}"' if named else None
    assert whole.headers.get("warning") == streamed.headers.get("warning") == warning
    usage = whole.json()["usage"]
    read = usage["prompt_tokens"] if api == CHAT else usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
    expected = client.post("/tokenize", json={"messages": shown}).json()
    assert read == expected["count"]
    if api == CHAT:
        assert client.post("/tokenize", json={"messages": sent}).json() == expected
    if api == MESSAGES:
        assert client.post(f"/v1/{api}/count_tokens", json={"messages": sent}).json() == {"input_tokens": read}


@pytest.mark.parametrize(
    ("api", "sent", "place", "message"),
    [
        (
            CHAT,
            [ASK, YES, say("user", [text("x"), URL])],
            "messages.2.content.1",
            "type 'image_url' is not served; give text",
        ),
        (CHAT, [say("user", [URL]), say("assistant", "So")], "messages.0.content.0", "type 'image_url' is not served"),
        (
            MESSAGES,
            [ASK, YES, say("user", [BLOCK])],
            "messages.2.content.0",
            "a block of the user of type 'image' is not",
        ),
        (
            MESSAGES,
            [say("user", [BLOCK]), say("assistant", "So")],
            "messages.0.content.0",
            "of type 'image' is not served",
        ),
        (RESPONSES, [ASK, YES, say("user", [PICTURE])], "input.2.content.0", "type 'input_image' is not served; give"),
        (
            RESPONSES,
            [ASK, SEARCH],
            "input.1",
            "an item of type 'web_search_call' is not served; give message, function_call",
        ),
        (
            RESPONSES,
            [{"type": "item_reference", "id": "x"}, ASK],
            "input.0",
            "is not served, since nothing is stored; send the item itself",
        ),
    ],
)
def test_in_what_is_to_be_answered_it_is_refused(client, api, sent, place, message):
    body = {"input": sent} if api == RESPONSES else {"messages": sent, "max_tokens": 1}
    body |= (
        {"continue_final_message": True, "add_generation_prompt": False}
        if api == CHAT and sent[-1]["role"] == "assistant"
        else {}
    )
    reply = client.post(f"/v1/{api}", json=body)
    assert reply.status_code == 400
    error = reply.json()["error"]
    assert error["message"].startswith(f"{place}: ")
    assert message in error["message"]


def test_the_name_of_a_kind_is_cut_and_many_are_counted(client):
    kinds = [{"type": f"kind{number:02}" + 400 * "\n"} for number in range(30)]
    reply = client.post("/v1/responses", json={"input": [*kinds, ASK], "max_output_tokens": 1})
    assert reply.status_code == 200, reply.text
    names = reply.headers["warning"].removeprefix('299 drafttree "shown as text: ').split(", ")
    assert (len(names), names[-1]) == (21, 'and 10 more"')
    assert max(map(len, names)) <= 400
