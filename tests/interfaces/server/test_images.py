"""Images in requests: each API reads them as Python does, and refuses by name what cannot be read."""

import asyncio
import base64
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from fastapi.testclient import TestClient
from PIL import Image

import drafttree
from drafttree.constraints.refusals import NoEffect
from drafttree.engine.prefixes import BLOCK
from drafttree.images.fetching import Fetcher
from drafttree.interfaces.server import images
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.chat_prompt import without_tool_images
from drafttree.interfaces.server.images import FETCHED_AT_ONCE
from drafttree.interfaces.server.serving import ServerSettings
from drafttree.interfaces.server.unsupported_fields import FIELDS
from helpers.image_bytes import bomb, encoded
from helpers.image_folders import ImageFolder, image_folder

NEW = 12
PICTURE = Image.radial_gradient("L").resize((70, 50)).convert("RGB")
OTHER = PICTURE.transpose(Image.Transpose.ROTATE_180).crop((0, 0, 60, 50))
OPTIONS = {"max_tokens": NEW, "temperature": 0, "ignore_eos": True}
QUESTION = "what is in this?"
NOTHING = base64.b64encode(b"nothing").decode()
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
IMAGE_FIELDS = [
    ("chat/completions", "chat.messages.content.image_url", "messages.0.content.0.image_url."),
    ("responses", "responses.input.message.content.input_image", "input.0.content.0."),
    ("messages", "messages.image", "messages.0.content.0."),
]
ADDRESS = "https://pictures.example/a.png"


def file_of(image: Image.Image) -> str:
    return base64.b64encode(encoded(image)).decode()


def data_url(image: Image.Image = PICTURE) -> str:
    return f"data:image/png;base64,{file_of(image)}"


def url_part(url: str) -> dict:
    return {"type": "image_url", "image_url": {"url": url}}


def block_of(image: Image.Image) -> dict:
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": file_of(image)}}


def text(words: str) -> dict:
    return {"type": "text", "text": words}


def say(*parts: dict, role: str = "user") -> dict:
    return {"role": role, "content": [*parts]}


def shown(image: Image.Image) -> dict:
    """An image as transformers takes it."""
    return {"type": "image", "image": image}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> ImageFolder:
    return image_folder("idefics3", tmp_path_factory.mktemp("eyes"))


@pytest.fixture(scope="module")
def decoder(folder):
    return drafttree.load(folder.path, "lookup", "talon:budget=12,width=3", dtype="float32")


@pytest.fixture(scope="module")
def client(decoder):
    with TestClient(create_app(decoder, ServerSettings("eyes", max_images=3, max_pixels=20_000))) as client:
        yield client


def answered(client: TestClient, route: str = "/v1/chat/completions", **fields) -> dict:
    reply = client.post(route, json={**OPTIONS, **fields})
    assert reply.status_code == 200, reply.text
    return reply.json()


def refused(client: TestClient, *parts: dict) -> dict:
    reply = client.post("/v1/chat/completions", json={"messages": [say(*parts, text(QUESTION))]})
    assert reply.status_code == 400, reply.text
    return reply.json()["error"]


def expected_text(folder: ImageFolder, messages: list[dict]) -> str:
    tokens = folder.generate(messages, NEW)
    return folder.processor.tokenizer.decode(tokens, skip_special_tokens=True)


def test_an_image_of_each_api_gives_transformers_text(client, folder):
    expected = expected_text(folder, [say(shown(PICTURE), text(QUESTION))])
    chat = answered(client, messages=[say(url_part(data_url()), text(QUESTION))])
    assert chat["choices"][0]["message"]["content"] == expected
    block = block_of(PICTURE)
    message = answered(client, "/v1/messages", messages=[say(block, text(QUESTION))])
    assert message["content"][0]["text"] == expected
    items = [{"type": "input_image", "image_url": data_url(), "detail": "auto"}]
    items.append({"type": "input_text", "text": QUESTION})
    body = {"input": [say(*items)], "max_output_tokens": NEW, "temperature": 0, "ignore_eos": True}
    response = client.post("/v1/responses", json=body).json()
    assert response["output"][0]["content"][0]["text"] == expected


