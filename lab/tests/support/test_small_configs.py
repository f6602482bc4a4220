"""Small configurations keep every kind of layer and are small."""

import pytest
import torch
from transformers import CONFIG_MAPPING

from drafttree_lab.support.random_models import architectures, language_models, random_model
from drafttree_lab.support.small_configs import small_config


@pytest.mark.parametrize("name", ["gemma3_text", "qwen3_next", "minimax", "deepseek_v3", "gpt_oss"])
def test_every_kind_of_layer_stays(name):
    whole, small = CONFIG_MAPPING[name](), small_config(name)
    for kinds in ("layer_types", "mlp_layer_types"):
        if entries := getattr(whole, kinds, None):
            assert set(getattr(small, kinds)) == set(entries)
            assert len(getattr(small, kinds)) == small.num_hidden_layers <= 8


def test_windows_are_shorter_than_prompts():
    assert small_config("mistral").sliding_window == 8
    assert small_config("llama4_text").attention_chunk_size == 8


def test_a_variant_changes_its_model_type():
    assert small_config("qwen2").sliding_window is None
    assert small_config("qwen2+window").sliding_window == 8
    assert small_config("qwen2+window").layer_types == ["full_attention"] * 2 + ["sliding_attention"] * 2


def test_types_of_several_models_stand_for_their_language_model():
    assert language_models()["gemma3"] == "gemma3_text"
    assert "gemma3" not in architectures()
    assert "gemma4_assistant" in architectures()
    assert {"llama", "gemma3_text", "phi3+longrope"} <= set(architectures())


def test_what_begins_as_ones_or_zeros_is_random():
    module = random_model("gpt_oss")
    layer = module.model.layers[0]
    for vector in (layer.self_attn.sinks, layer.input_layernorm.weight, layer.self_attn.q_proj.bias):
        assert vector.std() > 0.1
    assert torch.equal(module.lm_head.weight, random_model("gpt_oss").lm_head.weight)
    assert not torch.equal(module.lm_head.weight, random_model("gpt_oss", seed=1).lm_head.weight)
