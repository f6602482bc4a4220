"""Models of the families behind the server: thinking, calls and forms, whole and streamed, on every route."""

import json

import pytest
from fastapi.testclient import TestClient

from drafttree.errors import ConfigError
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import knowing
from testing.live_server import events

ASK = [{"role": "user", "content": "Is it cold in Paris?"}]
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
JSON = '{"city": "Paris", "days": 3}'
PAIRS = "<arg_key>city</arg_key>{0}<arg_value>Paris</arg_value>{0}<arg_key>days</arg_key>{0}<arg_value>3</arg_value>{0}"
HERMES = f'<tool_call>\n{{"name": "get_weather", "arguments": {JSON}}}\n</tool_call>'
CODER = "<parameter=city>\nParis\n</parameter>\n<parameter=days>\n3\n</parameter>"
CALLS = {
    "qwen3": ("<think>\nHm.\n</think>\n\n", HERMES),
    "qwq": ("Hm.\n</think>\n\n", HERMES),
    "qwen3-coder": ("<think>Hm.</think>", f"<tool_call>\n<function=get_weather>\n{CODER}\n</function>\n</tool_call>"),
    "llama3": ("", f'{{"name": "get_weather", "parameters": {JSON}}}'),
    "mistral": ("[THINK]Hm.[/THINK]", f"[TOOL_CALLS]get_weather[ARGS]{JSON}"),
    "mistral-7b": ("", f'[TOOL_CALLS] [{{"name": "get_weather", "arguments": {JSON}}}]'),
    "gpt-oss": (
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant",
        f"<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{JSON}<|call|>",
    ),
    "deepseek-r1": (
        "Hm.\n</think>\n\n",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n"  # noqa: RUF001
        f"```json\n{JSON}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    "deepseek-v3.1": (
        "",
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get_weather<｜tool▁sep｜>{JSON}"  # noqa: RUF001
        "<｜tool▁call▁end｜><｜tool▁calls▁end｜>",  # noqa: RUF001
    ),
    "glm-4.5": ("<think>Hm.</think>\n", f"<tool_call>get_weather\n{PAIRS.format(chr(10))}</tool_call>"),
    "glm-4.7": ("Hm.</think>", f"<tool_call>get_weather{PAIRS.format('')}</tool_call>"),
}
COLD = {"type": "object", "properties": {"cold": {"type": "boolean"}}, "required": ["cold"]}
FORM = {"type": "json_schema", "json_schema": {"name": "answer", "schema": COLD}}
SAY = {"gpt-oss": "<|channel|>final<|message|>"}


def served(answer: str, family: str, **settings) -> TestClient:
    return TestClient(create_app(knowing(answer, family), ServerSettings("m", **settings)))


def ask(client: TestClient, **body) -> dict:
    reply = client.post("/v1/chat/completions", json={"messages": ASK, "max_tokens": 400, "temperature": 0, **body})
    assert reply.status_code == 200, reply.text
    return reply.json()


def streamed(client: TestClient, **body) -> dict:
    """The message that the chunks of a stream make."""
    body = {"messages": ASK, "max_tokens": 400, "temperature": 0, "stream": True, **body}
    found: dict = {"reasoning_content": "", "content": "", "calls": []}
    for chunk in events(client.post("/v1/chat/completions", json=body).text):
        delta = chunk["choices"][0]["delta"]
        for name in ("reasoning_content", "content"):
            found[name] += delta.get(name) or ""
        for call in delta.get("tool_calls", ()):
            if "id" in call:
                found["calls"].append([call["function"]["name"], ""])
            found["calls"][call["index"]][1] += call["function"]["arguments"]
    return found


@pytest.mark.few(2)
@pytest.mark.parametrize("family", CALLS)
def test_a_family_thinks_and_calls(family):
    thought, call = CALLS[family]
    with served(thought + call, family) as client:
        for choice in ("auto", "required"):
            reply = ask(client, tools=[TOOL], tool_choice=choice)
            (answer,) = reply["choices"]
            (made,) = answer["message"]["tool_calls"]
            assert answer["finish_reason"] == "tool_calls"
            assert answer["message"]["content"] is None
            assert (made["function"]["name"], json.loads(made["function"]["arguments"])) == (
                "get_weather",
                json.loads(JSON),
            )
            assert answer["message"].get("reasoning_content") == ("Hm." if thought else None)
            assert bool(reply["usage"]["completion_tokens_details"]["reasoning_tokens"]) == bool(thought)
            whole = {"reasoning_content": "Hm." if thought else "", "content": "", "calls": [["get_weather", JSON]]}
            assert streamed(client, tools=[TOOL], tool_choice=choice) == whole


@pytest.mark.few(5)
@pytest.mark.parametrize("family", CALLS)
def test_a_form_begins_where_thinking_ends(family):
    thought = CALLS[family][0]
    with served(f'{thought}{SAY.get(family, "")}{{"cold": true}}', family) as client:
        for body in ({"response_format": FORM}, {"structured_outputs": {"regex": r'\{"cold": (true|false)\}'}}, {}):
            message = ask(client, **body)["choices"][0]["message"]
            assert message["content"] == '{"cold": true}'
            assert message.get("reasoning_content") == ("Hm." if thought else None)


