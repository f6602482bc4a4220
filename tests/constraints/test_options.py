"""Generation options: texts equal those of transformers' `generate`, and unsupported options are refused."""

from copy import deepcopy

import pytest
import torch
from transformers import (
    EncoderRepetitionPenaltyLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    SuppressTokensLogitsProcessor,
)

from drafttree import Decoder
from drafttree.constraints.options import PROCESSOR_FACTORIES, ProcessorContext, ProcessorOptions, make_processors
from drafttree.drafters import LanguageModelDrafter
from drafttree.errors import ConfigError
from drafttree.measure.reference import transformers_generate
from drafttree.models import TargetModel
from drafttree.policies import Eagle, Talon
from testing import tiny
from testing.toy import Script, Table, ToyDrafter, ToyModel

PROMPT, NEW = tiny.random_tokens(6, 3), 20
SETTING = ProcessorContext(3, 20, (7,), 8, torch.device("cpu"))


@pytest.fixture(scope="module")
def module():
    return tiny.build("llama")


@pytest.fixture(scope="module")
def free(module):
    """The greedy text without any option."""
    return module.generate(torch.tensor([PROMPT]), max_new_tokens=NEW)[0, len(PROMPT) :].tolist()


@pytest.fixture(scope="module")
def decoder(module, free):
    """A decoder whose text may end early and whose drafter is sometimes right."""
    draft = deepcopy(module)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    drafter = LanguageModelDrafter(TargetModel(draft))
    return Decoder(TargetModel(deepcopy(module)), drafter, Talon(budget=12, width=3), eos=(free[9], 96))


@pytest.mark.few(4)
@pytest.mark.parametrize("name", [*tiny.OPTIONS, "everything"])
def test_greedy_is_transformers_generate(decoder, free, name):
    options = tiny.options(name, free)
    expected = transformers_generate(decoder, PROMPT, max_new_tokens=NEW, **options).tokens
    plain = transformers_generate(decoder, PROMPT, max_new_tokens=NEW).tokens
    assert decoder.generate(PROMPT, max_new_tokens=NEW, **options).tokens == expected
    assert name in tiny.IDLE or expected != plain


@pytest.mark.few(4)
@pytest.mark.parametrize("name", tiny.OPTIONS)
def test_coupled_is_decoding_without_speculation(decoder, free, name):
    options = tiny.options(name, free) | {"temperature": 0.8, "seed": 5, "max_new_tokens": NEW}
    assert decoder.generate(PROMPT, **options).tokens == decoder.plain().generate(PROMPT, **options).tokens


def test_every_option_is_tried():
    assert tiny.OPTIONS.keys() == PROCESSOR_FACTORIES.keys() == ProcessorOptions.__annotations__.keys()


def test_neutral_values_make_no_processors():
    neutral = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_length": 0, "min_new_tokens": 0}
    assert make_processors(neutral | {"sequence_bias": None, "remove_invalid_values": False}, (), SETTING) == []


def test_custom_processors_come_last_and_replace_those_of_their_type():
    ours = [SuppressTokensLogitsProcessor([1]), NoRepeatNGramLogitsProcessor(4)]
    made = make_processors({"no_repeat_ngram_size": 2, "repetition_penalty": 1.5}, ours, SETTING)
    assert [type(each) for each in made[:1]] == [RepetitionPenaltyLogitsProcessor]
    assert list(made[1:]) == [ours[1], ours[0]]


@pytest.mark.parametrize("least", [1, 5, 9, 10, 14])
def test_min_new_tokens_is_exact_within_paths(least):
    """The target always prefers EOS, which is allowed from one position on."""
    text = Script([7], 8)
    made = Decoder(ToyModel(text), ToyDrafter(text), Eagle(depth=3, top_k=3, budget=9), eos=(7,))
    out = made.generate([1], max_new_tokens=14, min_new_tokens=least)
    assert out.finish_reason == ("stop" if least < 14 else "length")
    assert out.tokens == [0] * least + [7] * (least < 14)
    assert made.generate([1], max_new_tokens=9, min_new_tokens=2, ignore_eos=True).tokens == [7] * 9


@pytest.mark.parametrize("penalty", [3, (1,), (1.5, 2.0), (1, 2.0, 3)])
def test_a_length_penalty_must_be_a_pair(penalty):
    with pytest.raises(ConfigError, match="must be a pair: after how many tokens it begins, and the factor"):
        make_processors({"exponential_decay_length_penalty": penalty}, (), SETTING)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"repetition_penalty": -1.0}, "repetition_penalty is -1.0: it must be a number above 0"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"no_repeat_ngram_size": -2}, "no_repeat_ngram_size is -2"),
        ({"no_repeat_ngram_size": 1.5}, "no_repeat_ngram_size is 1.5"),
        ({"min_new_tokens": 9, "max_new_tokens": 8}, "min_new_tokens is 9: it must be between 0 and max_new_tokens, 8"),
        ({"min_new_tokens": -1}, "min_new_tokens is -1"),
        ({"sequence_bias": [[[1], 2]]}, "sequence_bias is"),
        ({"sequence_bias": [[[8], 2.0]]}, "token id 8 is outside the vocabulary of 8"),
        ({"sequence_bias": {(1, 9): 2.0}}, "token id 9 is outside the vocabulary of 8"),
        ({"bad_words_ids": [[3, 11]]}, "token id 11 is outside"),
        ({"bad_words_ids": [[]]}, r"bad_words_ids is \[\[\]\]: a sequence of tokens must not be empty"),
        ({"min_length": "a"}, "min_length is 'a': it must be a whole number of at least 0"),
        ({"min_new_tokens": 1.5}, "min_new_tokens is 1.5: it must be between"),
        ({"remove_invalid_values": "x"}, "remove_invalid_values is 'x'; it must be True or False"),
        ({"suppress_tokens": [-1]}, "token id -1 is outside"),
        ({"forced_eos_token_id": 8}, "token id 8 is outside"),
        ({"exponential_decay_length_penalty": (2, 1.5)}, "there is no EOS token"),
        ({"suppress_tokens": [1.5]}, "suppress_tokens is .*1.5 is not a token id"),
        ({"begin_suppress_tokens": [8]}, "token id 8 is outside the vocabulary of 8"),
        ({"sequence_bias": [[[1.5], 2.0]]}, "1.5 is not a token id"),
        ({"typical_p": 0.0}, r"typical_p is 0.0; it must be in \(0, 1\]"),
        ({"epsilon_cutoff": 1.0}, "epsilon_cutoff is 1.0"),
        ({"repetition_penalti": 1.2}, "unknown option 'repetition_penalti'; did you mean 'repetition_penalty'?"),
        ({"temprature": 1.2}, "unknown option 'temprature'; did you mean 'temperature'?"),
        ({"num_beams": 4}, "does not support num_beams=4; beam search keeps several texts"),
        ({"num_return_sequences": 2}, "does not support num_return_sequences=2; call generate once for every seed"),
        ({"penalty_alpha": 0.6}, "does not support penalty_alpha"),
        ({"guidance_scale": 2.0}, "does not support guidance_scale"),
        ({"logits_processor": [EncoderRepetitionPenaltyLogitsProcessor(1.2, torch.ones(1, 1))]}, "encoder_repetition"),
    ],
)
def test_unsupported_options_are_refused_before_a_model_runs(options, words):
    made = Decoder(ToyModel(Table()), ToyDrafter(Table()))
    for entry in (made.generate, made.new_request, made.stream):
        with pytest.raises(ConfigError, match=words) as error:
            entry([1, 2], **options)
        assert "\n" not in str(error.value)
    assert made.target.passes == 0
