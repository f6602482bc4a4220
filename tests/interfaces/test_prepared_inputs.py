"""What transformers has prepared is taken over, or refused by name."""

from copy import deepcopy

import pytest
import torch
from transformers import (
    EtaLogitsWarper,
    LogitsProcessorList,
    MinPLogitsWarper,
    SynthIDTextWatermarkingConfig,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TypicalLogitsWarper,
)

from drafttree.errors import ConfigError
from drafttree.interfaces import transformers_generate as hf
from drafttree.interfaces.prepared_inputs import split_processors
from helpers import images
from helpers.stock_generate import Recorder, StopAt, padded
from testing import tiny

PROMPT = torch.tensor([tiny.random_tokens(6, 3)])


NEW = 24


def test_sampling_options_are_read_off_the_prepared_warpers():
    warpers = LogitsProcessorList([TemperatureLogitsWarper(0.5), TopKLogitsWarper(7)])
    assert split_processors(warpers, True) == ([], {"temperature": 0.5, "top_k": 7})
    assert split_processors(warpers, False) == (list(warpers), {})
    assert split_processors(LogitsProcessorList(), True) == ([], {"temperature": 1.0})
    last = [MinPLogitsWarper(0.1), TypicalLogitsWarper(0.5), EtaLogitsWarper(0.25)]
    assert split_processors(LogitsProcessorList([*warpers, *last]), True) == (
        [],
        {"temperature": 0.5, "top_k": 7, "min_p": 0.1, "typical_p": 0.5, "eta_cutoff": 0.25},
    )


def test_what_is_no_warper_in_its_place_stays_a_processor():
    warm, best = TemperatureLogitsWarper(0.5), TopKLogitsWarper(7)
    for odd in ([warm, best, warm], [TopKLogitsWarper(7, filter_value=-9.0)], [best, warm]):
        rest, sampling = split_processors(LogitsProcessorList(odd), True)
        kept = {"temperature": 0.5} if odd[-1] is warm else {"temperature": 1.0}
        assert rest == odd[: len(odd) - (odd[-1] is warm)]
        assert sampling == kept


@pytest.mark.few(1)
@pytest.mark.parametrize("lengths", [(5,), (6, 6), (4, 7, 1), (3,)])
def test_batches_and_left_padding(target, draft, lengths):
    inputs = padded(*lengths)
    free = target.generate(**inputs, max_new_tokens=NEW, pad_token_id=0)
    for options in ({}, {"eos_token_id": [int(free[0, -9]), int(free[-1, -3])]}):
        stock = target.generate(**inputs, max_new_tokens=NEW, pad_token_id=0, **options)
        speculate = hf.generate(draft, "dynatree")
        ours = target.generate(**inputs, max_new_tokens=NEW, pad_token_id=0, custom_generate=speculate, **options)
        assert torch.equal(stock, ours)
        assert len(speculate.metrics) == len(lengths)


def test_left_padding_of_a_single_prompt(target, draft):
    inputs = {name: value[:1] for name, value in padded(3, 8).items()}
    stock = target.generate(**inputs, max_new_tokens=NEW)
    assert torch.equal(stock, target.generate(**inputs, max_new_tokens=NEW, custom_generate=hf.generate(draft)))


@pytest.mark.few(3)
@pytest.mark.parametrize("lengths", [(6,), (4, 7)])
@pytest.mark.parametrize("name", images.CONFIGS)
def test_text_for_models_of_images(name, lengths):
    """For some of them transformers makes position ids in three dimensions."""
    model, inputs = images.build(name), padded(*lengths)
    stock = model.generate(**inputs, max_new_tokens=NEW, pad_token_id=0)
    ours = model.generate(**inputs, max_new_tokens=NEW, pad_token_id=0, custom_generate=hf.generate("lookup"))
    assert torch.equal(stock, ours)


def test_positions_in_several_dimensions_that_are_not_the_texts_are_refused():
    positions = torch.arange(6).repeat(3, 1, 1)
    positions[2] += 1
    with pytest.raises(ConfigError, match="position_ids"):
        images.build("qwen2_5_vl").generate(PROMPT, position_ids=positions, custom_generate=hf.generate("lookup"))


REFUSED = {
    "num_beams": {"num_beams": 2},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
    "penalty_alpha": {"penalty_alpha": 0.6, "top_k": 4},
    "dola_layers": {"dola_layers": "low"},
    "force_words_ids": {"force_words_ids": [[3]]},
    "output_hidden_states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "cache_implementation": {"cache_implementation": "offloaded"},
    "guidance_scale": {"guidance_scale": 1.5},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 1.5},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 2},
    "watermarking_config": {
        "watermarking_config": SynthIDTextWatermarkingConfig(keys=[1, 2], ngram_len=3),
        "do_sample": True,
    },
    "inputs_embeds": {"inputs_embeds": torch.zeros(1, 6, 32)},
    "position_ids": {"position_ids": torch.arange(1, 7)[None]},
    "attention_mask": {"attention_mask": torch.tensor([[1, 1, 0, 1, 1, 1]])},
}


@pytest.mark.parametrize("option", REFUSED)
def test_what_cannot_be_honoured_is_refused_by_name(target, draft, option):
    with pytest.raises(ConfigError, match=option) as caught:
        target.generate(PROMPT, max_new_tokens=4, custom_generate=hf.generate(draft), **REFUSED[option])
    assert "\n" not in str(caught.value)
    assert target.config._attn_implementation == "sdpa"


@pytest.mark.parametrize("entries", [5, 7])
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("padded_to", [0, 1])
def test_a_mask_of_another_length_than_the_prompt_is_told(target, draft, entries, size, padded_to):
    """One without zeros comes as the position ids that transformers has made of it."""
    mask = torch.ones(size, entries, dtype=torch.long)
    mask[:, :padded_to] = 0
    custom = hf.generate(draft)
    with pytest.raises(ConfigError, match=r"an attention_mask.* of .* for .*; give an entry for each token") as caught:
        target.generate(PROMPT.repeat(size, 1), attention_mask=mask, max_new_tokens=4, custom_generate=custom)
    told = f"{[size, entries]} for input_ids of {[size, 6]}" if padded_to else f"{entries} entries for prompts of 6"
    assert told in str(caught.value)


def test_a_mask_with_more_rows_than_prompts_is_told(target, draft):
    with pytest.raises(ConfigError, match=r"of 2 rows for 1 prompts; give a row for each prompt"):
        target.generate(PROMPT, attention_mask=torch.ones(2, 6), max_new_tokens=4, custom_generate=hf.generate(draft))


def test_arguments_transformers_keeps_to_itself_are_refused_by_name(target, draft):
    for option in ({"assistant_model": draft}, {"synced_gpus": True}):
        with pytest.raises(ConfigError, match=next(iter(option))):
            target.generate(PROMPT, max_new_tokens=4, custom_generate=hf.generate(draft), **option)


def test_attentions_are_refused(target, draft):
    model = deepcopy(target)
    model.set_attn_implementation("eager")
    with pytest.raises(ConfigError, match="output_attentions"):
        model.generate(PROMPT, custom_generate=hf.generate(draft), output_attentions=True, return_dict_in_generate=True)
    assert model.config._attn_implementation == "eager"


def test_batches_refuse_what_needs_rows_side_by_side(target, draft):
    inputs = padded(4, 6)
    speculate = hf.generate(draft)
    for option, value in (("streamer", Recorder()), ("stopping_criteria", [StopAt()])):
        with pytest.raises(ConfigError, match=option.replace("_", "[ _]")):
            target.generate(**inputs, max_new_tokens=4, custom_generate=speculate, **{option: value})