def test_clients_can_tell_that_the_model_reads_images(client):
    (card,) = client.get("/v1/models").json()["data"]
    assert card["input_modalities"] == ["text", "image"]


def test_a_placeholder_that_a_message_spells_is_text(client, folder):
    spelled = [say(url_part(data_url()), text("what is an <image> token?"))]
    tokens = client.post("/tokenize", json={"messages": spelled}).json()["tokens"]
    placeholder = folder.processor.tokenizer.convert_tokens_to_ids("<image>")
    plain = [say(url_part(data_url()), text("what is a token?"))]
    plain_tokens = client.post("/tokenize", json={"messages": plain}).json()["tokens"]
    assert tokens.count(placeholder) == plain_tokens.count(placeholder)
    assert "<image> token?" in folder.processor.tokenizer.decode(tokens)
    assert answered(client, messages=spelled)["choices"]


def test_a_server_may_read_no_images(decoder):
    with TestClient(create_app(decoder, ServerSettings("eyes", max_images=0))) as client:
        assert client.get("/v1/models").json()["data"][0]["input_modalities"] == ["text"]
        assert "not served" in refused(client, url_part(data_url()))["message"]


def test_images_that_exceed_the_context_are_refused_before_they_are_prepared(decoder, folder, monkeypatch):
    monkeypatch.setattr(type(folder.processor), "__call__", lambda *_, **__: pytest.fail("it was prepared"))
    with TestClient(create_app(decoder, ServerSettings("eyes"))) as client:
        error = refused(client, *[url_part(data_url(Image.new("L", (1, 1))))] * 60)
    assert re.search(
        r"the 60 images of the prompt have [\d,]+ tokens, and the model's context has 512", error["message"]
    )


def test_slow_hosts_do_not_hold_texts_and_other_images(decoder, monkeypatch):
    """More images are being fetched than may be, and texts with and without images are written meanwhile."""
    may_answer = threading.Event()
    asked = threading.Semaphore(0)

    async def fetch(self: Fetcher, url: str, limits, name: str) -> bytes:
        asked.release()
        while not may_answer.is_set():
            await asyncio.sleep(0.01)
        return encoded(PICTURE)

    monkeypatch.setattr(Fetcher, "fetch", fetch)
    settings = ServerSettings("eyes", image_hosts=("*",))
    with TestClient(create_app(decoder, settings)) as client, ThreadPoolExecutor(2 * FETCHED_AT_ONCE) as pool:
        messages = [say(url_part(ADDRESS), text(QUESTION))]
        replies = [pool.submit(answered, client, messages=messages) for _ in range(2 * FETCHED_AT_ONCE)]
        for _ in range(FETCHED_AT_ONCE):
            assert asked.acquire(timeout=60)
        assert answered(client, messages=[say(text(QUESTION))])["choices"]
        assert answered(client, messages=[say(url_part(data_url()), text(QUESTION))])["choices"]
        may_answer.set()
        texts = {reply.result()["choices"][0]["message"]["content"] for reply in replies}
    assert len(texts) == 1


def test_images_of_waiting_requests_have_a_limit(decoder, monkeypatch):
    monkeypatch.setattr(images, "MOST_HELD_BYTES", -1)
    with TestClient(create_app(decoder, ServerSettings("eyes"))) as client:
        body = {"messages": [say(url_part(data_url()), text(QUESTION))]}
        reply = client.post("/v1/chat/completions", json=body)
        assert (reply.status_code, reply.json()["error"]["code"]) == (429, "images_full")
        assert int(reply.headers["retry-after"])
        assert answered(client, messages=[say(text(QUESTION))])["choices"]


