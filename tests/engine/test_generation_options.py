"""Options over the model's own generation config: the text is stock `generate`'s, and a call has the last word."""

import math
from collections import Counter
from copy import deepcopy

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    GenerationConfig,
    StoppingCriteriaList,
    WatermarkingConfig,
)

import drafttree
from drafttree import Decoder
from drafttree.drafters import LanguageModelDrafter
from drafttree.engine.generation_options import RequestOptions, model_defaults
from drafttree.errors import ConfigError, DraftTreeError
from drafttree.evaluation.certify import certify
from drafttree.measure.reference import transformers_generate
from drafttree.models import TargetModel
from drafttree.policies import Talon
from helpers.stock_generate import StopAt
from testing import tiny
from testing.costs import toy_decoder
from testing.small_trees import TARGET
from testing.tokenizers import words
from testing.toy import ToyModel

PROMPT, NEW = tiny.random_tokens(6, 3), 20
IDS = torch.tensor([PROMPT])
FILES = {
    "repetition_penalty": {"repetition_penalty": 1.3},
    "sampling": {"do_sample": True, "temperature": 0.8, "top_p": 0.9, "min_p": 0.05, "no_repeat_ngram_size": 2},
    "suppress_tokens": {"suppress_tokens": "tokens", "forced_eos_token_id": 96},
    "minimum and maximum": {"min_new_tokens": 9, "min_length": 30, "max_new_tokens": 14, "eos_token_id": "tokens"},
    "begin": {"begin_suppress_tokens": "tokens", "renormalize_logits": True, "remove_invalid_values": True},
    "watermark": {"watermarking_config": {"bias": 4.0, "seeding_scheme": "selfhash"}},
}


@pytest.fixture(scope="module")
def module():
    return tiny.build("llama")


@pytest.fixture(scope="module")
def free(module):
    """The greedy text without any option."""
    return module.generate(IDS, max_new_tokens=NEW)[0, len(PROMPT) :].tolist()


@pytest.fixture(scope="module")
def near(module):
    """A drafter that is sometimes right."""
    draft = deepcopy(module)
    with torch.no_grad():
        for parameter in draft.parameters():
            parameter += 0.03 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    return LanguageModelDrafter(TargetModel(draft))


@pytest.fixture(scope="module")
def decoder(module, near):
    return Decoder(TargetModel(deepcopy(module)), near, Talon(budget=12, width=3))


def saved(module, free, fields, folder):
    """A folder with the model and these fields in its generation_config.json."""
    filled = {name: [free[0], free[5]] if value == "tokens" else value for name, value in fields.items()}
    copy = deepcopy(module)
    copy.generation_config = GenerationConfig(**filled)
    copy.save_pretrained(folder)
    return folder


def load(folder, policy="chain", drafter="lookup") -> Decoder:
    # Any tokenizer without an EOS token will do: the prompts are token ids.
    return drafttree.load(str(folder), drafter, policy, dtype="float32", device="cpu", tokenizer=words("a", "b"))


@pytest.mark.few(1)
@pytest.mark.parametrize("name", FILES)
def test_greedy_text_is_that_of_stock_generate_with_the_models_generation_config(module, free, near, name, tmp_path):
    saved(module, free, FILES[name], tmp_path)
    stock = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    length = {} if "max_new_tokens" in FILES[name] else {"max_new_tokens": NEW}
    expected = stock.generate(IDS, do_sample=False, pad_token_id=0, **length)[0, len(PROMPT) :].tolist()
    assert expected != free
    decoder = load(tmp_path).with_drafter(near)
    for each in (decoder.plain(), decoder, decoder.with_policy(drafttree.policies.DynaTree())):
        assert each.generate(PROMPT, temperature=0, **length).tokens == expected
    assert certify(decoder, [PROMPT], ["chain"], max_new_tokens=NEW).passed


