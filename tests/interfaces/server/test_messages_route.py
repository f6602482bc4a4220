"""/v1/messages: the answers of chats as Anthropic's API has them, whole and as events."""

import json

import pytest

from testing.live_server import named_events

PATH = "messages"
HELLO = [{"role": "user", "content": "Tell me about the old house."}]
GREEDY = {"messages": HELLO, "temperature": 0, "max_tokens": 24}
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = {"name": "get_weather", "description": "Weather now", "input_schema": CITY}
CLOCK = {"name": "clock", "input_schema": {"type": "object", "properties": {}}}
ONE_CALL = {"type": "any", "disable_parallel_tool_use": True}
CALL = {**GREEDY, "max_tokens": 120, "tools": [WEATHER], "tool_choice": ONE_CALL}


def message_of(post, **body) -> dict:
    reply = post(PATH, **{**GREEDY, **body})
    assert reply.status_code == 200, reply.text
    assert reply.headers["request-id"].startswith("req_")
    return reply.json()


def text_of(message: dict) -> str:
    return "".join(block["text"] for block in message["content"])


def events_of(post, **body) -> list[dict]:
    return named_events(post(PATH, **{**GREEDY, **body}, stream=True).text)


def chat(post, messages: list[dict], **body) -> dict:
    return post("chat/completions", messages=messages, temperature=0, max_tokens=24, **body).json()


@pytest.mark.parametrize("stream", [False, True])
def test_usage_tells_what_was_read_before(post, stream):
    body = {
        "messages": [
            {"role": "user", "content": f"How old is the house by the sea, and who has lived in it? {stream}"}
        ],
        "max_tokens": 8,
    }
    count = post("messages/count_tokens", messages=body["messages"]).json()["input_tokens"]
    message_of(post, **body)
    usage = events_of(post, **body)[-2]["usage"] if stream else message_of(post, **body)["usage"]
    assert usage["cache_read_input_tokens"] > 8
    assert usage["cache_creation_input_tokens"] == 0
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count


def test_systems_blocks_and_results_are_the_messages_of_a_chat(post):
    calls = [{"id": each, "type": "function", "function": {"name": "f", "arguments": '{"ö": 1}'}} for each in "cd"]
    told = [
        {"role": "system", "content": "Be brief.\nBe kind."},
        *HELLO,
        {"role": "assistant", "content": "Yes.", "tool_calls": calls},
        {"role": "tool", "tool_call_id": "c", "content": "A"},
        {"role": "tool", "tool_call_id": "d", "content": "B\nC"},
        {"role": "user", "content": "Go on."},
    ]
    blocks = [
        *HELLO,
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": ""},
                {"type": "text", "text": "Yes."},
                *({"type": "tool_use", "id": each, "name": "f", "input": {"ö": 1}} for each in "cd"),
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "c", "content": "A"},
                {"type": "tool_result", "tool_use_id": "d", "content": [_text("B"), _text("C")]},
                _text("Go on."),
            ],
        },
    ]
    ours = message_of(post, messages=blocks, system=[_text("Be brief."), _text("Be kind.")])
    theirs = chat(post, told)
    assert text_of(ours) == theirs["choices"][0]["message"]["content"]
    counted = post("messages/count_tokens", messages=blocks, system="Be brief.\nBe kind.").json()
    assert counted == {"input_tokens": theirs["usage"]["prompt_tokens"]}


def _text(text: str) -> dict:
    return {"type": "text", "text": text}


def test_a_last_message_of_the_assistant_is_continued(post):
    whole = text_of(message_of(post))
    given = whole[: len(whole) // 2].rstrip()
    theirs = chat(post, [*HELLO, {"role": "assistant", "content": given}], continue_final_message=True)
    assert theirs["choices"][0]["message"]["content"] != whole
    for content in (given, [_text(given)]):
        ours = message_of(post, messages=[*HELLO, {"role": "assistant", "content": content}])
        assert text_of(ours) == theirs["choices"][0]["message"]["content"]
    counted = post("messages/count_tokens", messages=[*HELLO, {"role": "assistant", "content": given}]).json()
    assert counted == {"input_tokens": theirs["usage"]["prompt_tokens"]}


def test_a_named_tool_is_called_and_none_is_not(post):
    both = {**CALL, "tools": [WEATHER, CLOCK]}
    named = message_of(post, **{**both, "tool_choice": {"type": "tool", "name": "clock"}})
    assert [block["name"] for block in named["content"]] == ["clock"]
    plain = message_of(post, max_tokens=120)
    assert message_of(post, **{**both, "tool_choice": {"type": "none"}})["content"] == plain["content"]


def test_a_form_is_kept(post):
    schema = {"type": "object", "properties": {"cold": {"type": "boolean"}}, "required": ["cold"]}
    config = {"format": {"type": "json_schema", "schema": {**schema, "additionalProperties": False}}}
    assert json.loads(text_of(message_of(post, output_config=config))).keys() == {"cold"}


def test_bookkeeping_changes_no_text_and_is_told_in_a_header(post):
    cached = {"cache_control": {"type": "ephemeral"}}
    told = {"metadata": {"user_id": "u"}, "service_tier": "auto", "speed": "fast", **cached}
    messages = [{"role": "user", "content": [{**_text(HELLO[0]["content"]), **cached}]}]
    reply = post(PATH, **{**GREEDY, "messages": messages}, **told, output_config={"effort": "low"})
    assert reply.headers["warning"] == f'299 drafttree "without effect: {", ".join(sorted([*told, "effort"]))}"'
    assert reply.json()["content"] == message_of(post)["content"]


def test_what_asks_for_nothing_is_not_told(post):
    reply = post(PATH, **GREEDY, thinking={"type": "disabled"}, container=None, tool_choice={"type": "auto"})
    assert reply.status_code == 200
    assert "warning" not in reply.headers


@pytest.mark.usefixtures("broken")
def test_an_error_inside_a_stream_is_its_last_event(post):
    last = events_of(post)[-1]
    assert (last["type"], last["error"]["type"]) == ("error", "invalid_request_error")
    assert last["error"]["message"] == "the pass is refused"
    assert last["request_id"].startswith("req_")