def test_a_conversation_with_images_in_several_turns(client, folder):
    turns = [
        say(url_part(data_url()), text(QUESTION)),
        {"role": "assistant", "content": "the quick brown fox"},
        say(text("and "), url_part(data_url(OTHER)), text(" please")),
    ]
    transformers_turns = [
        say(shown(PICTURE), text(QUESTION)),
        turns[1],
        say(text("and "), shown(OTHER), text(" please")),
    ]
    chat = answered(client, messages=turns)
    assert chat["choices"][0]["message"]["content"] == expected_text(folder, transformers_turns)
    again = answered(client, messages=turns)
    assert again["choices"] == chat["choices"]
    assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > chat["usage"]["prompt_tokens"] - 1 - BLOCK


def test_rows_of_another_image_are_not_taken(client, folder):
    answered(client, messages=[say(url_part(data_url()), text(QUESTION))])
    chat = answered(client, messages=[say(url_part(data_url(OTHER)), text(QUESTION))])
    assert chat["choices"][0]["message"]["content"] == expected_text(folder, [say(shown(OTHER), text(QUESTION))])


def test_a_stream_and_several_answers(client, folder):
    messages = [say(url_part(data_url()), text(QUESTION))]
    expected = expected_text(folder, [say(shown(PICTURE), text(QUESTION))])
    chat = answered(client, messages=messages, n=3)
    assert {choice["message"]["content"] for choice in chat["choices"]} == {expected}
    options = {"messages": messages, "max_tokens": NEW, "temperature": 0, "stream": True}
    with client.stream("POST", "/v1/chat/completions", json=options) as reply:
        lines = [line for line in reply.iter_lines() if line.startswith("data: {")]
    assert len(lines) > 2


def test_tokens_are_counted_with_those_of_the_images(client, folder):
    messages = [say(url_part(data_url()), text(QUESTION))]
    tokens = folder.inputs([say(shown(PICTURE), text(QUESTION))])["input_ids"][0].tolist()
    tokenized = client.post("/tokenize", json={"messages": messages}).json()
    assert tokenized["tokens"] == tokens
    block = block_of(PICTURE)
    counted = client.post("/v1/messages/count_tokens", json={"messages": [say(block, text(QUESTION))]}).json()
    assert counted["input_tokens"] == len(tokens)
    assert answered(client, messages=messages)["usage"]["prompt_tokens"] == len(tokens)


def test_the_result_of_a_tool_may_be_an_image(client, folder):
    conversation = [
        say(text("look around")),
        {"role": "assistant", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": [text("a picture"), url_part(data_url())]},
    ]
    tokens = client.post("/tokenize", json={"messages": conversation}).json()["tokens"]
    prompt = folder.processor.tokenizer.decode(tokens)
    end = prompt[prompt.index("a picture") :]
    assert "<image>" in end
    answered(client, messages=conversation)
    blocks = [
        say(text("look around")),
        {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "look", "input": {}}]},
        say(
            {
                "type": "tool_result",
                "tool_use_id": "c",
                "content": [
                    text("a picture"),
                    {
                        "type": "image",
                        "source": {"type": "base64", "media_type": "image/png", "data": file_of(PICTURE)},
                    },
                ],
            }
        ),
    ]
    counted = client.post("/v1/messages/count_tokens", json={"messages": blocks}).json()
    assert counted["input_tokens"] == len(tokens)


def test_images_of_tools_move_to_the_user_where_a_template_has_no_place_for_them():
    image, words = {"type": "image"}, text("x")
    ask, call, result = say(words), {"role": "assistant", "content": []}, say(words, image, role="tool")
    moved = without_tool_images([ask, call, result, result, say(words)])
    assert [message["content"] for message in moved[2:]] == [[words], [words], [image, image, words]]
    moved = without_tool_images([ask, call, result, call, result])
    assert [message["role"] for message in moved[2:]] == ["tool", "user", "assistant", "tool", "user"]


