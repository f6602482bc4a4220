"""The page in a browser: what it writes, draws and says, by mouse and by keyboard, wide and narrow."""

import re
from collections.abc import Iterator

import pytest

from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from drafttree.verifiers import LossyTypical
from helpers.playground import PROMPT, STREAM, playground_decoder
from testing.browser import CHROMIUM
from testing.live_server import serving

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium")

TOKENS = 24
WAIT = 30_000


@pytest.fixture(scope="module")
def app():
    return create_app(playground_decoder(), ServerSettings("embedded"))


@pytest.fixture(scope="module")
def address(app) -> Iterator[str]:
    with serving(app) as address:
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


@pytest.fixture(scope="module")
def expected() -> str:
    return playground_decoder().generate(PROMPT, max_new_tokens=TOKENS).text


def open_page(browser, address: str, width: int = 1280, scheme: str = "light"):
    page = browser.new_page(viewport={"width": width, "height": 900}, color_scheme=scheme)
    page.set_default_timeout(WAIT)
    page.goto(address)
    page.evaluate("at('options').open = true")
    page.fill("#prompt", PROMPT)
    page.fill("#max_tokens", str(TOKENS))
    return page


def write(page, button: str = "#write") -> None:
    """Press a button and wait for the text."""
    page.click(button)
    wait_for_end(page)


def wait_for_end(page) -> None:
    playwright.expect(page.locator("#status")).to_contain_text(re.compile(r"\d+ tokens? in"), timeout=WAIT)


def test_the_text_is_the_engines(page, expected):
    write(page)
    assert page.locator("#answer").text_content() == expected
    assert page.locator("#answer .accepted").count() > 0
    assert page.locator("#answer .bonus").count() > 0


def test_the_tree_of_the_chosen_round_is_drawn(page):
    write(page)
    sizes = page.evaluate("state.text.rounds.map((round) => round.n.length)")
    largest = sizes.index(max(sizes))
    page.locator("#slider").fill(str(largest + 1))
    twins = page.evaluate("state.nodes.at(-1).draft !== null")
    assert page.locator("#tree g.item").count() == sizes[largest] + (not twins)
    assert page.locator("#tree g.bonus").count() == 1
    assert page.locator("#tree .growing").count() == 0
    assert f"of round {largest + 1} of {len(sizes)}" in page.locator("#number").inner_text()


def test_a_tree_grows_is_cut_and_is_judged_while_it_is_played(page):
    page.check("#as-served")  # trees are cut to the budget of the server's engine alone
    write(page)
    page.evaluate("""() => {
        window.moments = new Set();
        const note = () => moments.add(at("tree").getAttribute("class"));
        new MutationObserver(note).observe(at("tree"), { attributes: true });
    }""")
    cut = page.evaluate("state.text.rounds.findIndex((round, index) => index && round.n.length > round.s)")
    assert cut > 0
    page.locator("#slider").fill(str(cut))
    page.click("#play")
    playwright.expect(page.locator("#number")).to_contain_text(f"of round {cut + 2} ", timeout=WAIT)
    page.click("#play")
    assert {"growing", "growing cutting", ""} <= set(page.evaluate("[...moments]"))


def test_a_small_tree_leaves_no_empty_box(page):
    page.uncheck("#speculate")
    write(page)
    assert page.locator("#box").bounding_box()["height"] < 200


def test_a_play_that_was_paused_goes_on(page):
    write(page)
    page.locator("#slider").fill("1")
    for _ in range(3):
        page.click("#play")
    playwright.expect(page.locator("#number")).to_contain_text("of round 4", timeout=WAIT)
    assert page.locator("#play").get_attribute("aria-pressed") == "true"


def test_the_figures_are_those_of_the_engine(page):
    write(page)
    figures = page.evaluate("state.text.end.figures")
    names, values = (page.locator(f"#figures {each}").all_inner_texts() for each in ("dt", "dd"))
    shown = dict(zip(names, values, strict=True))
    assert shown["τ, tokens per round"] == f"{figures['mean_accepted_tokens']:.2f}"
    assert shown["δ, draft passes per round"] == f"{figures['draft_efficiency']:.2f}"
    speed = figures["decoding_tokens_per_second"]
    assert shown["tokens per second"] == (f"{speed:.1f}" if speed < 1000 else f"{speed:.0f}")
    assert shown[f"rounds for {TOKENS} tokens"] == str(figures["rounds"])


def test_without_speculation_the_same_text_takes_a_round_for_every_token(page, expected):
    page.click("text=Speculation >> nth=0")
    write(page)
    assert page.locator("#answer").text_content() == expected
    assert page.locator("#answer .accepted").count() == 0
    assert f"{TOKENS} tokens in {TOKENS} rounds" in page.locator("#status").inner_text()


