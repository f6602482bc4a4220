"""What a frontend's request asks for is served under our names or refused by its own."""

import pytest

from drafttree import Decoder
from drafttree.constraints.grammar import Grammar
from drafttree.errors import ConfigError, InputError
from drafttree.evaluation.toy_models import TabularTarget
from drafttree.exactness import TabularModel
from drafttree.interfaces.dynamo.request_options import read_options
from testing.dynamo import request


def test_a_request_that_asks_for_nothing_fills_the_context(decoder):
    context = decoder.target.context
    assert read_options(request([1, 2, 3]), decoder) == {"max_new_tokens": context - 3}
    assert read_options(request([1] * 103), decoder) == {"max_new_tokens": context - 103}


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"temperature": 0.5, "seed": -7, "top_p": 0.9}, {"temperature": 0.5, "seed": -7, "top_p": 0.9}),
        ({"top_k": 5, "min_p": 0.1}, {"top_k": 5, "min_p": 0.1}),
        ({"top_k": -1}, {"top_k": 0}),
        ({"repetition_penalty": 1.2}, {"repetition_penalty": 1.2}),
        ({"stop": ["\n"]}, {"stop": ["\n"]}),
        ({"ignore_eos": True}, {"ignore_eos": True}),
        ({"stop_token_ids": [7]}, {"eos_token_id": [0, 7], "ignore_eos": False}),
        ({"stop_token_ids": [7], "ignore_eos": True}, {"eos_token_id": [7], "ignore_eos": False}),
        ({"output": {"logprobs": 0}}, {"logprobs": True}),
        ({"output": {"logprobs": 3}}, {"logprobs": 3}),
    ],
)
def test_options_have_our_names(decoder, asked, expected):
    assert read_options(request([1], max_tokens=4, **asked), decoder) == {"max_new_tokens": 4, **expected}


NOT_SERVED = {
    "n": (1, 2),
    "best_of": (1, 3),
    "presence_penalty": (0.0, 0.5),
    "frequency_penalty": (0.0, -1.0),
    "min_tokens": (0, 2),
    "use_beam_search": (False, True),
    "length_penalty": (1.0, 0.5),
    "include_stop_str_in_output": (False, True),
    "unheard_of": (None, 1),
}
"""Options, each with a value that asks for nothing and one that cannot be served."""


@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_asks_for_nothing_is_let_through(decoder, name):
    assert read_options(request([1], max_tokens=4, **{name: NOT_SERVED[name][0]}), decoder) == {"max_new_tokens": 4}


@pytest.mark.parametrize("name", NOT_SERVED)
def test_what_is_not_served_is_refused_by_its_name(decoder, name):
    value = NOT_SERVED[name][1]
    with pytest.raises(ConfigError, match=f"^{name}={value!r} is not served: "):
        read_options(request([1], max_tokens=4, **{name: value}), decoder)


@pytest.mark.parametrize(
    ("name", "value"), [("prompt_logprobs", 1), ("skip_special_tokens", False), ("return_tokens_as_token_ids", True)]
)
def test_outputs_that_are_not_served_are_refused_by_name(decoder, name, value):
    with pytest.raises(ConfigError, match=f"^{name}={value!r} is not served: "):
        read_options(request([1], max_tokens=4, output={name: value}), decoder)


def test_pictures_are_refused(decoder):
    with pytest.raises(ConfigError, match="multi_modal_data"):
        read_options(request([1], max_tokens=4) | {"multi_modal_data": {"image": ["a"]}}, decoder)


@pytest.mark.parametrize(
    "guide",
    [{"json": {"type": "object"}}, {"regex": "a+"}, {"grammar": 'root ::= "a"'}, {"choice": ["yes", 'a "word"']}],
    ids=lambda guide: next(iter(guide)),
)
def test_guided_decoding_becomes_a_grammar(decoder, guide):
    options = read_options(request([1], max_tokens=4, guided_decoding={"backend": None, **guide}), decoder)
    assert isinstance(options["grammar"], Grammar)


@pytest.mark.parametrize(
    "guide", [{"structural_tag": {}}, {"regex": "a", "json": {}}, {"backend": "xgrammar"}], ids=str
)
def test_other_guides_are_refused(decoder, guide):
    with pytest.raises(ConfigError, match="guided decoding by"):
        read_options(request([1], max_tokens=4, guided_decoding=guide), decoder)


def test_a_model_whose_context_has_no_end_needs_a_length():
    endless = Decoder(TabularTarget(TabularModel(vocab=3, depth=0, seed=0)))
    with pytest.raises(InputError, match="give max_tokens"):
        read_options(request([1]), endless)
