"""Images in `chat`, `generate` and `batch`: texts are transformers', and a model without eyes says so at once."""

import json

import pytest
from PIL import Image

import drafttree
from drafttree.errors import InputError
from drafttree.interfaces.cli.chat import Conversation
from helpers.image_folders import ImageFolder, image_folder
from testing.command_line import complaint, run

NEW = 12
OPTIONS = {"max_new_tokens": NEW, "temperature": 0.0}
QUESTION, SECOND = "what is in this picture?", "and describe the dog, please."


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> ImageFolder:
    return image_folder("llava", tmp_path_factory.mktemp("llava"))


@pytest.fixture(scope="module")
def decoder(folder) -> drafttree.Decoder:
    return drafttree.load(folder.path, "lookup", "talon:budget=12,width=3", dtype="float32")


@pytest.fixture
def pictures(tmp_path) -> list:
    """Two image files."""
    paths = [tmp_path / "first cat.png", tmp_path / "second.jpg"]
    for path, color in zip(paths, ("red", "green"), strict=True):
        Image.linear_gradient("L").convert("RGB").resize((60, 40)).rotate(len(color) * 9, fillcolor=color).save(path)
    return paths


@pytest.fixture
def conversation(decoder) -> Conversation:
    decoder.prefixes.clear()
    return Conversation(decoder, {"temperature": 0.0, "ignore_eos": True}, NEW, None)


def say(text: str, *paths) -> dict:
    """A message as transformers takes it."""
    parts = [{"type": "image", "image": Image.open(path).convert("RGB")} for path in paths]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def expected(folder, messages) -> str:
    """The answer of transformers."""
    return folder.processor.tokenizer.decode(folder.generate(messages, NEW), skip_special_tokens=True).strip()


def test_a_conversation_keeps_its_images(folder, decoder, conversation, pictures, monkeypatch):
    new_request, requests = decoder.new_request, []

    def note(*given, **options):
        requests.append(new_request(*given, **options))
        return requests[-1]

    monkeypatch.setattr(decoder, "new_request", note)
    conversation.take(f"/image '{pictures[0]}'")
    conversation.take(f"/image {pictures[1]}")
    conversation.take(QUESTION)
    first = [say(QUESTION, *pictures)]
    answer = expected(folder, first)
    assert conversation.messages[-1]["content"] == answer
    second = [*first, {"role": "assistant", "content": answer}, say(SECOND)]
    expected_answer = expected(folder, second)
    for path in pictures:
        path.unlink()
    conversation.take(SECOND)
    assert conversation.messages[-1]["content"] == expected_answer
    assert answer
    assert expected_answer
    assert requests[1].task.images.end < requests[1].metrics.reused_tokens


def test_images_are_listed_and_detached(folder, conversation, pictures, capsys):
    conversation.take("/image")
    conversation.take(f"/image '{pictures[0]}' {pictures[1]}")
    conversation.take("/image")
    conversation.take("/detach")
    conversation.take("/image")
    lines = capsys.readouterr().err.splitlines()
    attached = "with the next message: first cat.png (60 x 40), second.jpg (60 x 40)"
    assert lines == ["no image is attached; /image FILE does it", attached, attached, "no image is attached", lines[0]]
    conversation.take(f"/image {pictures[0]}")
    conversation.take("/reset")
    conversation.take(QUESTION)
    assert conversation.messages[0]["content"] == QUESTION
    conversation.take("/help")
    assert "/image FILE" in capsys.readouterr().err


def test_a_file_that_is_no_image_leaves_the_conversation_as_it_was(conversation, pictures, tmp_path):
    (tmp_path / "notes.txt").write_text("no image")
    conversation.take(f"/image {pictures[1]}")
    for name, reason in (("notes.txt", "is no image that can be read"), ("gone.png", "No such file or directory")):
        with pytest.raises(InputError, match=reason):
            conversation.take(f"/image {pictures[1]} {tmp_path / name}")
    conversation.take(QUESTION)
    assert [part["type"] for part in conversation.messages[0]["content"]] == ["image", "text"]


def test_a_saved_conversation_has_its_images(folder, decoder, conversation, pictures, tmp_path):
    conversation.take(f"/image {pictures[0]}")
    conversation.take(QUESTION)
    conversation.take(f"/save {tmp_path / 'talk.json'}")
    pictures[0].unlink()
    question, answer = json.loads((tmp_path / "talk.json").read_text())
    assert decoder.generate([question], ignore_eos=True, **OPTIONS).text.strip() == answer["content"]


def test_an_image_beyond_the_context_leaves_no_room(conversation, decoder, pictures, monkeypatch):
    monkeypatch.setattr(decoder.target, "context", 20)
    conversation.take(f"/image {pictures[0]}")
    with pytest.raises(drafttree.errors.ContextError, match="leave no room in the model's context of 20; begin a new"):
        conversation.take("the quick brown fox jumps over the lazy dog " * 4)
    monkeypatch.undo()
    conversation.take(QUESTION)
    assert [part["type"] for part in conversation.messages[0]["content"]] == ["image", "text"]


def test_generate_reads_images(folder, pictures):
    options = ["--target", folder.path, "--drafter", "lookup", "--dtype", "float32", "--max-new-tokens", NEW]
    images = ["--image", pictures[0], "--image", pictures[1], "--ignore-eos"]
    for chat in ([], ["--chat"]):
        result = run("generate", QUESTION, *options, *images, *chat)
        assert result.exit_code == 0, result.output
        assert result.stdout.strip() == expected(folder, [say(QUESTION, *pictures)])


def test_batch_reads_images(folder, pictures, tmp_path):
    content = [{"type": "image", "path": str(pictures[0])}, {"type": "text", "text": QUESTION}]
    gone = [{"type": "image", "path": str(tmp_path / "gone.png")}]
    lines = [{"messages": [{"role": "user", "content": each}]} for each in (content, gone, QUESTION)]
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_text("\n".join(map(json.dumps, lines)))
    options = ["--target", folder.path, "--drafter", "lookup", "--dtype", "float32", "--max-new-tokens", NEW]
    assert run("batch", source, out, *options, "--ignore-eos").exit_code == 1
    first, second, third = map(json.loads, out.read_text().splitlines())
    assert first["text"].strip() == expected(folder, [say(QUESTION, pictures[0])])
    assert "image 1 (in message 1) cannot be read: No such file" in second["error"]["message"]
    assert third["text"]


@pytest.mark.usefixtures("quick")
def test_a_model_without_eyes_says_so_before_the_question(embedded, pictures, capsys):
    told = "embedded reads no images; name a model that does with --target"
    result = run("chat", input=f"/image {pictures[0]}\nHello\n")
    assert told in str(result.exception)
    assert result.stdout == ""
    with pytest.raises(InputError, match=told):
        Conversation(embedded, {}, 4, None).take("/image gone.png")
    assert told in complaint(capsys, "generate", QUESTION, "--image", pictures[0])


def test_mistakes_are_told_before_a_model_is_loaded(capsys, pictures, tmp_path):
    common = "generate", QUESTION, "--target", tmp_path / "nowhere"
    assert "gone.png cannot be read: No such file" in complaint(capsys, *common, "--image", tmp_path / "gone.png")
    told = complaint(capsys, *common, "--image", pictures[0], "--compare")
    assert "--compare and --image cannot be combined; leave one of them out" in told
