"""Text token by token: what it shows equals what decoding everything at once would."""

from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken

from drafttree.text.detokenizer import Detokenizer
from testing.tokenizers import byte_level
from testing.toy import PieceTokenizer

PIECES = [b"a", b"b", b"ab", b"c ", b"\xc3", b"\xa9", b"b\xc3", b"\xe2\x82", b"\xac", b"ba", "\ufffd".encode()]
EURO = [7, 8]
REPLACEMENT = 10
TOKENIZER = PieceTokenizer(PIECES)
whole_characters = st.sampled_from([(0,), (1,), (2,), (3,), (9,), (7, 8), (4, 5), (6, 5)])
texts = st.lists(whole_characters, min_size=1, max_size=20).map(lambda parts: list(chain(*parts)))
stops = st.lists(st.text("abcé€ ", min_size=1, max_size=4), max_size=3)


def known(tokens: list[int]) -> str:
    """The characters that are complete."""
    return TOKENIZER.decode(tokens).rstrip("\ufffd")


def expected(tokens: list[int], stop: list[str]) -> tuple[int, str]:
    """How many tokens it takes until a stop string is complete, and the text before it."""
    for count in range(1, len(tokens) + 1):
        text = known(tokens[:count])
        starts = [text.find(string) for string in stop if string in text]
        if starts:
            return count, text[: min(starts)]
    return 0, known(tokens)


@settings(max_examples=60)
@given(texts, stops, st.integers(0, 3))
def test_text_ends_at_the_first_complete_stop_string(tokens, stop, read_every):
    stream, shown, ended = Detokenizer(TOKENIZER, [0, 3], stop), "", 0
    for count, token in enumerate(tokens, start=1):
        if stream.push(token):
            ended = count
            break
        shown += stream.read() if read_every and count % read_every == 0 else ""
    assert (ended, stream.text) == expected(tokens, stop)
    stream.finish()
    assert shown + stream.read() == stream.text
    assert (stream.stopped_by is None) == (not ended)
    assert known(tokens).startswith(stream.text + (stream.stopped_by or ""))


@settings(max_examples=60)
@given(texts, stops)
def test_text_that_has_been_read_is_never_taken_back(tokens, stop):
    stream, shown = Detokenizer(TOKENIZER, [0], stop), ""
    for token in tokens:
        ended = stream.push(token)
        shown += stream.read()
        assert stream.text.startswith(shown)
        if ended:
            break


@settings(max_examples=60)
@given(texts)
def test_origins_name_the_token_that_completed_each_character(tokens):
    stream = Detokenizer(TOKENIZER, [0])
    for token in tokens:
        stream.push(token)
    completed = [len(known(tokens[: count + 1])) for count in range(len(tokens))]
    assert stream.origins == [next(i for i, n in enumerate(completed) if n > at) for at in range(len(stream.text))]


def test_half_a_character_waits_for_its_other_half():
    stream = Detokenizer(TOKENIZER, [0])
    stream.push(EURO[0])
    assert stream.read() == ""
    stream.push(EURO[1])
    assert stream.read() == "€"


def test_a_character_begun_by_the_prompt_is_completed_in_the_text():
    stream = Detokenizer(TOKENIZER, [0, EURO[0]])
    stream.push(EURO[1])
    assert stream.text == "€"


@pytest.mark.parametrize(
    ("prompt", "pushed", "text"),
    [
        ([0, REPLACEMENT], [1], "b"),
        ([REPLACEMENT, REPLACEMENT], [0, 1], "ab"),
        ([0, REPLACEMENT, EURO[0]], [EURO[1], 1], "€b"),
        ([0, REPLACEMENT], [*EURO, 1], "€b"),
        ([0, REPLACEMENT], [REPLACEMENT, 1], "\ufffdb"),
        ([0, EURO[0]], [1], "b"),
    ],
)
def test_replacement_characters_of_the_prompt_are_no_part_of_the_text(prompt, pushed, text):
    stream, shown = Detokenizer(TOKENIZER, prompt), ""
    for token in pushed:
        stream.push(token)
        shown += stream.read()
    assert stream.text == shown == text


def test_a_stop_string_is_seen_in_front_of_half_a_character():
    stream = Detokenizer(TOKENIZER, [0], ["ab"])
    stream.push(0)
    assert stream.push(6)
    assert stream.text == ""


def test_the_beginning_of_a_stop_string_is_held_back():
    stream = Detokenizer(TOKENIZER, [0], ["bc b"])
    for token in (0, 1, 3):
        assert not stream.push(token)
    assert stream.read() == "a"
    stream.push(0)
    assert stream.read() == "bc a"


def test_without_a_tokenizer_there_is_no_text():
    stream = Detokenizer(None, [0], ["a"])
    assert not stream.push(0)
    stream.finish()
    assert stream.read() == ""


def test_the_leading_space_of_a_first_word_depends_on_the_prompt():
    class Words:
        def decode(self, token_ids, **_):
            return " ".join("xyz"[token] for token in token_ids)

    stream = Detokenizer(Words(), [0, 1])
    stream.push(2)
    assert stream.text == " z"


@pytest.mark.parametrize("length", [1, 3, 40])
def test_a_prompt_of_any_length_is_no_part_of_the_text(length):
    stream = Detokenizer(TOKENIZER, [0] * length)
    stream.push(1)
    assert stream.text == "b"


def test_special_tokens_are_text_where_they_are_spelled():
    tokenizer = byte_level("a small text", 270, "<|end|>")
    tokenizer.add_tokens([AddedToken("[A]", special=True), AddedToken("[B]", special=True)], special_tokens=True)
    tokens = tokenizer("x[A] y[B]z")["input_ids"]
    for spelled, expected in (((), "x yz"), (("[A]",), "x[A] yz"), (("[A]", "[B]"), "x[A] y[B]z")):
        stream = Detokenizer(tokenizer, tokens[:1], spelled=[tokenizer.convert_tokens_to_ids(each) for each in spelled])
        for token in tokens:
            stream.push(token)
        assert stream.text == expected
        assert len(stream.origins) == len(expected)
