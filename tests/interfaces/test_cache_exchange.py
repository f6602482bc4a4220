"""`past_key_values` go in and come out as with stock `generate`: a text in turns is the text in one go."""

from copy import deepcopy

import pytest
import torch
from transformers import Cache, DynamicCache, LlamaConfig, Phi3Config, StaticCache

from drafttree.errors import ConfigError
from drafttree.interfaces import transformers_generate as hf
from drafttree.models.module.module_inputs import as_cache
from helpers.stock_generate import padded
from testing import families, tiny

PROMPT = torch.tensor([tiny.random_tokens(6, 3)])
TURN = {"max_new_tokens": 10, "return_dict_in_generate": True}


@pytest.mark.few(2)
@pytest.mark.parametrize("second", ["stock", "ours"])
@pytest.mark.parametrize("first", ["stock", "ours"])
@pytest.mark.parametrize("architecture", ["llama", "mistral_sliding"])
def test_a_text_in_two_turns_is_the_text_in_one(architecture, first, second):
    model = tiny.build(architecture)
    ways = {"stock": {}, "ours": {"custom_generate": hf.generate(tiny.build(architecture, 1), "talon")}}
    question = torch.tensor([tiny.random_tokens(5, 9)])
    begun = model.generate(PROMPT, **TURN, **ways[first])
    assert type(begun.past_key_values) is DynamicCache
    assert begun.past_key_values.get_seq_length() == begun.sequences.shape[1] - 1
    prompt = torch.cat((begun.sequences, question), 1)
    if architecture == "mistral_sliding" and second == "ours":
        with pytest.raises(ConfigError, match="past_key_values without the rows before a sliding window"):
            model.generate(prompt, past_key_values=begun.past_key_values, **TURN, **ways[second])
        return
    ended = model.generate(prompt, past_key_values=begun.past_key_values, **TURN, **ways[second])
    assert torch.equal(ended.sequences, model.generate(prompt, **TURN).sequences)
    assert ended.past_key_values is begun.past_key_values
    assert ended.past_key_values.get_seq_length() == ended.sequences.shape[1] - 1


def test_a_given_cache_saves_reading_and_is_filled(target, draft):
    cache, speculate = DynamicCache(config=target.config), hf.generate(draft)
    text = target.generate(PROMPT, max_new_tokens=10, past_key_values=cache, custom_generate=speculate)
    stock = DynamicCache(config=target.config)
    assert torch.equal(text, target.generate(PROMPT, max_new_tokens=10, past_key_values=stock))
    for ours, theirs in zip(cache.layers, stock.layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.values, theirs.values, atol=1e-4, rtol=1e-4)
    target.generate(text, max_new_tokens=5, past_key_values=cache, custom_generate=speculate)
    assert speculate.metrics[0].prefill_passes == 0


def test_an_eos_token_inside_a_path_leaves_no_row_too_many(target):
    free = target.generate(PROMPT, max_new_tokens=10)[0].tolist()
    options = {**TURN, "eos_token_id": free[8], "pad_token_id": 0}
    out = target.generate(PROMPT, custom_generate=hf.generate(deepcopy(target), "chain"), **options)
    assert out.past_key_values.get_seq_length() == out.sequences.shape[1] - 1 == free.index(free[8], 6)


def test_caches_that_cannot_go_on_are_refused_by_name(target, draft):
    speculate, cache = hf.generate(draft), DynamicCache(config=target.config)
    target.generate(PROMPT, max_new_tokens=4, past_key_values=cache)
    static = StaticCache(config=target.config, max_cache_len=32)
    target.generate(PROMPT, max_new_tokens=4, past_key_values=static)
    longer = torch.cat((PROMPT, PROMPT), 1)
    for given, prompt, words in (
        (static, longer, "past_key_values of StaticCache; give a DynamicCache"),
        (cache, PROMPT[:, :4], "past_key_values of 9 tokens; the prompt of 4 must be longer"),
        (DynamicCache(), PROMPT.expand(2, -1), "past_key_values with several or padded prompts"),
        (StaticCache(config=target.config, max_cache_len=32), PROMPT, "past_key_values of StaticCache"),
    ):
        with pytest.raises(ConfigError, match=words):
            target.generate(prompt, max_new_tokens=4, past_key_values=given, custom_generate=speculate)


