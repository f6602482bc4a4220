"""Stop strings in texts with stretches, such as thinking, in which they do not apply."""

import pytest

from drafttree.errors import ConfigError
from drafttree.text.stop_scope import Stretch
from helpers.dialects import knowing

FIRST, OPENED = Stretch("<think>", "</think>"), Stretch("<think>", "</think>", opened=True)
ANYWHERE = Stretch("<think>", "</think>", anywhere=True)
HEADER = Stretch("<think", ">", anywhere=True)


@pytest.mark.parametrize(
    ("stretches", "said", "stop", "expected"),
    [
        ([], "<think>a.b</think>c.d", ".", "<think>a"),
        ([FIRST], "<think>a.b</think>c.d", ".", "<think>a.b</think>c"),
        ([FIRST], " \n<think>\na\n</think>\n\nc\nd", "\n", " \n<think>\na\n</think>\n\nc"),
        ([OPENED], "a\n</think>\n\nc\nd", "\n", "a\n</think>\n\nc"),
        ([OPENED], "a\nb\n", "\n", "a\nb\n"),
        ([FIRST], "<th.ink>", ".", "<th"),
        ([FIRST], "<th.ink>", "<t", ""),
        ([FIRST], "\nno", "\n", ""),
        ([FIRST], "c <think>a.b", ".", "c <think>a"),
        ([FIRST], "<think>a</think>c <think>b.", ".", "<think>a</think>c <think>b"),
        ([FIRST], "<think>a</think>c</think>d", "</think>", "<think>a</think>c"),
        ([FIRST], "<think>a</think>cad", "ka", "<think>a</think>cad"),
        ([FIRST], "<think>xx</think>xxy", "xy", "<think>xx</think>x"),
        ([FIRST], "<think>caca</think>caca-d", "a-d", "<think>caca</think>cac"),
        ([ANYWHERE], "c <think>a.b</think> d.e", ".", "c <think>a.b</think> d"),
        ([ANYWHERE], "c. <think>a.b</think> d.e", ".", "c"),
        ([ANYWHERE], "c<think<think>a</think>b<th", "<th", "c"),
        ([ANYWHERE], "c<think>a</think>b<th.", "<th", "c<think>a</think>b"),
        ([ANYWHERE, HEADER], "c<think>a>i</think>d<think.>e>i", "i", "c<think>a>i</think>d<think.>e>"),
    ],
)
@pytest.mark.parametrize("text_so_far", [False, True])
def test_a_text_is_cut_at_the_first_stop_string_outside(stretches, said, stop, expected, text_so_far):
    decoder = knowing(said, "llama3")
    options = {"stop": stop, "unstopped": stretches, "max_new_tokens": 100}
    if text_so_far:
        stream = decoder.stream([1], **options)
        assert "".join(chunk.text for chunk in stream) == expected
        out = stream.result
    else:
        out = decoder.generate([1], **options)
    assert out.text == expected
    assert out.finish_reason == "stop"
    cut = expected != said
    tokens = decoder.tokenizer(said, add_special_tokens=False)["input_ids"]
    assert out.tokens == tokens[: len(out.tokens)] if cut else out.tokens[:-1] == tokens
    assert out.tokens == decoder.generate([1], **options, speculate=False).tokens


def test_what_may_become_a_mark_is_searched_where_the_text_ends():
    decoder = knowing("<#h", "llama3")
    mark = [Stretch("<#hi>", "#", anywhere=True)]
    for stop, expected, reason in (("<#", "", "stop"), ("x", "<#", "length")):
        out = decoder.generate([1], stop=stop, unstopped=mark, max_new_tokens=2)
        assert (out.text, out.finish_reason, len(out.tokens)) == (expected, reason, 2)


def test_a_special_token_ends_a_text_outside_alone():
    decoder = knowing("<|start|>a<|eot_id|>b<|end|>c<|eot_id|>d", "llama3")
    marks = decoder.tokenizer.convert_tokens_to_ids(["<|start|>", "<|end|>"])
    thought = Stretch("<|start|>", "<|end|>")
    options = {"stop": ["<|eot_id|>", "<|end|>"], "max_new_tokens": 100, "spelled_tokens": marks}
    assert decoder.generate([1], **options).text == "<|start|>a"
    assert decoder.generate([1], **options, unstopped=[thought]).text == "<|start|>ab<|end|>c"


@pytest.mark.parametrize("wrong", ["<think>", ["<think>"], [Stretch("", "x")], [Stretch("x", "")]])
def test_what_is_no_stretch_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"unstopped is .*; give a list of Stretch, each with two marks"):
        knowing("x", "llama3").generate([1], stop="x", unstopped=wrong)