def test_a_model_that_samples_samples_by_default_and_a_call_has_the_last_word(module, free, tmp_path):
    decoder = load(saved(module, free, FILES["sampling"], tmp_path))
    assert dict(decoder.defaults) == FILES["sampling"]
    given = {"temperature": 0.8, "top_p": 0.9, "min_p": 0.05, "no_repeat_ngram_size": 2}
    bare = Decoder(decoder.target, decoder.drafter)

    def same(options: dict, expected: dict) -> bool:
        calls = ((decoder, options), (bare, expected))
        texts = [each.generate(PROMPT, seed=5, max_new_tokens=NEW, **chosen) for each, chosen in calls]
        return texts[0].tokens == texts[1].tokens

    assert same({}, given)
    assert same({"temperature": 1.5}, given | {"temperature": 1.5})
    assert same({"top_p": None, "min_p": 0}, {"temperature": 0.8, "no_repeat_ngram_size": 2})
    assert same({"temperature": None}, given | {"temperature": 1.0})
    assert same({"do_sample": False}, {"no_repeat_ngram_size": 2})
    assert same({"temperature": 0, "no_repeat_ngram_size": None}, {})
    assert same({"generation_config": GenerationConfig(do_sample=False, no_repeat_ngram_size=0)}, {})


def test_a_model_without_generation_config_is_greedy_with_nothing_else(module, free, tmp_path):
    decoder = load(saved(module, free, {}, tmp_path))
    assert dict(decoder.defaults) == {}
    assert decoder.generate(PROMPT, max_new_tokens=NEW).tokens == free


def test_defaults_are_kept_logged_and_no_ones_to_change(module, free, tmp_path, caplog):
    saved(module, free, FILES["repetition_penalty"], tmp_path)
    with caplog.at_level("INFO", logger="drafttree"):
        decoder = load(tmp_path)
    assert "options of the model's generation config: repetition_penalty=1.3" in caplog.messages
    for each in (decoder.with_policy(Talon()), decoder.with_verifier(None)):
        assert each.defaults == decoder.defaults
    assert decoder.plain().defaults == {**decoder.defaults, "speculate": False}
    with pytest.raises(TypeError):
        decoder.defaults["repetition_penalty"] = 1.0


@pytest.mark.parametrize(("field", "neutral"), [("num_beams", 1), ("guidance_scale", 1), ("dola_layers", None)])
def test_what_a_model_asks_for_and_trees_cannot_do_is_refused_until_overridden(decoder, free, field, neutral):
    value = {"num_beams": 4, "guidance_scale": 1.5, "dola_layers": "low"}[field]
    made = Decoder(decoder.target, defaults=model_defaults(GenerationConfig(**{field: value})))
    with pytest.raises(ConfigError, match=f"sets {field}={value!r}, which .*; pass {field}={neutral} to"):
        made.generate(PROMPT, max_new_tokens=NEW)
    assert made.generate(PROMPT, max_new_tokens=NEW, **{field: neutral}).tokens == free


def test_only_what_shapes_a_text_becomes_a_default():
    config = GenerationConfig(max_length=4096, pad_token_id=3, eos_token_id=2, top_p=1.0, use_cache=False, num_beams=1)
    config.chat_format = "chatml"
    assert dict(model_defaults(config)) == {}
    assert dict(model_defaults(None)) == {}


def test_neutral_values_of_unsupported_options_are_accepted(decoder, free):
    neutral = {"num_beams": 1, "num_return_sequences": 1, "use_cache": True, "pad_token_id": 0, "top_k": None}
    neutral |= {"temperature": None, "do_sample": False, "output_scores": False, "guidance_scale": 1.0, "top_p": None}
    assert decoder.generate(PROMPT, max_new_tokens=NEW, **neutral).tokens == free
    assert decoder.generate(PROMPT, max_length=len(PROMPT) + 5).tokens == free[:5]
    assert len(decoder.generate(PROMPT, do_sample=True, top_k=1, max_new_tokens=4).tokens) == 4


