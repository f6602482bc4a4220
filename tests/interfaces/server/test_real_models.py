"""Models that people have behind the server: chats, calls of tools, JSON, and the settings of their own."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from pydantic import BaseModel, ConfigDict, Field

import drafttree
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers import real_models
from helpers.answers import ENDS, READ, ask, body
from testing.live_server import events

pytestmark = [pytest.mark.real, pytest.mark.slow]
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]}},
    "required": ["city"],
}
SAMPLING = {"repetition_penalty": 1.1, "temperature": 0.7, "top_p": 0.8, "top_k": 20}
"""The settings that Qwen2.5-Coder was published with."""


class Person(BaseModel):
    model_config = ConfigDict(extra="forbid")

    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=120)
    likes_tea: bool


def served(path: Path) -> Iterator[TestClient]:
    with (
        drafttree.load(path, "lookup", dtype="float32") as decoder,
        TestClient(create_app(decoder, ServerSettings("m"))) as client,
    ):
        yield client


@pytest.fixture(scope="module")
def qwen():
    yield from served(real_models.gguf_file("qwen-coder-0.5b"))


@pytest.fixture
def gemma():
    yield from served(real_models.gguf_file("gemma-270m"))


@pytest.fixture
def qwen_with_settings(tmp_path):
    """The folder of a model with the generation config that it was published with."""
    for file in real_models.model_folder("qwen-coder-0.5b").iterdir():
        (tmp_path / file.name).symlink_to(file)
    config = tmp_path / "generation_config.json"
    settings = json.loads(config.read_text())
    config.unlink()
    config.write_text(json.dumps({**settings, "do_sample": True, **SAMPLING}))
    yield from served(tmp_path)


def complete(client: TestClient, **body) -> dict:
    reply = client.post("/v1/completions", json=body)
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_a_chat_follows_the_template_of_the_model(qwen):
    system, question = "Answer with one word.", "Capital of France?"
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    tokens = qwen.post("/tokenize", json={"messages": messages}).json()["tokens"]
    prompt = qwen.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert prompt == (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n"
    )
    asked = {"messages": messages, "max_tokens": 20, "temperature": 0}
    whole = ask(qwen, "chat/completions", asked)
    assert "Paris" in whole[0]
    assert whole[1:] == ([], "stop")
    assert ask(qwen, "chat/completions", {**asked, "stream": True}) == whole


@pytest.mark.parametrize("route", READ)
def test_a_call_that_the_model_makes_is_read(qwen, route):
    asked = body(route, "What is the weather in Paris?", "get_weather", WEATHER, 80)
    said, calls, reason = whole = ask(qwen, route, asked)
    assert (said, reason) == ("", ENDS[route][0])
    ((name, arguments),) = calls
    assert name == "get_weather"
    assert arguments["city"] == "Paris"
    assert ask(qwen, route, {**asked, "stream": True}) == whole


def test_an_answer_is_json_of_its_schema(qwen):
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": Person.model_json_schema()}}
    messages = [{"role": "user", "content": "Invent a person, as JSON."}]
    asked = {"messages": messages, "max_tokens": 60, "temperature": 0, "response_format": form}
    whole = ask(qwen, "chat/completions", asked)
    Person.model_validate_json(whole[0])
    assert ask(qwen, "chat/completions", {**asked, "stream": True}) == whole


def test_a_model_without_template_writes_json_in_its_vocabulary_of_262_144(gemma):
    messages = {"messages": [{"role": "user", "content": "Hello"}]}
    refused = gemma.post("/v1/chat/completions", json=messages)
    assert refused.status_code == 400
    assert "chat template" in refused.json()["error"]["message"]
    outputs = {"json": Person.model_json_schema()}
    asked = {
        "prompt": "A person as JSON: ",
        "max_tokens": 60,
        "temperature": 1.0,
        "seed": 3,
        "structured_outputs": outputs,
    }
    whole = complete(gemma, **asked)
    Person.model_validate_json(whole["choices"][0]["text"])
    pieces = events(gemma.post("/v1/completions", json={**asked, "stream": True}).text)
    assert "".join(each["choices"][0]["text"] for each in pieces) == whole["choices"][0]["text"]


def test_a_request_without_settings_has_those_of_the_model(qwen_with_settings):
    client = qwen_with_settings
    neutral = {"repetition_penalty": 1.0, "temperature": 1.0, "top_p": 1.0, "top_k": 0}
    asked = {"prompt": "The old man looked at the sea and", "max_tokens": 12, "seed": 5}
    own, given, other = (complete(client, **asked, **each)["choices"][0]["text"] for each in ({}, SAMPLING, neutral))
    assert own == given
    assert own != other
    messages = [{"role": "user", "content": "Write a line about the sea."}]
    chat = {"messages": messages, "max_tokens": 12, "seed": 5}
    whole = ask(client, "chat/completions", chat)
    assert ask(client, "chat/completions", {**chat, "stream": True}) == whole
    assert ask(client, "chat/completions", {**chat, **SAMPLING}) == whole
