"""Conversations with images, from a model's folder: tokens and texts are transformers', in turns too."""

import numpy as np
import pytest
from PIL import Image

import drafttree
from drafttree.core.errors import InputError, ModelError
from helpers.image_folders import FOLDERS, ImageFolder, image_folder

NEW = 20
IMAGES = [
    Image.fromarray(np.random.default_rng(seed).integers(0, 255, (60 + 20 * seed, 90, 3), dtype=np.uint8))
    for seed in range(3)
]
CHAT = [
    {"role": "user", "content": [{"type": "image", "image": IMAGES[0]}, {"type": "text", "text": "what is in this?"}]},
    {"role": "assistant", "content": "the quick brown fox"},
    {
        "role": "user",
        "content": [
            {"type": "text", "text": "and describe "},
            {"type": "image", "image": IMAGES[1]},
            {"type": "text", "text": " please"},
            {"type": "image", "image": IMAGES[2]},
        ],
    },
]
OPTIONS = {"max_new_tokens": NEW, "ignore_eos": True}


@pytest.fixture(scope="module", params=sorted(FOLDERS))
def folder(request, tmp_path_factory) -> ImageFolder:
    return image_folder(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def decoder(folder) -> drafttree.Decoder:
    return drafttree.load(folder.path, "lookup", "talon:budget=12,width=3", dtype="float32")


def test_tokens_and_text_are_those_of_transformers(folder, decoder):
    request = decoder.new_request(CHAT, **OPTIONS)
    assert [*request.task.prompt] == folder.inputs(CHAT)["input_ids"][0].tolist()
    expected = folder.generate(CHAT, NEW)
    assert decoder.generate(CHAT, **OPTIONS).tokens == expected
    assert decoder.generate(CHAT, sanitize_control_tokens=True, **OPTIONS).tokens == expected


def test_a_next_turn_reads_the_images_of_the_last_one_no_more(folder, decoder):
    first = decoder.generate(CHAT, **OPTIONS)
    turn = [*CHAT, {"role": "assistant", "content": first.text}, {"role": "user", "content": "and the lazy dog?"}]
    second = decoder.generate(turn, **OPTIONS)
    assert second.metrics.reused_tokens > decoder.new_request(CHAT).task.images.end
    assert second.tokens == folder.generate(turn, NEW)


def test_a_cropped_image_is_another_one(folder, decoder):
    decoder.generate(CHAT, **OPTIONS)
    part, text = CHAT[0]["content"]
    cropped = [{"role": "user", "content": [{**part, "image": IMAGES[0].crop((0, 0, 90, 50))}, text]}, *CHAT[1:]]
    result = decoder.generate(cropped, **OPTIONS)
    assert result.metrics.reused_tokens == 0
    assert result.tokens == folder.generate(cropped, NEW)


def test_a_placeholder_that_a_user_writes_is_no_image(folder, decoder):
    placeholder = "<image>"
    part, _ = CHAT[0]["content"]
    messages = [{"role": "user", "content": [part, {"type": "text", "text": f"a {placeholder} b"}]}]
    for sanitize in (False, True):
        request = decoder.new_request(messages, sanitize_control_tokens=sanitize, **OPTIONS)
        assert len(request.task.images.spans) == 1
        assert decoder.generate(messages, sanitize_control_tokens=sanitize, **OPTIONS).text


def test_a_batch_of_texts_with_and_without_images(folder, decoder):
    plain_text = "the quick brown"
    with_images, without = decoder.generate([CHAT, plain_text], **OPTIONS)
    assert with_images.tokens == folder.generate(CHAT, NEW)
    assert without.tokens == decoder.generate(plain_text, **OPTIONS).tokens


def test_an_image_that_cannot_be_read_is_named(decoder, tmp_path):
    messages = [*CHAT, {"role": "assistant", "content": "ok"}]
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"nothing")
    messages.append({"role": "user", "content": [{"type": "image", "path": str(broken)}]})
    with pytest.raises(InputError, match=r"image 4 \(in message 5\) is no image that can be read"):
        decoder.generate(messages, **OPTIONS)


def test_a_folder_without_its_processor_says_so(folder, tmp_path):
    copy = tmp_path / "copy"
    folder.module.save_pretrained(copy)
    folder.processor.tokenizer.save_pretrained(copy)
    decoder = drafttree.load(copy, "none", dtype="float32")
    with pytest.raises(ModelError, match="processor"):
        decoder.generate(CHAT, **OPTIONS)
