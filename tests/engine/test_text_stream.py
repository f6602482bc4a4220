"""The result of a stream: that of `generate` at its end, an error before it, and what is written where it is closed."""

from dataclasses import replace

import pytest

from drafttree import Decoder, Metrics
from drafttree.errors import DraftTreeError, UnfinishedTextError
from drafttree.policies import Chain
from testing.toy import PieceTokenizer, Script, ToyDrafter, ToyModel

LETTERS = PieceTokenizer([bytes([code]) for code in b"abcdefgh"])
TEXT = "abcdefghab"


def spelling() -> Decoder:
    """A decoder whose target recites a text, and whose drafter knows it."""
    law = Script(LETTERS(TEXT)["input_ids"], 8)
    return Decoder(ToyModel(law), ToyDrafter(law), Chain(depth=2), tokenizer=LETTERS)


def test_the_result_is_what_generate_returns():
    stream = spelling().stream([0], max_new_tokens=10)
    chunks = list(stream)
    whole = spelling().generate([0], max_new_tokens=10)
    assert "".join(chunk.text for chunk in chunks) == whole.text == TEXT
    found = stream.result
    assert len(found.metrics.rounds) == len(chunks) == 4
    assert found.metrics.seconds > 0
    assert replace(found, metrics=Metrics()) == replace(whole, metrics=Metrics())


def test_before_the_end_there_is_no_result():
    stream = spelling().stream([0], max_new_tokens=10)
    with pytest.raises(UnfinishedTextError, match="0 tokens are written"):
        _ = stream.result
    next(stream)
    with pytest.raises(DraftTreeError, match="3 tokens are written; read the stream to its end, or close it"):
        _ = stream.result


def test_a_text_that_failed_has_no_result():
    decoder = spelling()
    stream = decoder.stream([0], max_new_tokens=10)
    decoder.target.law = None
    with pytest.raises(TypeError):
        next(stream)
    with pytest.raises(UnfinishedTextError):
        _ = stream.result


def test_a_stream_that_is_closed_has_what_was_written():
    stream = spelling().stream([0], max_new_tokens=10)
    first = next(stream)
    stream.close()
    assert stream.result.text == first.text == "abc"
    assert stream.result.finish_reason == "interrupted"
    assert list(stream) == []


def test_closing_a_text_that_has_ended_changes_nothing():
    stream = spelling().stream([0], max_new_tokens=10)
    list(stream)
    stream.close()
    assert stream.result.finish_reason == "length"