def test_both_ways_of_writing_are_compared(page):
    page.fill("#temperature", "0.8")
    page.fill("#seed", "")
    page.click("#compare")
    playwright.expect(page.locator("#verdict")).to_contain_text("the same text", timeout=WAIT)
    assert page.locator("#speeds .bar").count() == 2


def test_a_text_is_shown_at_the_round_with_the_longest_accepted_path(page):
    write(page)
    lengths = page.evaluate("state.text.rounds.map((round) => round.p.length)")
    assert max(lengths) > 2
    assert page.evaluate("state.round") == lengths.index(max(lengths))
    assert page.locator("#tree g.accepted").count() == max(lengths) - 1
    assert "the most of any round" in page.locator("#summary").inner_text()


def test_a_comparison_ends_at_the_drafted_text_with_the_figures_of_both(page, expected):
    page.click("#compare")
    playwright.expect(page.locator("#verdict")).to_contain_text("One run of each", timeout=WAIT)
    assert page.evaluate("state.text.asked.speculate")
    assert page.locator("#answer").text_content() == expected
    tiles = page.locator("#figures > div")
    found = {tile.locator("dt").inner_text(): tile.locator("dd").all_text_contents() for tile in tiles.all()}
    rounds = page.evaluate("state.runs.drafted.rounds.length")
    assert rounds < TOKENS
    assert found[f"rounds for {TOKENS} tokens"] == [f"drafted{rounds}", f"plain{TOKENS}"]
    assert found["τ, tokens per round"] == [f"drafted{TOKENS / rounds:.2f}", "plain1.00"]
    drafted, plain = found["times plain decoding"]
    times = page.evaluate("speedOf(state.runs.drafted) / speedOf(state.runs.plain)")
    assert (drafted, plain) == (f"drafted{times:.2f}", "plain1.00")


@pytest.mark.parametrize(
    ("speed", "words"), [(200, "2.00 times as fast."), (101, "no faster (1.01 times)."), (50, "but slower: 0.50 times")]
)
def test_a_comparison_says_what_was_gained_or_lost(page, speed, words):
    text = {"whole": "a", "drafted": 3, "rounds": [{}], "asked": {"as_served": False}}
    runs = {
        kind: text | {"end": {"figures": {"decoding_tokens_per_second": each}}}
        for kind, each in (("drafted", speed), ("plain", 100))
    }
    said = page.evaluate("(runs) => fill(document.createElement('p'), ...verdict(runs)).textContent", runs)
    assert words in said
    assert ("as the server would" in said) is (speed < 100)


def test_where_nothing_was_drafted_no_gain_is_claimed(page):
    text = {"whole": "a", "drafted": 0, "rounds": [{"reason": "it was slower"}], "asked": {"as_served": True}}
    runs = {
        kind: text | {"end": {"figures": {"decoding_tokens_per_second": each}}}
        for kind, each in (("drafted", 172), ("plain", 100))
    }
    said = page.evaluate("(runs) => fill(document.createElement('p'), ...verdict(runs)).textContent", runs)
    assert "Nothing was drafted (it was slower)" in said
    assert "neither is faster" in said


def test_the_switch_asks_for_drafts_where_they_pay(page):
    for served in (False, True):
        page.set_checked("#as-served", served)
        with page.expect_request(lambda request: request.url.endswith(STREAM)) as asked:
            write(page)
        assert asked.value.post_data_json["as_served"] is served
    page.uncheck("#speculate")
    assert page.locator("#as-served").is_disabled()


def test_the_rounds_at_a_glance_choose_a_round(page):
    write(page)
    rounds, box = page.evaluate("state.text.rounds.length"), page.locator("#strip").bounding_box()
    assert page.locator("#strip .a").count() == rounds
    left, right = 40, 114
    width = (box["width"] - left - right) / rounds
    page.mouse.click(box["x"] + left + 2.5 * width, box["y"] + box["height"] / 2)
    assert page.locator("#number").inner_text() == f"of round 3 of {rounds}"


def test_a_comparison_of_texts_that_are_not_lossless_says_so(browser):
    decoder = playground_decoder().with_verifier(LossyTypical)
    with serving(create_app(decoder, ServerSettings("embedded"))) as address:
        page = open_page(browser, address)
        page.fill("#temperature", "0.8")
        page.click("#compare")
        told = "Texts are NOT lossless: the verifier lossy-typical does not follow the target's distribution."
        playwright.expect(page.locator("#verdict")).to_contain_text(told, timeout=WAIT)
        assert page.locator("#lossy-note").inner_text() == told
        page.close()


def test_a_text_can_be_stopped_and_another_one_written(app, page, expected):
    page.fill("#max_tokens", "1900")
    page.click("#write")
    playwright.expect(page.locator("#answer .round").first).to_be_attached(timeout=WAIT)
    page.click("#cancel")
    playwright.expect(page.locator("#status")).to_contain_text("stopped", timeout=WAIT)
    assert page.locator("#problem").is_hidden()
    page.fill("#max_tokens", str(TOKENS))
    page.click("#write")
    playwright.expect(page.locator("#status")).to_contain_text(f"{TOKENS} tokens in", timeout=WAIT)
    assert page.locator("#answer").text_content() == expected
    assert app.state.serving.drafting.metrics.cancelled > 0


