"""A stop string that is a special token: each API ends there, and Anthropic's names it."""

import httpx
import pytest

from drafttree.interfaces.server.app import create_app
from drafttree.interfaces.server.serving import ServerSettings
from testing.live_server import named_events, serving

END = "<|endoftext|>"
ASKED = {"model": "embedded", "temperature": 0, "max_tokens": 12}
CHAT = {**ASKED, "messages": [{"role": "user", "content": "Hello"}]}


@pytest.fixture(scope="module")
def post(decoder):
    """Posts to a server whose texts have the special token at their sixth place."""
    ends = decoder.with_defaults(min_new_tokens=5, sequence_bias=[[[0], 1000.0]])
    with serving(create_app(ends, ServerSettings("embedded"))) as address, httpx.Client(base_url=address) as client:
        yield lambda path, **body: client.post(f"/v1/{path}", json=body)


def test_a_message_ends_at_a_special_token_and_names_it(post):
    reply = post("messages", **CHAT, stop_sequences=["never", END]).json()
    told = {"stop_reason": "stop_sequence", "stop_sequence": END}
    assert {name: reply[name] for name in told} == told
    assert reply["usage"]["output_tokens"] == 6
    assert named_events(post("messages", **CHAT, stop_sequences=[END], stream=True).text)[-2]["delta"] == told


@pytest.mark.parametrize(("path", "body"), [("completions", {**ASKED, "prompt": "Hello"}), ("chat/completions", CHAT)])
def test_texts_end_at_a_special_token_where_eos_is_ignored(post, path, body):
    reply = post(path, **body, min_tokens=0, ignore_eos=True, stop=[END]).json()
    assert reply["choices"][0]["finish_reason"] == "stop"
    assert reply["usage"]["completion_tokens"] == 1


def test_a_special_token_among_other_text_is_refused(post):
    reply = post("chat/completions", **CHAT, stop=f"{END}\nUser")
    assert reply.status_code == 400
    assert reply.json()["error"]["message"] == (
        "the stop string '<|endoftext|>\\nUser' has the special token '<|endoftext|>' in it, which no text has; "
        "give '<|endoftext|>' alone, or the text beside it"
    )
