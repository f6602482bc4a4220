"""What a model is asked and answers on each route of a server: its text, its calls, and why it ends."""

import json
from typing import Any

from fastapi.testclient import TestClient

ENDS = {
    "chat/completions": ("tool_calls", "stop"),
    "responses": ("completed", "completed"),
    "messages": ("tool_use", "end_turn"),
}
"""By route, how a reply ends that calls tools, and one that does not."""
Answer = tuple[str, list[tuple[str, Any]], str | None]


def body(route: str, question: str, name: str, parameters: dict[str, Any], most: int) -> dict[str, Any]:
    """A greedy request with one tool, whose answer has at most so many tokens."""
    asked = [{"role": "user", "content": question}]
    if route == "messages":
        tool = {"name": name, "input_schema": parameters}
        return {"messages": asked, "max_tokens": most, "tools": [tool], "temperature": 0}
    tool = {"name": name, "parameters": parameters}
    if route == "responses":
        function = {"type": "function", **tool}
        return {"input": asked, "max_output_tokens": most, "tools": [function], "temperature": 0}
    function = {"type": "function", "function": tool}
    return {"messages": asked, "max_tokens": most, "tools": [function], "temperature": 0}


def ask(client: TestClient, route: str, body: dict[str, Any]) -> Answer:
    """The answer to a request, which may want a stream."""
    reply = client.post(f"/v1/{route}", json=body)
    assert reply.status_code == 200, reply.text
    if not body.get("stream"):
        return READ[route](reply.json())
    lines = [line.removeprefix("data: ") for line in reply.text.splitlines() if line.startswith("data: {")]
    found = [json.loads(line) for line in lines]
    if route == "responses":
        assert found[-1]["response"]["output"] == [
            each["item"] for each in found if each["type"] == "response.output_item.done"
        ]
        return of_response(found[-1]["response"])
    return of_chunks(found) if route == "chat/completions" else of_blocks(found)


def of_chat(reply: dict[str, Any]) -> Answer:
    (choice,) = reply["choices"]
    calls = [each["function"] for each in choice["message"].get("tool_calls", ())]
    found = [(each["name"], json.loads(each["arguments"])) for each in calls]
    return choice["message"]["content"] or "", found, choice["finish_reason"]


def of_response(reply: dict[str, Any]) -> Answer:
    said = [part["text"] for item in reply["output"] if item["type"] == "message" for part in item["content"]]
    calls = [item for item in reply["output"] if item["type"] == "function_call"]
    return "".join(said), [(each["name"], json.loads(each["arguments"])) for each in calls], reply["status"]


def of_message(reply: dict[str, Any]) -> Answer:
    said = [block["text"] for block in reply["content"] if block["type"] == "text"]
    calls = [block for block in reply["content"] if block["type"] == "tool_use"]
    return "".join(said), [(each["name"], each["input"]) for each in calls], reply["stop_reason"]


def of_chunks(chunks: list[dict[str, Any]]) -> Answer:
    said, calls, reason = "", list[list[str]](), None
    for chunk in chunks:
        (choice,) = chunk["choices"]
        said, reason = said + (choice["delta"].get("content") or ""), choice["finish_reason"] or reason
        for call in choice["delta"].get("tool_calls", ()):
            if "id" in call:
                calls.append([call["function"]["name"], ""])
            calls[call["index"]][1] += call["function"]["arguments"]
    return said, [(name, json.loads(arguments)) for name, arguments in calls], reason


def of_blocks(found: list[dict[str, Any]]) -> Answer:
    said, calls, reason = "", list[list[str]](), None
    for event in found:
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            calls.append([event["content_block"]["name"], ""])
        elif event["type"] == "content_block_delta":
            said += event["delta"].get("text", "")
            if "partial_json" in event["delta"]:
                calls[-1][1] += event["delta"]["partial_json"]
        elif event["type"] == "message_delta":
            reason = event["delta"]["stop_reason"]
    return said, [(name, json.loads(arguments)) for name, arguments in calls], reason


READ = {"chat/completions": of_chat, "responses": of_response, "messages": of_message}