def test_the_keyboard_writes_stops_and_moves_about(page):
    page.fill("#max_tokens", "1900")
    page.focus("#prompt")
    page.keyboard.press("Control+Enter")
    playwright.expect(page.locator("#answer .round").nth(4)).to_be_attached(timeout=WAIT)
    page.keyboard.press("Escape")
    playwright.expect(page.locator("#status")).to_contain_text("stopped", timeout=WAIT)
    page.focus("#box")
    page.keyboard.press("Home")
    page.keyboard.press("ArrowRight")
    assert page.locator("#number").inner_text().startswith("of round 2 of")
    before = page.evaluate("state.chosen")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("state.chosen") != before
    page.focus("#text")
    page.keyboard.press("End")
    assert page.locator("#next").is_disabled()


def test_a_conversation_goes_on_from_its_answers(page):
    page.click("text=Chat")
    page.fill("#prompt", "Who are you?")
    write(page)
    first = page.locator("#answer").text_content().strip()
    page.fill("#prompt", "And who am I?")
    with page.expect_request(lambda request: request.url.endswith(STREAM)) as asked:
        write(page)
    messages = asked.value.post_data_json["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert [message["content"] for message in messages] == ["Who are you?", first, "And who am I?"]
    assert page.locator(".turn").count() == 4
    page.click("#anew")
    assert page.evaluate("state.messages.length") == 0


def test_what_the_server_refuses_is_said(page):
    page.evaluate("at('max_tokens').removeAttribute('max')")
    page.fill("#max_tokens", "5000")
    page.click("#write")
    playwright.expect(page.locator("#problem")).to_contain_text("context", timeout=WAIT)
    page.fill("#max_tokens", "1")
    write(page)
    assert page.locator("#problem").is_hidden()


def test_a_server_that_is_gone_is_told_from_one_that_breaks_off(page):
    page.route("**" + STREAM, lambda route: route.abort())
    page.click("#write")
    playwright.expect(page.locator("#problem")).to_contain_text("does not answer", timeout=WAIT)
    page.unroute("**" + STREAM)
    page.route("**" + STREAM, lambda route: route.fulfill(status=200, content_type="text/event-stream", body=""))
    page.click("#write")
    playwright.expect(page.locator("#problem")).to_contain_text("connection was lost", timeout=WAIT)


def test_markup_in_a_prompt_is_text(page):
    page.fill("#prompt", "<img src=x onerror=alert(1)> <b>")
    write(page)
    assert page.locator("#text .prompt").text_content() == "<img src=x onerror=alert(1)> <b>"
    assert page.locator("#text img").count() == 0


def test_a_visit_leaves_the_server_alone_and_the_console_empty(browser, address):
    page = browser.new_page()
    said, asked = [], []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("request", lambda request: asked.append(request.url))
    page.goto(address)
    page.fill("#max_tokens", "8")
    write(page, "#compare")
    page.click("#play")
    page.click("text=All nodes of this round")
    playwright.expect(page.locator("#nodes tbody tr").nth(1)).to_be_visible(timeout=WAIT)
    page.close()
    assert said == []
    assert {url.removeprefix(address) for url in asked if not url.startswith("data:")} == {"/", STREAM}


@pytest.fixture(scope="module")
def guarded() -> Iterator[str]:
    """A server that wants a key."""
    with serving(create_app(playground_decoder(), ServerSettings("embedded", api_keys=("open sesame",)))) as address:
        yield address


def test_a_key_opens_a_server_that_wants_one(browser, guarded, expected):
    page = open_page(browser, guarded)
    page.fill("#key", "open sesame")
    write(page)
    assert page.locator("#answer").text_content() == expected
    page.close()


def test_a_wrong_key_is_told_and_can_be_mended(browser, guarded):
    page = open_page(browser, guarded)
    page.fill("#key", "sesame")
    page.click("#write")
    playwright.expect(page.locator("#problem")).to_contain_text("the API key is wrong", timeout=WAIT)
    playwright.expect(page.locator("#key")).to_be_focused()
    page.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 420])
def test_nothing_is_wider_than_the_window(browser, address, width, scheme):
    page = open_page(browser, address, width, scheme)
    page.fill("#prompt", "a" * 300)
    write(page)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(13, 16, 20)"
    assert dark is (scheme == "dark")
    page.close()


def test_everything_that_is_moved_has_a_name(page):
    names = page.evaluate("""() => [...document.querySelectorAll("input, textarea, button, [tabindex]")].map((each) =>
        each.getAttribute("aria-label") ?? each.labels?.[0]?.textContent ?? each.textContent)""")
    assert len(names) > 20
    assert all(name.strip() for name in names)