def test_a_model_that_reads_images_still_shows_a_text_for_other_parts(client):
    audio = {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}
    turns = [say(audio, url_part(data_url())), {"role": "assistant", "content": "ok"}, say(text(QUESTION))]
    reply = client.post("/tokenize", json={"messages": turns, "return_token_strs": True})
    assert "audio" in reply.headers["Warning"]
    assert refused(client, audio)["message"].endswith("a content part of type 'input_audio' is not served; give text")


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([url_part(f"data:image/png;base64,{NOTHING}")], "messages: image 1 .* is no image that can be"),
        (
            [url_part(data_url()), url_part("data:image/png;base64,a*b")],
            r"image 2 \(in message 1\) is not valid",
        ),
        ([url_part("data:image/png;base64,é")], r"image 1 \(in message 1\) is not valid base64"),
        ([url_part("/etc/passwd")], "this is no URL of an image; send a data URL"),
        ([url_part("file:///etc/passwd")], "this is no URL of an image; send a data URL"),
        ([url_part(ADDRESS)], "image 1 .* is an address, and none is fetched; send the image as a data URL"),
        ([url_part(data_url())] * 4, "the prompt has 4 images; at most 3 are read"),
        (
            [url_part("data:image/png;base64," + base64.b64encode(bomb(50_000, 50_000)).decode())],
            "image 1 .* has .*pixels",
        ),
        ([url_part(data_url(PICTURE.resize((130, 100))))] * 2, "more than 20,000 pixels together"),
        ([{"type": "image_url", "image_url": data_url()}], "image_url"),
        ([{"type": "image_url", "image_url": {"url": data_url(), "sise": 3}}], "there is no such field"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(client, parts, message):
    error = refused(client, *parts)
    assert re.search(message, error["message"]), error["message"]
    assert answered(client, messages=[say(text(QUESTION))])["choices"]


@pytest.mark.parametrize(("route", "part", "place"), IMAGE_FIELDS)
def test_fields_of_images_have_no_effect_or_are_refused_as_the_table_says(client, route, part, place):
    parts = {
        "chat/completions": lambda **field: {"type": "image_url", "image_url": {"url": data_url(), **field}},
        "responses": lambda **field: {"type": "input_image", "image_url": data_url(), **field},
        "messages": lambda **field: {"type": "image", "source": {"type": "base64", "data": file_of(PICTURE)}, **field},
    }
    for name, entry in FIELDS[part].items():
        limit = "max_output_tokens" if route == "responses" else "max_tokens"
        messages = {"input" if route == "responses" else "messages": [say(parts[route](**{name: "low"}))]}
        reply = client.post(f"/v1/{route}", json={**messages, limit: 4})
        if isinstance(entry, NoEffect):
            assert reply.status_code == 200, reply.text
            assert reply.headers["warning"] == f'299 drafttree "without effect: {name}"'
        else:
            assert reply.status_code == 400, reply.text
            assert f"{place}{name}" in reply.text
            assert "this is not served" in reply.text


def test_addresses_are_fetched_from_allowed_hosts_alone(decoder, folder, monkeypatch):
    async def fetch(self: Fetcher, url: str, limits, name: str) -> bytes:
        assert "pictures.example" in self.hosts
        return encoded(PICTURE)

    monkeypatch.setattr(Fetcher, "fetch", fetch)
    settings = ServerSettings("eyes", image_hosts=("pictures.example",))
    with TestClient(create_app(decoder, settings)) as client:
        chat = answered(client, messages=[say(url_part(ADDRESS), text(QUESTION))])
    assert chat["choices"][0]["message"]["content"] == expected_text(folder, [say(shown(PICTURE), text(QUESTION))])


def test_a_folder_without_processor_serves_texts_and_says_why(folder, tmp_path, caplog):
    copy = tmp_path / "copy"
    folder.module.save_pretrained(copy)
    folder.processor.tokenizer.save_pretrained(copy)
    with TestClient(create_app(drafttree.load(copy, "none", dtype="float32"), ServerSettings("blind"))) as client:
        assert "requests with images are refused" in caplog.text
        error = refused(client, url_part(data_url()))
        assert "a content part of type 'image_url' is not served; give text" in error["message"]
        assert answered(client, messages=[say(text(QUESTION))])["choices"]