LONG_ROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "original_max_position_embeddings": 24,
    "short_factor": [1.0, 1.1, 1.2, 1.3],
    "long_factor": [1.0, 4.0, 9.0, 16.0],
}


@pytest.mark.parametrize(("question", "new_tokens"), [(20, 10), (3, 20)], ids=["in the prompt", "while generating"])
def test_a_text_that_outgrows_its_context_goes_on_from_no_short_rows(question, new_tokens):
    sizes = {**tiny.GROUPED, "pad_token_id": 0, "max_position_embeddings": 200}
    model = tiny.from_config(Phi3Config(**sizes, original_max_position_embeddings=24, rope_parameters=LONG_ROPE))
    more = torch.tensor([tiny.random_tokens(question, 2)])
    outs = []
    for way in ({}, {"custom_generate": hf.generate(deepcopy(model), "talon")}):
        begun = model.generate(PROMPT, **TURN, past_key_values=DynamicCache(config=model.config), **way)
        options = {**TURN, "max_new_tokens": new_tokens, "past_key_values": begun.past_key_values, **way}
        outs.append(model.generate(torch.cat((begun.sequences, more), 1), **options))
    stock, ours = outs
    assert torch.equal(ours.sequences, stock.sequences)
    for mine, theirs in zip(ours.past_key_values.layers, stock.past_key_values.layers, strict=True):
        torch.testing.assert_close(mine.keys, theirs.keys, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        ({"head_dim": 12}, "another model: keys of layer 0 with texts x heads x width = 1x2x12, .* has 1x2x8; leave"),
        ({"num_hidden_layers": 5}, "another model: 5 layers with keys, the model's own has 3; leave it out"),
        ({"num_hidden_layers": 2}, "another model: 2 layers with keys, the model's own has 3; leave it out"),
    ],
)
def test_a_cache_of_another_model_is_refused(target, draft, other, words):
    model = tiny.from_config(LlamaConfig(**{**tiny.GROUPED, **other}))
    out = model.generate(PROMPT, **TURN, past_key_values=DynamicCache(config=model.config))
    prompt = torch.cat((out.sequences, PROMPT), 1)
    with pytest.raises(ConfigError, match=words):
        target.generate(prompt, past_key_values=out.past_key_values, custom_generate=hf.generate(draft), **TURN)


def test_layers_that_share_keys_may_hold_none():
    model = tiny.from_config(families.config("gemma4 sharing keys"))
    begun = model.generate(PROMPT[:, :2], max_new_tokens=1, return_dict_in_generate=True)
    prompt = torch.cat((begun.sequences, PROMPT), 1)
    expected = model.generate(prompt, max_new_tokens=3)
    cache, speculate = begun.past_key_values, hf.generate(deepcopy(model))
    assert torch.equal(
        model.generate(prompt, max_new_tokens=3, past_key_values=cache, custom_generate=speculate), expected
    )


@pytest.mark.skipif(not hasattr(Cache, "get_conv_state"), reason="recurrent layers share no cache here")
@pytest.mark.parametrize("name", ["jamba", "mamba"])
def test_models_with_recurrent_layers_take_no_cache(name):
    model = tiny.from_config(families.config(name))
    options = {"max_new_tokens": 6, "custom_generate": hf.generate(deepcopy(model))}
    assert torch.equal(model.generate(PROMPT, **options), model.generate(PROMPT, max_new_tokens=6))
    with pytest.raises(ConfigError, match="past_key_values of models with recurrent layers"):
        model.generate(PROMPT, **as_cache(model, DynamicCache(config=model.config)), **options)


def test_several_prompts_return_no_cache(target, draft):
    out = target.generate(**padded(4, 7), pad_token_id=0, custom_generate=hf.generate(draft), **TURN)
    assert out.past_key_values is None
