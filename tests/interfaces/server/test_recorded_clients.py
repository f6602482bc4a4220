"""Requests as the clients that people run send them today, each in a loop of calls in which our replies come back.

The bodies have the fields and shapes of the clients' public code, and texts of our own.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from drafttree import Decoder
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.dialect.arguments import written_arguments
from drafttree.interfaces.server.dialect.families import CALLS
from drafttree.interfaces.server.dialect.model_dialect import Dialect
from drafttree.interfaces.server.errors import ServerError
from drafttree.interfaces.server.grammar import chat_grammar
from drafttree.interfaces.server.request import ChatRequest
from drafttree.interfaces.server.serving import ServerSettings
from helpers.dialects import HERMES_CALL, TURNS, InTurns, knowing, tokenizer_of
from testing.grammars import accepts
from testing.live_server import events, named_events
from testing.toy import ToyModel

pytest.importorskip("llguidance")

Json = dict[str, Any]
DATA = Path(__file__).parents[2] / "data" / "github-mcp-server" / "tools.json"
MCP: list[Json] = json.loads(DATA.read_text())
NAMES_ALONE = "{% if tools %}{% for tool in tools %}{{ tool.function.name }} {% endfor %}<|im_end|>\n{% endif %}"
ASSISTANT = "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
RESULT = f"{InTurns.MARK} 4 degrees"
"""What a tool returns."""
SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "properties": {
        "command": {"type": "string", "description": "What to run"},
        "limit": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
        "mode": {"type": "string", "enum": ["now", "later"]},
    },
    "required": ["command"],
    "additionalProperties": False,
}
PLAIN = {"type": "object", "properties": {"command": {"title": "Command", "type": "string"}}, "required": ["command"]}
ARGUMENTS = {"command": "date"}
LONG = f"mcp__{'calendar_' * 12}_read"


def served(name: str) -> TestClient:
    """A server of a model that calls a tool."""
    tokenizer = tokenizer_of("qwen3")
    tokenizer.chat_template = NAMES_ALONE + TURNS.replace("CALL", HERMES_CALL) + ASSISTANT
    call = f'<tool_call>\n{{"name": "{name}", "arguments": {json.dumps(ARGUMENTS)}}}\n</tool_call>'
    texts = [f"<think>\nHm.\n</think>\n\nOne moment.\n{call}", call, "<think>\nSo.\n</think>\n\nIt is mild."]
    law = InTurns(tokenizer, texts)
    decoder = Decoder(ToyModel(law, law.vocab, context=20_000), tokenizer=tokenizer, eos=[law.eos])
    return TestClient(create_app(decoder, ServerSettings("toy")))


@dataclass(frozen=True)
class Turn:
    """What a reply brought: the text, the calls as (id, name, arguments), and the conversation with it at its end."""

    text: str
    calls: list[tuple[str, str, Json]]
    history: list[Json]

    @property
    def calls_alone(self) -> list[tuple[str, Json]]:
        """The calls without their ids, which differ."""
        return [(name, arguments) for _, name, arguments in self.calls]


def chat_turn(reply: Json, history: list[Json], kept: Callable[[Json], Json]) -> Turn:
    """A message of `/v1/chat/completions`, sent back as a client keeps it."""
    message = reply["choices"][0]["message"]
    calls = [
        (call["id"], call["function"]["name"], json.loads(call["function"]["arguments"]))
        for call in message.get("tool_calls") or ()
    ]
    results = [{"role": "tool", "tool_call_id": each, "content": RESULT} for each, *_ in calls]
    return Turn(message["content"] or "", calls, [*history, kept(message), *results])


def whole_chat(stream: str) -> Json:
    """The message that chunks add up to."""
    message: Json = {"role": "assistant", "content": "", "tool_calls": []}
    for chunk in events(stream):
        for choice in chunk["choices"]:
            delta = choice["delta"]
            message["content"] += delta.get("content") or ""
            for call in delta.get("tool_calls") or ():
                if call["index"] == len(message["tool_calls"]):
                    message["tool_calls"].append(json.loads(json.dumps(call)))
                else:
                    added = call["function"]["arguments"]
                    message["tool_calls"][call["index"]]["function"]["arguments"] += added
    return {"choices": [{"message": message}]}


def responses_turn(reply: Json, history: list[Json], kept: Callable[[Json], Json]) -> Turn:
    """Items of `/v1/responses`."""
    text, calls, items = "", [], []
    for item in reply["output"]:
        items.append(kept(item))
        if item["type"] == "message":
            text += item["content"][0]["text"]
        if item["type"] == "function_call":
            name = f"{item['namespace']}.{item['name']}" if "namespace" in item else item["name"]
            calls.append((item["call_id"], name, json.loads(item["arguments"])))
            items.append({"type": "function_call_output", "call_id": item["call_id"], "output": RESULT})
    return Turn(text, calls, [*history, *items])


def whole_response(stream: str) -> Json:
    """The items that a stream completes one by one, and at its end as a whole."""
    found = named_events(stream)
    assert found[-1]["type"] == "response.completed"
    items = [event["item"] for event in found if event["type"] == "response.output_item.done"]
    assert items == found[-1]["response"]["output"]
    return {"output": items}


def messages_turn(reply: Json, history: list[Json], kept: Callable[[Json], Json]) -> Turn:
    """Blocks of `/v1/messages`; a message of the system follows results, as newer versions have it."""
    blocks = reply["content"]
    calls = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    text = "".join(block["text"] for block in blocks if block["type"] == "text")
    results = [
        {"tool_use_id": each, "type": "tool_result", "content": RESULT, "is_error": False, "cache_control": CACHED}
        for each, *_ in calls
    ]
    left = {"role": "system", "content": [{"type": "text", "text": "100 tokens left", "cache_control": CACHED}]}
    added = [{"role": "user", "content": results}, left] if results else []
    return Turn(text, calls, [*history, {"role": "assistant", "content": [*map(kept, blocks)]}, *added])


def whole_message(stream: str) -> Json:
    """The blocks that events add up to."""
    blocks: list[Json] = []
    for event in named_events(stream):
        match event["type"]:
            case "content_block_start":
                blocks.append(event["content_block"] | {"json": ""})
            case "content_block_delta":
                for name, value in event["delta"].items():
                    where = "json" if name == "partial_json" else name
                    if name != "type":
                        blocks[-1][where] = blocks[-1].get(where, "") + value
    for block in blocks:
        written = block.pop("json")
        if block["type"] == "tool_use":
            block["input"] = json.loads(written)
    return {"content": blocks}


CACHED = {"type": "ephemeral"}
APIS: dict[str, tuple[str, Callable[..., Turn], Callable[[str], Json]]] = {
    "v1/chat/completions": ("messages", chat_turn, whole_chat),
    "v1/responses": ("input", responses_turn, whole_response),
    "v1/messages?beta=true": ("messages", messages_turn, whole_message),
}
"""By route: the field that has the conversation, and what reads whole replies and streams."""


@dataclass(frozen=True)
class Client:
    """A client.

    Attributes:
        route: where it asks.
        body: what its requests have besides the conversation.
        history: the conversation's beginning.
        called: the tool that the model calls.
        kept: a message, item or block of ours as the client sends it back.
        warning: what the server tells of its requests.
        streaming: what its requests have where they want a stream.
    """

    route: str
    body: Json
    history: list[Json]
    called: str = "run"
    kept: Callable[[Json], Json] = lambda found: found
    warning: str | None = None
    streaming: Json = field(default_factory=lambda: {"stream": True})


def function(name: str, schema: Json, **more: Any) -> Json:
    return {"type": "function", "function": {"name": name, "description": "Run it", "parameters": schema, **more}}


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def part(text: str, kind: str = "text", **more: Any) -> Json:
    return {"type": kind, "text": text, **more}


def call_alone(message: Json) -> Json:
    """A message of which a client keeps the calls, without what a stream numbers them by."""
    calls = [
        {"type": "function", "id": call["id"], "function": call["function"]} for call in message.get("tool_calls") or ()
    ]
    return {"role": "assistant", "content": None, "tool_calls": calls} if calls else message


def without_ids(item: Json) -> Json:
    """An item as Codex keeps it: without ids, and of thinking the summary alone."""
    if item["type"] == "reasoning":
        return {"type": "reasoning", "summary": item["summary"], "encrypted_content": None}
    found = {name: value for name, value in item.items() if name not in ("id", "status")}
    if item["type"] == "message":
        found["content"] = [part(each["text"], "output_text") for each in item["content"]]
    return found


CLAUDE = {
    "model": "toy",
    "max_tokens": 64_000,
    "system": [
        part("x-billing: cli"),
        part("You help.", cache_control=CACHED),
        part("Be brief.", cache_control=CACHED),
    ],
    "tools": [
        *[{"name": name, "description": "Run it", "input_schema": SCHEMA} for name in ("Bash", "Read", LONG)],
        *[{"name": f"tool_{place}", "input_schema": PLAIN} for place in range(36)],
        *[{"name": f"mcp__github__{tool['name']}", "input_schema": tool["inputSchema"]} for tool in MCP],
    ],
    "metadata": {"user_id": json.dumps({"device_id": "0", "session_id": "1"})},
    "thinking": {"type": "adaptive", "display": "updates"},
    "output_config": {"effort": "high"},
    "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
    "safeguards": [{"type": "dangerous_tool_use", "classifier_context": {"cwd": "/"}}],
}
TOLD = "cache_control, display, effort, metadata, safeguards"
NOT_ENFORCED = '299 drafttree "not enforced: schemas of tools"'
REMINDED = {"role": "user", "content": [part("Some reminder."), part("Cold in Paris?", cache_control=CACHED)]}
CODEX = {
    "model": "toy",
    "instructions": "You help.",
    "tools": [
        {"type": "function", "name": "run", "description": "Run it", "strict": False, "parameters": SCHEMA},
        {
            "type": "custom",
            "name": "apply_patch",
            "description": "Edit",
            "format": {"type": "grammar", "syntax": "lark"},
        },
        {"type": "web_search", "external_web_access": False},
        {"type": "tool_search", "execution": "client", "description": "Find", "parameters": PLAIN},
        {
            "type": "namespace",
            "name": "mcp__github",
            "description": "Tools of a server",
            "tools": [
                {"type": "function", "name": tool["name"], "strict": False, "parameters": tool["inputSchema"]}
                for tool in MCP[:9]
            ]
            + [{"type": "function", "name": "run", "defer_loading": True, "strict": False, "parameters": PLAIN}],
        },
    ],
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "truncation": "auto",
    "reasoning": None,
    "store": False,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "0",
    "client_metadata": {"x-codex-installation-id": "0"},
}
ENVIRONMENT = [
    {"type": "message", "role": "developer", "content": [part("Ask before you delete.", "input_text")]},
    {"type": "message", "role": "user", "content": [part("Cold in Paris?", "input_text")]},
]
CODEX_TOLD = (
    "client_metadata, defer_loading, description, prompt_cache_key, tool apply_patch, tool tool_search, tool web_search"
)
HELLO = [{"role": "system", "content": "You help."}, user("Cold in Paris?")]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}
CLIENTS = {
    "Claude Code": Client(
        "v1/messages?beta=true",
        CLAUDE,
        [REMINDED, {"role": "system", "content": "# Environment"}],
        LONG,
        warning=f'299 drafttree "without effect: {TOLD}", {NOT_ENFORCED}',
    ),
    "Codex": Client(
        "v1/responses",
        CODEX,
        ENVIRONMENT,
        kept=without_ids,
        warning=f'299 drafttree "without effect: {CODEX_TOLD}"',
    ),
    "Codex, a tool of a server": Client(
        "v1/responses",
        CODEX,
        ENVIRONMENT,
        "mcp__github.run",
        kept=without_ids,
        warning=f'299 drafttree "without effect: {CODEX_TOLD}"',
    ),
    "Continue": Client(
        "v1/chat/completions",
        {"model": "toy", "max_tokens": 4096, "tools": [function("run", PLAIN)], "tool_choice": "auto"},
        HELLO,
        kept=lambda message: call_alone(message) | {"content": message["content"] or " "},
        streaming=USAGE,
    ),
    "open-webui": Client(
        "v1/chat/completions",
        {"model": "toy", "tools": [function("run", PLAIN)]},
        HELLO,
        kept=lambda message: message | {"content": message["content"] or ""},
        streaming=USAGE,
    ),
    "LangGraph": Client(
        "v1/chat/completions", {"model": "toy", "tools": [function("run", PLAIN)]}, HELLO, kept=call_alone
    ),
    "llama-index": Client(
        "v1/chat/completions",
        {
            "model": "toy",
            "parallel_tool_calls": False,
            "temperature": 0.1,
            "tool_choice": "auto",
            "tools": [function("run", PLAIN | {"additionalProperties": False}, strict=False)],
        },
        HELLO,
        kept=call_alone,
    ),
}


def ask(client: TestClient, shape: Client, history: list[Json], **more: Any) -> Any:
    conversation, *_ = APIS[shape.route]
    reply = client.post(f"/{shape.route}", json={"temperature": 0, **shape.body, conversation: history, **more})
    assert reply.status_code == 200, reply.text
    return reply


@pytest.mark.few(1)
@pytest.mark.parametrize("shape", CLIENTS.values(), ids=CLIENTS)
def test_a_loop_of_calls_goes_on_with_what_we_replied(shape):
    _, turn, whole = APIS[shape.route]
    history, called, warnings, texts = shape.history, list[Any](), list[str | None](), list[str]()
    with served(shape.called) as client:
        for _ in range(3):
            alone = turn(ask(client, shape, history).json(), history, shape.kept)
            reply = ask(client, shape, history, **shape.streaming)
            streamed = turn(whole(reply.text), history, shape.kept)
            assert (alone.text, alone.calls_alone) == (streamed.text, streamed.calls_alone)
            called += streamed.calls_alone
            warnings.append(reply.headers.get("warning"))
            texts.append(streamed.text)
            history = streamed.history
    assert called == [(shape.called, ARGUMENTS)] * 2
    assert texts == ["One moment.", "", "It is mild."]
    assert warnings[0] == shape.warning


def test_aider_goes_on_with_what_we_said():
    """It calls no tools: edits are text. What it streams is what LiteLLM asks for."""
    body = {"model": "toy", "temperature": 0, **USAGE}
    tokenizer = tokenizer_of("qwen3")
    said = "a.py\n<<<<<<< SEARCH\n1\n=======\n2\n>>>>>>> REPLACE\n"
    texts, found = list[str](), list[Json]()
    messages = [*HELLO, {"role": "assistant", "content": "Ok."}, user("Change 1 to 2.")]
    with TestClient(create_app(knowing(said, "qwen3"), ServerSettings("toy"))) as client:
        for _ in range(3):
            found = events(client.post("/v1/chat/completions", json={**body, "messages": messages}).text)
            texts.append("".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in found[:-1]))
            messages += [{"role": "assistant", "content": texts[-1]}, user("Go on.")]
    assert found[-1]["usage"]["completion_tokens"] == len(tokenizer(said)["input_ids"]) + 1
    assert texts == [said] * 3


def test_aiders_function_is_called_as_it_insists():
    schema = {"type": "object", "required": ["path"], "properties": {"path": {"const": "a"}}}
    choice = {"type": "function", "function": {"name": "replace_lines"}}
    body = {"model": "toy", "temperature": 0, "tools": [function("replace_lines", schema)], "tool_choice": choice}
    wrong = '<tool_call>\n{"name": "replace_lines", "arguments": {"path": "b"}}\n</tool_call>'
    with TestClient(create_app(knowing(wrong, "qwen3"), ServerSettings("toy"))) as client:
        reply = client.post("/v1/chat/completions", json={**body, "messages": HELLO, "max_tokens": 200})
    (call,) = reply.json()["choices"][0]["message"]["tool_calls"]
    assert json.loads(call["function"]["arguments"]) == {"path": "a"}


def test_llama_indexs_choice_without_tools_is_refused_as_openai_does():
    """It asks so where it is not told that the model calls functions (`is_function_calling_model=True`)."""
    with served("run") as client:
        reply = client.post("/v1/chat/completions", json={"messages": HELLO, "tool_choice": "required"})
    assert reply.status_code == 400
    assert "tool_choice: this asks for a call, but there are no tools" in reply.json()["error"]["message"]


FAMILIES = ["hermes", "qwen3_coder", "glm45", "openai", "mistral"]


def mcp_request(tools: list[Json], **more: Any) -> ChatRequest:
    made = [function(tool["name"], tool["inputSchema"], **more) for tool in tools]
    return ChatRequest.model_validate({"messages": HELLO, "tools": made})


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FAMILIES)
def test_each_of_117_tools_is_enforced_alone(name):
    tokenizer = tokenizer_of("qwen3")
    for tool in MCP:
        for strict in (False, True):
            wanted = chat_grammar(mcp_request([tool], strict=strict), Dialect(None, CALLS[name]), "no")
            assert wanted
            assert not wanted.unenforced
            assert (wanted.otherwise is None) == strict
            wanted.parse().new_state(tokenizer, len(tokenizer), (len(tokenizer) - 1,))


@pytest.mark.parametrize("name", CALLS)
def test_117_tools_at_once_are_told_and_their_calls_read(name):
    form = CALLS[name]
    wanted = chat_grammar(mcp_request(MCP), Dialect(None, form), "no")
    assert wanted
    assert "give at most 32768" in wanted.unenforced
    made = wanted.parse()
    arguments = written_arguments(form.arguments, '{"owner": "x", "page": 1}')
    assert accepts(made, "So. " + form.text([("list_issues", arguments)]))
    assert not accepts(made, "So. " + form.text([("list_nothing", arguments)]))
    with pytest.raises(ServerError, match="give at most 32768"):
        chat_grammar(mcp_request(MCP, strict=True), Dialect(None, form), "no")


def test_what_is_strict_stays_enforced_among_117_tools():
    one = {"type": "object", "required": ["x"], "properties": {"x": {"const": 1}}}
    tools = [*(function(tool["name"], tool["inputSchema"]) for tool in MCP), function("add", one, strict=True)]
    request = ChatRequest.model_validate({"messages": HELLO, "tools": tools})
    wanted = chat_grammar(request, Dialect(None, CALLS["hermes"]), "no")
    assert wanted
    made = wanted.parse()
    assert accepts(made, CALLS["hermes"].text([("add", '{"x": 1}')]))
    assert not accepts(made, CALLS["hermes"].text([("add", '{"x": 2}')]))
