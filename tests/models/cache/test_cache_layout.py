"""Laying weights out for the CPU moves numbers about in memory and changes none of them."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from transformers import LlamaConfig

from drafttree.models.module.module_backend import lay_out_for_cpu
from testing import tiny


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_logits_stay_the_same(name):
    module, reference = tiny.build(name), tiny.build(name)
    lay_out_for_cpu(module)
    tokens = torch.tensor([tiny.random_tokens(9, 1)])
    with torch.inference_mode():
        torch.testing.assert_close(module(tokens).logits, reference(tokens).logits, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_weights_stay_the_same(name):
    module = tiny.build(name)
    before = deepcopy(module.state_dict())
    lay_out_for_cpu(module)
    after = module.state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_linear_weights_become_input_major():
    module = tiny.build("llama")
    lay_out_for_cpu(module)
    strides = {layer.weight.stride() for layer in module.modules() if isinstance(layer, nn.Linear)}
    assert {first for first, _ in strides} == {1}


def test_tied_heads_stay_tied():
    module = tiny.from_config(LlamaConfig(**tiny.GROUPED, tie_word_embeddings=True))
    table, head = module.get_input_embeddings().weight, module.get_output_embeddings().weight
    before = table.detach().clone()
    lay_out_for_cpu(module)
    assert table is head is module.get_output_embeddings().weight
    assert torch.equal(table, before)
    assert not table.is_contiguous()


def test_untied_embeddings_are_left_alone():
    module = tiny.build("gpt_neox")
    lay_out_for_cpu(module)
    assert module.get_input_embeddings().weight.is_contiguous()
    assert not module.get_output_embeddings().weight.is_contiguous()
