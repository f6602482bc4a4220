"""The page as a file: it needs nothing but this server, and says what the server is."""

import re

import pytest
from fastapi.testclient import TestClient

import drafttree
from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.playground.page import facts_of, make_page
from drafttree.interfaces.server.serving import ServerSettings
from drafttree.verifiers import VERIFIERS
from helpers.image_folders import image_folder
from helpers.playground import playground_decoder

FACTS = {
    "model": "tiny",
    "drafter": "lookup",
    "policy": "chain",
    "served_policy": "auto",
    "verifier": "auto",
    "precision": "float32",
    "lossless": True,
    "fidelity": "lossless",
    "same_law": True,
    "context": 2048,
    "chats": True,
    "no_images": None,
    "repeats": True,
    "ties": False,
    "wants_key": False,
}


def changed(**facts) -> str:
    return make_page(**FACTS | facts)[0]


def test_nothing_comes_from_elsewhere():
    html, _ = make_page(**FACTS)
    assert set(re.findall(r"https?://[^\"'\s)]+", html)) == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"@import|url\(|<script src|<link rel=.stylesheet", html)
    assert re.findall(r'href="([^:]+):', html) == ["data"]


def test_a_browser_may_run_the_pages_own_parts_and_reach_this_server_alone():
    _, policy = make_page(**FACTS)
    assert policy.startswith("default-src 'none'; style-src 'sha256-")
    assert "connect-src 'self'" in policy
    assert "unsafe" not in policy


def test_names_are_text_whatever_they_are():
    html = changed(model="</script><script>alert(1)</script>")
    assert html.count("<script>") == 1
    assert "&lt;/script&gt;&lt;script&gt;alert(1)" in html


@pytest.mark.parametrize("wanted", [True, False])
def test_a_key_is_asked_for_where_the_server_wants_one(wanted):
    assert ('id="key"' in changed(wants_key=wanted)) is wanted


def test_without_a_drafter_there_is_nothing_to_switch():
    html = changed(drafter="none")
    assert "The server has no drafter" in html
    assert 'id="as-served"' not in html
    assert re.search(r'id="speculate"[^>]*disabled', html)


def test_the_head_line_has_names_and_no_reprs():
    head = served().partition('<dl class="setting">')[2].partition("</dl>")[0]
    assert "<dd>embedded-draft</dd>" in head
    assert '<dd id="policy">dynatree</dd>' in head
    assert "(" not in head


def test_a_verifier_whose_draws_depend_on_drafts_promises_no_same_text():
    assert "The text stays the same" in changed(repeats=True)
    assert "may be another one" in changed(repeats=False)


def served(verifier: str | None = None, **options) -> str:
    """The page of the embedded model, with a verifier."""
    decoder = playground_decoder(**options).with_verifier(VERIFIERS[verifier] if verifier else None)
    return " ".join(make_page(**facts(decoder))[0].split())


def facts(decoder, *, wants_key: bool = False, reads_images: bool = False) -> dict:
    return facts_of(decoder, "embedded", wants_key=wants_key, reads_images=reads_images)


def test_the_page_says_what_a_lossless_verifier_keeps():
    text, law = "The text stays the same.", "so a drawn text may be another one, of the same law."
    for verifier in (None, "coupled", "traversal"):
        page = served(verifier)
        assert "<dt>texts</dt><dd>lossless</dd>" in page
        assert "NOT lossless" not in page
        assert (text in page, law in page) == (verifier != "traversal", verifier == "traversal")


def test_the_page_says_that_a_lossy_verifier_keeps_no_law():
    page = served("lossy-typical")
    reason = "NOT lossless: the verifier lossy-typical does not follow the target&#39;s distribution"
    assert "of the same law" not in page
    assert "The text stays the same" not in page
    assert "This verifier is lossy, so a drawn text may be another one, of another law." in page
    assert f"<dt>texts</dt><dd>{reason}</dd>" in page
    assert f"Texts are {reason}." in page


def test_the_page_says_that_a_window_is_lossy_and_keeps_the_text():
    page = served(lossy_window=64)
    assert "NOT lossless: lossy_window lets the target attend to the last 64 tokens and the first 4 only." in page
    assert "The text stays the same." in page


def test_reduced_precision_promises_no_same_text_where_rounding_decides():
    assert "The text stays the same.\n" in changed(ties=False)
    html = " ".join(changed(ties=True, precision="bfloat16").split())
    assert "The text stays the same, except where rounding to bfloat16 decides between two tokens." in html


def test_the_facts_are_those_of_the_decoder():
    decoder = playground_decoder()
    known = {"model": "embedded", "verifier": "auto", "context": 2048}
    known |= dict.fromkeys(("wants_key", "chats", "repeats"), True)
    assert facts(decoder, wants_key=True).items() >= known.items()
    assert not facts(decoder.with_verifier(VERIFIERS["traversal"]))["repeats"]
    assert facts(decoder.plain())["drafter"] == "none"


def test_images_are_asked_for_where_they_are_read_and_else_it_is_told_why_not(tmp_path, monkeypatch):
    assert 'id="add"' in changed(no_images=None)
    assert 'id="add"' not in changed(no_images="It reads none.")
    assert facts(playground_decoder())["no_images"] == "embedded reads no images."
    decoder = drafttree.load(image_folder("llava", tmp_path).path, "none")
    assert facts(decoder, reads_images=True)["no_images"] is None
    assert "processor" in facts(decoder)["no_images"]
    monkeypatch.setattr(decoder.tokenizer, "chat_template", None)
    assert "no chat template" in facts(decoder, reads_images=True)["no_images"]


def test_the_server_gives_the_page_with_its_policy_and_no_key():
    app = create_app(playground_decoder(), ServerSettings("embedded", api_keys=("secret",)))
    with TestClient(app) as client:
        reply = client.get("/")
    assert reply.headers["content-type"] == "text/html; charset=utf-8"
    assert "script-src 'sha256-" in reply.headers["content-security-policy"]
    assert 'id="key"' in reply.text
    assert "secret" not in reply.text