ARGUMENTS = ["prefix_allowed_tokens_fn", "watermarking_config", "renormalize_logits", "eos_token_id"]
ARGUMENTS += ["stopping_criteria"]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_of_generate_give_its_text(decoder, module, free, name):
    values = {
        "prefix_allowed_tokens_fn": tiny.OPTIONS["prefix_allowed_tokens_fn"],
        "watermarking_config": WatermarkingConfig(bias=5.0),
        "renormalize_logits": True,
        "eos_token_id": [free[7], 96],
        "stopping_criteria": StoppingCriteriaList([StopAt()]),
    }
    expected = module.generate(IDS, max_new_tokens=NEW, pad_token_id=0, **{name: values[name]})[0, len(PROMPT) :]
    found = decoder.generate(PROMPT, max_new_tokens=NEW, **{name: values[name]})
    assert found.tokens == expected.tolist()
    assert name == "renormalize_logits" or found.tokens != free
    assert transformers_generate(decoder, PROMPT, max_new_tokens=NEW, **{name: values[name]}).tokens == found.tokens


def test_criteria_are_asked_about_every_token_as_in_stock_generate(decoder, module):
    stock, ours = StopAt(), StopAt()
    module.generate(IDS, max_new_tokens=NEW, stopping_criteria=[stock])
    assert decoder.generate(PROMPT, max_new_tokens=NEW, stopping_criteria=[ours]).finish_reason == "stop"
    assert ours.asked == stock.asked


@pytest.mark.parametrize(("presence", "frequency"), [(2.0, 0.0), (0.0, 1.5), (1.0, -0.5)])
def test_occurrences_in_the_text_are_penalised_and_those_in_the_prompt_are_not(decoder, module, presence, frequency):
    text = list(PROMPT)
    for _ in range(NEW):
        row = module(torch.tensor([text])).logits[0, -1]
        for token, count in Counter(text[len(PROMPT) :]).items():
            row[token] -= presence + frequency * count
        text.append(int(row.argmax()))
    options = {"presence_penalty": presence, "frequency_penalty": frequency, "max_new_tokens": NEW}
    assert decoder.generate(PROMPT, **options).tokens == text[len(PROMPT) :]


def test_a_watermark_follows_temperature_and_truncation(decoder, module):
    """A bias so strong that only the candidates of the truncation decide."""
    mark = WatermarkingConfig(bias=1e4, greenlist_ratio=0.9)
    options = {"watermarking_config": mark, "top_k": 1, "max_new_tokens": NEW}
    sampled = decoder.generate(PROMPT, temperature=0.7, seed=3, **options).tokens
    assert sampled == module.generate(IDS, do_sample=True, **options)[0, len(PROMPT) :].tolist()


def test_time_is_of_the_whole_call(decoder):
    several = decoder.generate([PROMPT, PROMPT[:3]], max_time=0.0, max_new_tokens=9)
    assert [len(each.tokens) for each in several] == [1, 1]
    assert len(decoder.generate(PROMPT, max_time=3600, max_new_tokens=5).tokens) == 5


def test_logprobs_are_the_models_own(decoder, module):
    options = {"max_new_tokens": NEW, "repetition_penalty": 1.5}
    out = module.generate(IDS, output_logits=True, return_dict_in_generate=True, **options)
    expected = torch.stack(out.logits)[:, 0].double().log_softmax(-1)
    found = decoder.generate(PROMPT, logprobs=3, **options)
    chosen = expected[torch.arange(NEW), torch.tensor(found.tokens)]
    torch.testing.assert_close(torch.tensor(found.logprobs, dtype=torch.float64), chosen, atol=1e-4, rtol=0)
    assert [list(top) for top in found.top_logprobs] == expected.topk(3).indices.tolist()
    assert found.tokens == out.sequences[0, len(PROMPT) :].tolist()
    only = decoder.generate(PROMPT, logprobs=True, **options)
    assert (only.logprobs, only.top_logprobs) == (found.logprobs, None)
    assert decoder.generate(PROMPT, **options).logprobs is None


