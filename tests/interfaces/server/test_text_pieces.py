"""What a piece of a text gives out, and what it holds back."""

import pytest

from drafttree import Chunk
from drafttree.interfaces.server.text_pieces import TextPieces


def given(*chunks: Chunk) -> list[list[int]]:
    """The tokens whose log-probabilities each piece has."""
    pieces = TextPieces()
    return [[scored.token for scored in pieces.piece(chunk).tokens] for chunk in chunks]


def chunk(text: str, tokens: list[int], origins: list[int], reason: str | None = None) -> Chunk:
    return Chunk(text, tokens, [False] * len(tokens), reason, origins=origins, logprobs=[-1.0] * len(tokens))


def test_a_token_is_given_out_with_its_last_character():
    assert given(chunk("a", [4, 5, 6], [0]), chunk("bcd", [7], [1, 2, 3])) == [[4], [5, 6, 7]]


@pytest.mark.parametrize(("reason", "last"), [("length", [5, 6, 7]), ("stop", [5])])
def test_tokens_without_text_are_given_out_at_the_limit_and_not_behind_a_stop_string(reason, last):
    """At the limit they are what the text was cut in; otherwise they are the stop string's own."""
    assert given(chunk("a", [4, 5, 6], [0]), chunk("b", [7], [1], reason)) == [[4], last]
