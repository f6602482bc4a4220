"""Tokens are sent with their text, and not before it is known that no stop string begins in it."""

from drafttree import Chunk
from drafttree.interfaces.dynamo.released_chunks import ReleasedChunks


def chunk(tokens, text="", origins=(), finish_reason=None, **others):
    return Chunk(text, tokens, [False] * len(tokens), finish_reason, origins=list(origins), **others)


def released(*, holds):
    return ReleasedChunks(lambda token: f"<{token}>", holds=holds)


def test_without_stop_strings_all_tokens_are_sent_at_once():
    chunks = released(holds=False)
    sent = {"index": 0, "token_ids": [5, 6], "tokens": ["<5>", "<6>"], "text": "ab"}
    assert chunks.add(chunk([5, 6], "ab", [0, 1])) == sent
    assert chunks.add(chunk([7]))["text"] == ""  # half a character, which the next token completes
    assert chunks.add(chunk([8], "é", [3], "length")) == {
        "index": 0,
        "token_ids": [8],
        "tokens": ["<8>"],
        "text": "é",
        "finish_reason": "length",
    }


def test_tokens_whose_text_may_be_cut_wait_with_their_text():
    chunks = released(holds=True)
    # The third token is "c\n", whose line break may begin a stop string: the engine shows its "c" alone.
    sent = chunks.add(chunk([5, 6, 7], "abc", [0, 1, 2]))
    assert (sent["token_ids"], sent["text"]) == ([5, 6], "ab")
    assert chunks.add(chunk([8])) is None
    sent = chunks.add(chunk([9], "\nde", [2, 3, 4]))
    assert (sent["token_ids"], sent["text"]) == ([7, 8], "c\nd")
    sent = chunks.add(chunk([], "", finish_reason="length"))
    assert (sent["token_ids"], sent["text"], sent["finish_reason"]) == ([9], "e", "length")


def test_the_tokens_of_a_stop_string_are_sent_without_its_text():
    chunks = released(holds=True)
    assert chunks.add(chunk([5, 6], "ab", [0, 1]))["token_ids"] == [5]
    sent = chunks.add(chunk([7, 8], "", finish_reason="stop"))
    assert (sent["token_ids"], sent["text"], sent["finish_reason"]) == ([6, 7, 8], "b", "stop")


def test_logprobs_are_sent_with_their_tokens():
    chunks = released(holds=True)
    best = [{5: -0.1, 9: -2.0}, {6: -0.2}]
    sent = chunks.add(chunk([5, 6], "ab", [0, 1], logprobs=[-0.1, -0.2], top_logprobs=best))
    assert sent["log_probs"] == [-0.1]
    assert sent["top_logprobs"] == [
        [
            {"rank": 1, "token_id": 5, "token": "<5>", "logprob": -0.1},
            {"rank": 2, "token_id": 9, "token": "<9>", "logprob": -2.0},
        ]
    ]
    assert chunks.add(chunk([], finish_reason="length"))["log_probs"] == [-0.2]