@pytest.mark.parametrize("together", [False, True], ids=["alone", "in a batch"])
def test_logprobs_of_a_prompt_are_those_of_one_pass_over_it(decoder, module, together):
    rows = module(IDS).logits[0, :-1].double().log_softmax(-1)
    options = {"max_new_tokens": 3, "prompt_logprobs": 3}
    (found,) = decoder.generate([PROMPT], **options) if together else [decoder.generate(PROMPT, **options)]
    expected = rows[torch.arange(len(PROMPT) - 1), torch.tensor(PROMPT[1:])].tolist()
    assert found.prompt_logprobs == pytest.approx(expected, abs=1e-4)
    assert [list(top) for top in found.prompt_top_logprobs] == rows.topk(3).indices.tolist()
    assert decoder.generate(PROMPT, max_new_tokens=3).prompt_logprobs is None


def test_logprobs_of_a_prompt_are_in_the_first_chunk(decoder):
    chunks = [*decoder.stream(PROMPT, max_new_tokens=NEW, prompt_logprobs=True)]
    assert len(chunks[0].prompt_logprobs.tokens) == len(PROMPT) - 1
    assert all(chunk.prompt_logprobs is None for chunk in chunks[1:])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"do_sample": False, "temperature": 0.7}, "do_sample=False contradicts temperature=0.7"),
        ({"do_sample": True, "temperature": 0}, "do_sample=True contradicts temperature=0"),
        ({"do_sample": 3}, "do_sample is 3"),
        ({"max_length": 6, "max_new_tokens": None}, "max_length=6 leaves no room after a prompt of 6 tokens"),
        ({"stop": "a", "stop_strings": "b"}, "two names of one option"),
        ({"eos_token_id": "x"}, "eos_token_id is 'x'"),
        ({"max_time": "soon"}, "max_time is 'soon'"),
        ({"max_time": True}, "max_time is True"),
        ({"ignore_eos": "x"}, "ignore_eos is 'x'; it must be True or False"),
        ({"renormalize_logits": "x"}, "renormalize_logits is 'x'; it must be True or False"),
        ({"logits_processor": [3]}, r"logits_processor is \[3\]; give a LogitsProcessorList"),
        ({"stopping_criteria": 3}, "stopping_criteria is 3"),
        ({"generation_config": {"top_k": 3}}, "generation_config is of type dict"),
        ({"watermarking_config": 3}, "watermarking_config is of type int"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"presence_penalty": math.nan}, "presence_penalty is nan; it must be a number"),
        ({"frequency_penalty": "2"}, "frequency_penalty is '2'; it must be a number"),
        ({"spelled_tokens": "ab"}, "spelled_tokens is 'ab'; give a list of token ids"),
        ({"spelled_tokens": [1.5]}, r"spelled_tokens is \[1.5\]; give a list of token ids"),
        ({"spelled_tokens": [3, -1]}, "spelled_tokens has -1, which is outside the vocabulary of 97"),
        ({"spelled_tokens": [97]}, "spelled_tokens has 97, which is outside the vocabulary of 97"),
        ({"prompt_logprobs": 101}, "prompt_logprobs is 101"),
        ({"prompt_logprobs": 1, "reuse_prefix": True}, "prompt_logprobs needs the whole prompt read"),
        ({"nonsense": 3}, "unknown option 'nonsense'; none of the"),
        ({"temperatur": 3}, "unknown option 'temperatur'; did you mean 'temperature'"),
        ({"eos_token_id": 10**30}, "is outside the vocabulary of 97; give ignore_eos"),
        ({"eos_token_id": [3, -1]}, "-1 is outside the vocabulary of 97"),
        ({"repetition_penalty": "2"}, "repetition_penalty is '2': it must be a number above 0"),
        ({"repetition_penalty": math.inf}, "repetition_penalty is inf: it must be a number above 0"),
        ({"sequence_bias": [[[5], math.nan]]}, "nan is not a pair of a token sequence and a number"),
        ({"sequence_bias": [[[], 1.0]]}, "1.0 is not a pair of a token sequence"),
        ({"prefix_allowed_tokens_fn": 3}, "prefix_allowed_tokens_fn is 3"),
        ({"output_logits": True}, "does not support output_logits=True; give logprobs"),
        ({"streamer": print}, "does not support streamer; iterate over Decoder.stream"),
    ],
)
def test_bad_values_are_told_in_one_line(decoder, options, words):
    with pytest.raises(ConfigError, match=words) as error:
        decoder.generate(PROMPT, **{"max_new_tokens": 2, **options})
    assert "\n" not in str(error.value)