@pytest.mark.parametrize(
    "outputs", [{"choice": ["yes", "no"]}, {"grammar": 'root ::= "yes" | "no"'}, {"json": {"enum": ["yes"]}}], ids=str
)
def test_a_form_holds_behind_thinking(outputs):
    with served("Hm.</think>maybe", "qwq") as client:
        message = ask(client, structured_outputs=outputs)["choices"][0]["message"]
    assert message["reasoning_content"] == "Hm."
    assert message["content"].strip('"') in ("yes", "no")


def test_thinking_that_does_not_end_is_thinking():
    with served("Hm, well, that is hard to say indeed.", "qwq") as client:
        reply = ask(client, max_tokens=9)
    message = reply["choices"][0]["message"]
    assert message["content"] is None
    assert "Hm, well, that".startswith(message["reasoning_content"])
    assert reply["usage"]["completion_tokens_details"]["reasoning_tokens"] == 9


def test_thinking_tokens_are_those_up_to_the_mark():
    with served("Hm.</think>Yes.", "qwq") as client:
        usage = ask(client)["usage"]
        tokens = client.post("/tokenize", json={"prompt": "Hm.</think>"}).json()["count"]
    assert usage["completion_tokens_details"]["reasoning_tokens"] == tokens
    assert usage["completion_tokens"] > tokens


def test_a_template_that_closes_thinking_has_no_form_wait():
    with served('{"cold": true}', "qwen3") as client:
        message = ask(client, chat_template_kwargs={"enable_thinking": False}, response_format=FORM)["choices"][0][
            "message"
        ]
    assert message["content"] == '{"cold": true}'
    assert "reasoning_content" not in message


def test_marks_that_are_special_tokens_are_no_text_elsewhere():
    with served(
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>Hi.", "gpt-oss"
    ) as client:
        reply = client.post("/v1/completions", json={"prompt": "x", "max_tokens": 100, "temperature": 0}).json()
    assert reply["choices"][0]["text"] == "analysisHm.assistantfinalHi."


@pytest.mark.parametrize("parser", ["none", "mistral"])
def test_a_parser_of_another_name_reads_no_other_marks(parser):
    answer = "<think>Hm.</think>" + HERMES
    with served(answer, "qwen3", reasoning_parser=parser, tool_parser="none") as client:
        assert ask(client, tools=[TOOL])["choices"][0]["message"]["content"] == answer
        refused = client.post(
            "/v1/chat/completions", json={"messages": ASK, "tools": [TOOL], "tool_choice": "required"}
        )
    assert refused.status_code == 400
    assert "--tool-parser none" in refused.json()["error"]["message"]


def test_a_named_parser_overrides_the_template():
    with served(CALLS["llama3"][1], "qwen3", tool_parser="llama3_json") as client:
        message = ask(client, tools=[TOOL], tool_choice="required")["choices"][0]["message"]
    assert message["tool_calls"][0]["function"] == {"name": "get_weather", "arguments": JSON}


@pytest.mark.parametrize("option", ["tool_parser", "reasoning_parser"])
def test_unknown_parsers_are_refused_with_those_that_are_known(option):
    with pytest.raises(ConfigError, match=r"is 'nobody'; known: auto, none, .*mistral"):
        served("x", "qwen3", **{option: "nobody"})


def test_what_was_thought_goes_to_the_template_and_has_an_effect():
    said = {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    blocks = [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "Yes."}]
    item = {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}
    items = [
        {"role": "user", "content": "a"},
        item,
        {"role": "assistant", "content": "Yes."},
        {"role": "user", "content": "b"},
    ]
    first, last = {"role": "user", "content": "a"}, {"role": "user", "content": "b"}
    bodies = {
        "chat/completions": {"messages": [first, said, last], "max_tokens": 1},
        "messages": {"messages": [first, {"role": "assistant", "content": blocks}, last], "max_tokens": 1},
        "responses": {"input": items, "max_output_tokens": 1},
    }
    with served("Hm.", "qwen3") as client:
        replies = {path: client.post(f"/v1/{path}", json=body) for path, body in bodies.items()}
        rendered = client.post("/tokenize", json={"messages": bodies["chat/completions"]["messages"]}).json()
        text = client.post("/detokenize", json={"tokens": rendered["tokens"]}).json()["prompt"]
    assert "<think>\nHm.\n</think>\n\nYes." in text
    assert [(reply.status_code, reply.headers.get("warning")) for reply in replies.values()] == [(200, None)] * 3
    usages = [reply.json()["usage"] for reply in replies.values()]
    counts = [
        usage.get("prompt_tokens") or usage["input_tokens"] + usage.get("cache_read_input_tokens", 0)
        for usage in usages
    ]
    assert counts == [rendered["count"]] * 3
