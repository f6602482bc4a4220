"""Images on the page, in a browser: chosen, dropped and pasted, shown, sent, and answered as transformers does."""

import base64
import io
from collections.abc import Iterator

import numpy as np
import pytest
from PIL import Image

import drafttree
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from helpers.image_bytes import encoded
from helpers.image_folders import ImageFolder, image_folder
from helpers.playground import STREAM, playground_decoder
from testing.browser import CHROMIUM
from testing.live_server import serving

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")

WAIT = 30_000
NEW = 12
QUESTION, SECOND = "what is in this picture?", "and describe the dog, please."
PICTURE = Image.radial_gradient("L").resize((70, 50)).convert("RGB")
OTHER = PICTURE.transpose(Image.Transpose.ROTATE_180).crop((0, 0, 60, 50))
GIVE = """([kind, target, files]) => {
    const transfer = new DataTransfer();
    for (const { name, type, content } of files) {
        const bytes = Uint8Array.from(atob(content), (character) => character.charCodeAt(0));
        transfer.items.add(new File([bytes], name, { type }));
    }
    const options = { bubbles: true, cancelable: true };
    const event = kind === "paste"
        ? new ClipboardEvent(kind, { ...options, clipboardData: transfer })
        : new DragEvent(kind, { ...options, dataTransfer: transfer });
    document.querySelector(target).dispatchEvent(event);
    return event.defaultPrevented;
}"""
"""Dispatches the event with which a browser hands files to a page."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> ImageFolder:
    return image_folder("idefics3", tmp_path_factory.mktemp("eyes"))


@pytest.fixture(scope="module")
def address(folder) -> Iterator[str]:
    decoder = drafttree.load(folder.path, "lookup", "talon:budget=12,width=3", dtype="float32")
    with serving(create_app(decoder, ServerSettings("eyes"))) as address:
        yield address


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        yield started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])


@pytest.fixture
def page(browser, address):
    opened = open_page(browser, address)
    yield opened
    opened.close()


def open_page(browser, address: str, width: int = 1280, scheme: str = "light"):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(WAIT)
    page.goto(address)
    page.evaluate("at('options').open = true")
    page.fill("#prompt", QUESTION)
    page.fill("#max_tokens", str(NEW))
    return page


def png(image: Image.Image = PICTURE, name: str = "cat.png") -> dict:
    return {"name": name, "mimeType": "image/png", "buffer": encoded(image)}


def choose(page, *files: dict) -> None:
    """Choose files, and wait until they are shown."""
    shown = page.locator("#images li").count()
    page.set_input_files("#files", [*files])
    playwright.expect(page.locator("#images li")).to_have_count(shown + len(files))


def give(page, kind: str, *files: dict, target: str = "#prompt") -> bool:
    """Drop or paste files; whether the page took the event."""
    plain = [
        {"name": each["name"], "type": each["mimeType"], "content": base64.b64encode(each["buffer"]).decode()}
        for each in files
    ]
    return page.evaluate(GIVE, [kind, target, plain])


def ask(page) -> dict:
    """Press Generate and wait for the answer; the body that was sent."""
    with page.expect_request(lambda request: request.url.endswith(STREAM)) as asked:
        page.click("#write")
    playwright.expect(page.locator("#status")).to_contain_text("tokens in", timeout=WAIT)
    return asked.value.post_data_json


def file_of(image: Image.Image) -> str:
    return base64.b64encode(encoded(image)).decode()


def sent_image(part: dict) -> Image.Image:
    assert part["type"] == "image_url"
    _, _, content = part["image_url"]["url"].partition(";base64,")
    return Image.open(io.BytesIO(base64.b64decode(content)))


def expected(folder: ImageFolder, messages: list[dict]) -> str:
    """The answer of transformers."""
    tokens = folder.generate(messages, NEW)
    return folder.processor.tokenizer.decode(tokens, skip_special_tokens=True)


def say(text: str, *images: Image.Image) -> dict:
    """A message as transformers takes it."""
    parts = [{"type": "image", "image": image} for image in images]
    return {"role": "user", "content": [*parts, {"type": "text", "text": text}]}


def test_a_chosen_image_is_sent_and_stays_in_the_conversation(page, folder):
    choose(page, png(), png(OTHER, "dog.png"))
    assert page.evaluate("chats()")
    body = ask(page)
    content = body["messages"][0]["content"]
    assert [part["type"] for part in content] == ["image_url", "image_url", "text"]
    assert content[0]["image_url"]["url"] == f"data:image/png;base64,{file_of(PICTURE)}"
    answer = expected(folder, [say(QUESTION, PICTURE, OTHER)])
    assert answer.strip()
    assert page.locator("#answer").text_content() == answer
    assert page.locator("#images li").count() == 0
    page.fill("#prompt", SECOND)
    body = ask(page)
    assert [type(message["content"]) for message in body["messages"]] == [list, str, str]
    turns = [say(QUESTION, PICTURE, OTHER), {"role": "assistant", "content": answer.strip()}, say(SECOND)]
    assert page.locator("#answer").text_content() == expected(folder, turns)
    shown = page.locator(".turn.user >> nth=0 >> img")
    assert [image.get_attribute("alt") for image in shown.all()] == [f"Image {n} of this message" for n in (1, 2)]
    assert shown.first.evaluate("(image) => image.complete && image.naturalWidth") == PICTURE.width
    assert page.locator(".turn.user >> nth=0").inner_text().endswith(QUESTION)


@pytest.mark.parametrize("kind", ["drop", "paste"])
def test_an_image_can_be_dropped_and_pasted(page, kind):
    assert give(page, kind, png(), target="#prompt")
    playwright.expect(page.locator("#images img")).to_have_attribute("alt", "cat.png")
    assert page.evaluate("chats()")
    assert page.locator("#problem").is_hidden()


def test_what_is_dragged_over_the_page_is_seen_to_be_taken(page):
    assert give(page, "dragover", png())
    assert page.locator("#form.dropping").count() == 1
    give(page, "drop", png(), target="#text")
    assert page.locator("#form.dropping").count() == 0
    playwright.expect(page.locator("#images li")).to_have_count(1)


def test_text_is_pasted_and_dropped_as_text(page):
    for kind in ("paste", "drop"):
        assert not give(page, kind)
    taken = page.evaluate("""() => {
        const clipboardData = new DataTransfer();
        clipboardData.items.add("a word", "text/plain");
        clipboardData.items.add(new File(["x"], "word.png", { type: "image/png" }));
        const event = new ClipboardEvent("paste", { bubbles: true, cancelable: true, clipboardData });
        at("prompt").dispatchEvent(event);
        return event.defaultPrevented;
    }""")
    assert not taken
    assert page.locator("#images li").count() == 0


COUNT_CHOICES = """() => {
    window.choices = 0;
    document.querySelector("input[type=file]").addEventListener("click", event => {
        window.choices += 1;
        event.preventDefault();  // without a screen, a browser does not always open its dialog
    });
}"""


def test_the_keyboard_adds_and_removes_images(page):
    page.focus("#prompt")
    page.keyboard.press("Tab")
    playwright.expect(page.locator("#add")).to_be_focused()
    page.evaluate(COUNT_CHOICES)
    page.keyboard.press("Enter")
    assert page.evaluate("window.choices") == 1
    choose(page, png(), png(OTHER, "dog.png"))
    playwright.expect(page.locator("#images li")).to_have_count(2)
    page.keyboard.press("Shift+Tab")
    page.keyboard.press("Shift+Tab")
    playwright.expect(page.get_by_role("button", name="Remove cat.png")).to_be_focused()
    page.keyboard.press("Enter")
    playwright.expect(page.get_by_role("button", name="Remove dog.png")).to_be_focused()
    page.keyboard.press("Enter")
    playwright.expect(page.locator("#add")).to_be_focused()
    assert ask(page)["messages"][0]["content"] == QUESTION


def test_a_large_image_is_made_smaller_before_it_is_sent(page):
    picture = Image.linear_gradient("L").resize((3000, 1500)).convert("RGB")
    photo = {"name": "photo.jpg", "mimeType": "image/jpeg", "buffer": encoded(picture, "JPEG")}
    choose(page, png(picture), photo)
    png_image, jpeg_image = map(sent_image, ask(page)["messages"][0]["content"][:2])
    assert (png_image.format, jpeg_image.format) == ("PNG", "JPEG")
    assert png_image.size == jpeg_image.size == (2048, 1024)
    difference = np.asarray(png_image.convert("L"), int) - np.asarray(picture.resize((2048, 1024)).convert("L"), int)
    assert abs(difference).mean() < 2


def test_other_formats_become_a_picture_that_every_model_reads(page):
    frames = [PICTURE, OTHER.resize(PICTURE.size)]
    animation = encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])
    choose(page, {"name": "move.gif", "mimeType": "image/gif", "buffer": animation})
    image = sent_image(ask(page)["messages"][0]["content"][0])
    assert (image.format, image.size) == ("PNG", PICTURE.size)


def test_a_file_that_is_no_image_is_told_by_name(page):
    assert give(page, "drop", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no image"}, png())
    playwright.expect(page.locator("#images li")).to_have_count(1)
    assert page.locator("#problem").inner_text() == "notes.txt is no image that this browser can read."


def test_images_of_a_chat_are_not_in_a_text(page):
    choose(page, png())
    page.click("text=Continue text")
    assert page.locator("#images").is_hidden()
    assert "messages" not in ask(page)
    page.click("text=Chat")
    assert page.locator("#images li").count() == 1


def test_an_image_of_a_message_that_failed_is_kept(page):
    choose(page, png())
    page.evaluate("at('max_tokens').removeAttribute('max')")
    page.fill("#max_tokens", "5000")
    page.click("#write")
    playwright.expect(page.locator("#problem")).to_contain_text("context", timeout=WAIT)
    assert page.locator("#images li").count() == 1


def test_both_ways_of_answering_read_the_image(page):
    choose(page, png())
    page.click("#compare")
    playwright.expect(page.locator("#verdict")).to_contain_text("the same text", timeout=WAIT)
    assert page.locator(".turn.user img").count() == 1


def test_a_model_without_eyes_says_so_when_an_image_is_given(browser):
    with serving(create_app(playground_decoder(), ServerSettings("embedded"))) as address:
        page = open_page(browser, address)
        assert page.locator("#add").count() == 0
        for kind in ("drop", "paste"):
            page.evaluate("complain('')")
            assert give(page, kind, png())
            assert page.locator("#problem").inner_text() == "embedded reads no images. Ask with text alone."
        page.close()


def test_the_end_of_a_conversation_is_in_view_when_its_images_have_been_drawn(page):
    page.set_viewport_size({"width": 1280, "height": 400})
    image = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{file_of(PICTURE.resize((300, 300)))}"}}
    messages = [{"role": "user", "content": [image]}, {"role": "user", "content": "line\n" * 9}]
    page.evaluate("at('text').style.overflowAnchor = 'none'")  # Safari does not keep the place by itself
    page.evaluate("(messages) => begin(newText({ messages, speculate: true }))", messages)
    page.evaluate("document.querySelector('#text img').decode()")
    page.evaluate("new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    hidden = page.evaluate("at('text').scrollHeight - at('text').scrollTop - at('text').clientHeight")
    assert hidden < 2
    assert page.locator("#text img").evaluate("(image) => image.height") > 100


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 360])
def test_images_fit_into_the_window(browser, address, width, scheme):
    page = open_page(browser, address, width, scheme)
    choose(page, *(png(Image.new("RGB", (900, 30)), f"{'a' * 60}{number}.png") for number in range(6)))
    assert page.evaluate("document.documentElement.scrollWidth") == width
    remove = page.get_by_role("button", name="Remove").first.bounding_box()
    assert min(remove["width"], remove["height"]) >= 24
    ask(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    page.close()


def test_nothing_else_is_asked_for_and_the_console_stays_empty(browser, address):
    page = browser.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.fill("#max_tokens", "4")
    choose(page, png())
    ask(page)
    names = page.evaluate("""() => [...document.querySelectorAll("input, textarea, button, [tabindex]")].map((each) =>
        each.getAttribute("aria-label") ?? each.labels?.[0]?.textContent ?? each.textContent)""")
    page.close()
    assert said == []
    assert {url.removeprefix(address) for url in asked if not url.startswith("data:")} == {"/", STREAM}
    assert all(name.strip() for name in names)
