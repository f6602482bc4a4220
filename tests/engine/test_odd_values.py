"""Values that no option takes: each gives a text or an error of one line that names the option, never a traceback."""

import math
import re
from fractions import Fraction

import numpy as np
import pytest
import torch

import drafttree
from drafttree.engine.generation_options import GenerationOptions
from drafttree.errors import ConfigError, DraftTreeError, InputError
from helpers.refusals import told

ODD = [
    *(10**30, -(10**30), 2**63, 2**64, -(2**63) - 1, 1e39, 1e308, 5e-324, math.nan, math.inf, -math.inf, -1, 0),
    *(True, Fraction(1, 2), 1j, "x", "", b"x", [], [[]], [[1, 2]], [None], [""], [math.nan], {}, {1: 2}, {1, 2}),
    *((1, 10**400), (1, math.inf), [[[1], math.inf]], [[[1], 1e39]], range(3), object(), int),
    *(np.int64(3), np.float32(0.5), np.bool_(True), np.array([1, 2]), np.array([[1], [2]]), np.array(["a", "b"])),
    *(torch.tensor([1, 2]), torch.tensor(0.5), torch.tensor(math.nan), torch.tensor([])),
]
OPTIONS = sorted(GenerationOptions.__annotations__.keys() - {"stop_strings"})
WORDS = {"ebnf": "(ebnf|EBNF grammar)", "json_schema": "(json_schema|JSON schema)"}
"""How errors name some options, as regular expressions."""
SAMPLED = {"top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h", "seed"}


@pytest.fixture(scope="module")
def decoder():
    return drafttree.load(drafter="lookup", policy="chain:depth=2", dtype="float32")


@pytest.mark.few(6)
@pytest.mark.parametrize("name", OPTIONS)
def test_an_option_with_an_odd_value_gives_a_text_or_is_named(decoder, name):
    for value in ODD:
        if name == "prefix_allowed_tokens_fn" and value is int:
            continue  # a function, which fails as it likes
        options = {"max_new_tokens": 2, name: value} | ({"temperature": 0.7} if name in SAMPLED else {})
        try:
            said = decoder.generate([5, 6, 7], **options) and name
        except DraftTreeError as error:
            said = str(error)
        assert re.search(WORDS.get(name, name), said), value
        assert "\n" not in said


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"frequency_penalty": 10**30},
            f"frequency_penalty is {10**30}; it must be a number between -1e+06 and 1e+06",
        ),
        ({"presence_penalty": -1e7}, "presence_penalty is -10000000.0; it must be a number between -1e+06 and 1e+06"),
        ({"stop": torch.tensor([1, 2])}, "stop is [1, 2]; stop strings are text, none of them empty"),
        ({"stop_strings": 0}, "stop is 0; stop strings are text, none of them empty"),
        ({"stop": [], "stop_strings": "a"}, "stop and stop_strings are two names of one option; give one of them"),
        ({"suppress_tokens": [[1]]}, "suppress_tokens is [[1]]: it must be a list of token ids"),
        ({"forced_bos_token_id": [1]}, "forced_bos_token_id is [1]: it must be a token id"),
        ({"forced_eos_token_id": [[1]]}, "forced_eos_token_id is [[1]]: it must be a list of token ids"),
        ({"spelled_tokens": [True]}, "spelled_tokens is [True]; give a list of token ids"),
        (
            {"repetition_penalty": 5e-324},
            "repetition_penalty is 5e-324: it must be a number above 0, between 1e-06 and 1e+06",
        ),
        (
            {"sequence_bias": 3},
            "sequence_bias is 3: it must be pairs of a token sequence and a number of at most 1e+30",
        ),
        (
            {"sequence_bias": {(1,): math.inf}},
            "sequence_bias is {(1,): inf}: inf is not a pair of a token sequence and a number of at most 1e+30",
        ),
        (
            {"exponential_decay_length_penalty": (1, math.inf)},
            "exponential_decay_length_penalty is (1, inf): the factor must be above 0 and at most 1e+06",
        ),
    ],
)
def test_the_message_has_value_and_range(decoder, options, message):
    assert told(ConfigError, decoder.generate, [5], **options) == message


def test_numbers_and_lists_of_numpy_and_torch_are_those_of_python(decoder):
    mine = {"temperature": np.float32(0.5), "seed": np.int64(3), "eos_token_id": torch.tensor([1, 2])}
    theirs = {"temperature": 0.5, "seed": 3, "eos_token_id": [1, 2]}
    assert decoder.generate([5], **mine).tokens == decoder.generate([5], **theirs).tokens
    assert decoder.generate([5], temperature=Fraction(1, 2), seed=3, eos_token_id=[1, 2]).seed == 3


@pytest.mark.parametrize("call", ["generate", "stream", "prepare"])
def test_what_a_tokenizer_returns_is_the_prompt_and_no_options(decoder, call):
    inputs = decoder.tokenizer("It was", return_tensors="pt")
    assert told(ConfigError, getattr(decoder, call), **inputs) == (
        "tree drafting does not support input_ids; give the prompt first, as text, token ids or what a tokenizer or "
        "processor returns: generate(tokenizer(text))"
    )
    expected = decoder.generate("It was", max_new_tokens=4).tokens
    assert decoder.generate(inputs, max_new_tokens=4).tokens == expected
    assert told(InputError, getattr(decoder, call)) == "a prompt is text or token ids, not NoneType"


@pytest.mark.parametrize("device", [2**63, -(2**63) - 1, "cuda:99", "", "nowhere", -1, np.array(["cpu"])])
def test_a_device_that_is_not_there_is_named_with_those_that_are(device):
    message = told(ConfigError, drafttree.load, device=device)
    assert message.startswith(f"device {device!r} is not available; this machine has: cpu")


@pytest.mark.parametrize("name", ["drafter", "verifier", "dtype", "device", "tokenizer", "policy", "target"])
@pytest.mark.parametrize("value", [np.array([1, 2]), torch.tensor([1, 2]), 3.5], ids=repr)
def test_load_refuses_what_is_no_name(name, value):
    parts = {"drafter": "lookup", "policy": "chain", "dtype": "float32"} | {name: value}
    assert name in told(DraftTreeError, drafttree.load, **parts)


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"eos": 2}, "eos is 2; give a list of token ids"),
        ({"defaults": [1]}, "defaults is [1]; give options of generate by their names"),
        ({"tokenizer": 3}, "tokenizer is 3; give one of transformers, as from_pretrained returns"),
    ],
)
def test_a_decoder_names_a_part_of_another_kind(decoder, part, message):
    assert told(ConfigError, drafttree.Decoder, decoder.target, **part) == message


def test_an_engine_names_what_it_cannot_use(decoder):
    with drafttree.Engine(decoder, max_kv_tokens=10**400) as engine:
        message = told(ConfigError, engine.submit, [5], observer=3)
        assert message == "observer is 3; it must have the methods drafted and settled"
        message = told(ConfigError, engine.submit, [5], group=([],))
        assert message == "group is ([],); give what can be hashed, such as a number or a text"
        assert engine.submit([5], max_new_tokens=2).result().tokens