WITH_TOKENS = {"suppress_tokens": [True], "bad_words_ids": [[True]], "begin_suppress_tokens": [True]}
WITH_TOKENS |= {"sequence_bias": [[[True], 1.0]], "exponential_decay_length_penalty": (True, 1.1)}
NUMBERS = ("seed", "temperature", "top_k", "top_p", "min_p", "typical_p", "epsilon_cutoff", "eta_cutoff", "top_h")
NUMBERS += ("max_new_tokens", "max_length", "max_time", "eos_token_id", "draft_temperature", "repetition_penalty")
NUMBERS += ("no_repeat_ngram_size", "min_length", "min_new_tokens", "forced_bos_token_id", "forced_eos_token_id")
NUMBERS += ("num_beams",)


@pytest.mark.parametrize(("name", "value"), [*dict.fromkeys(NUMBERS, True).items(), *WITH_TOKENS.items()])
def test_true_is_no_number(decoder, name, value):
    bare = Decoder(decoder.target, eos=(3,))
    with pytest.raises(ConfigError, match=rf"{name}( is|=)"):
        bare.generate(PROMPT, **{"max_new_tokens": 2, name: value})


@pytest.mark.parametrize("value", [10**400, -(10**400)], ids=["large", "small"])
@pytest.mark.parametrize(
    "options",
    [
        *({name: lambda value: value} for name in NUMBERS if name not in ("max_time", "num_beams")),
        {"sequence_bias": lambda value: {(1,): value}},
        {"forced_eos_token_id": lambda value: {1: value}},
        {"suppress_tokens": lambda value: [value]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_a_number_of_400_digits_is_refused_by_name_or_means_what_it_says(options, value):
    ((name, shape),) = options.items()
    unbounded = toy_decoder(ToyModel(TARGET), eos=(0,))
    means = {"top_k", "no_repeat_ngram_size", "min_length", "max_length"} if value > 0 else set()
    given = {"max_new_tokens": 2, name: shape(value)}
    if name in means:
        assert len(unbounded.generate([1, 2], **given).tokens) == 2
    else:
        with pytest.raises(DraftTreeError, match=rf"{name}( is|=)|max_new_tokens="):
            unbounded.generate([1, 2], **given)


def test_time_without_end_does_not_end_a_text(decoder):
    assert len(decoder.generate(PROMPT, max_time=10**400, max_new_tokens=5).tokens) == 5


def test_eos_tokens_of_a_model_that_are_outside_its_vocabulary_end_nothing(decoder, free):
    odd = Decoder(decoder.target, eos=(-1, 10**30))
    assert odd.generate(PROMPT, max_new_tokens=NEW, min_new_tokens=2).tokens == free


def test_every_option_is_documented():
    from drafttree.engine.generation_options import GenerationOptions, ProcessorOptions

    own = GenerationOptions.__annotations__.keys() - ProcessorOptions.__annotations__.keys()
    assert all(f"        {name}: " in GenerationOptions.__doc__ for name in own)


def test_merging_changes_neither_side():
    defaults, options = {"top_k": 3}, {"top_k": None}
    assert RequestOptions.merge(defaults, options).sampling.top_k == 0
    assert (defaults, options) == ({"top_k": 3}, {"top_k": None})


@pytest.mark.parametrize("options", [{}, {"do_sample": True}])
def test_a_config_that_samples_at_temperature_0_is_refused(options):
    defaults = {"temperature": 0.0} if options else {"do_sample": True, "temperature": 0.0}
    with pytest.raises(ConfigError, match=r"sets temperature=0\.0, which contradicts do_sample=True"):
        RequestOptions.merge(defaults, options)
    assert RequestOptions.merge(defaults, options | {"temperature": None}).sampling.temperature == 1
    assert RequestOptions.merge(defaults, {"do_sample": False}).sampling.greedy
